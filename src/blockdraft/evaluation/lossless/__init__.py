"""Does drafting change the output? Greedy texts, the rule, and the law of sampled tokens."""
