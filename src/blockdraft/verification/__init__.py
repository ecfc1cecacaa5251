"""Which drafted tokens stand, and which token follows them."""

from __future__ import annotations

from blockdraft.verification.rejection import accept_greedy, accept_sampled, greedy_rule

__all__ = ["accept_greedy", "accept_sampled", "greedy_rule"]
