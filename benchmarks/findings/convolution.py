"""How far the convolutions of DFlash 2 reach: no row, one row or two rows back, at two block sizes.

    python -m benchmarks.findings.convolution --features SHARDS --steps 150 \\
        --out benchmarks/results/findings_convolution.json --work runs/convolution

Trains a small drafter for each, as `blockdraft train` would: the same answers in the same order,
blocks at the same places, the same start (convolutions begin as the identity), the same number of
steps. Then measures all on held-out answers. A kernel of 1 tap mixes no rows: it scales the
channels of each by what the row itself holds, and is what remains of a convolution without reach.

Stopped at any moment, the same command goes on. `--only` trains some and measures nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.findings.convolution_heldout import (
    Decoded,
    Heldout,
    Sums,
    block_figures,
    decode,
    decoded_figures,
)
from benchmarks.findings.convolution_runs import (
    SMALL,
    Experiment,
    Variant,
    train_variant,
    trained,
    variants,
)
from benchmarks.harness import write_result
from blockdraft import LLM
from blockdraft.config import load_recipe
from blockdraft.errors import ConfigError
from blockdraft.evaluation.provenance import provenance
from blockdraft.training.position_weights import default_gamma
from blockdraft.training.recipe import TrainRecipe

ROOT = Path(__file__).resolve().parents[2]

SEEDS = "after the first, at the first block size alone: how far trainings differ by chance"

#: Taps of what is compared with: those of the method as published.
BASE_KERNEL = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a training was stopped."""
    args = _arguments(arguments)
    wanted = variants(args.blocks, args.kernels, args.seeds)
    experiment = Experiment(recipe=_shared_recipe(args), work=args.work, start_from=args.start_from)
    for variant in _chosen(wanted, args.only):
        if train_variant(experiment, variant, _say) is None:
            return 1
    if not args.only:
        measure(experiment, wanted, args)
    return 0


def measure(experiment: Experiment, wanted: Sequence[Variant], args: argparse.Namespace) -> None:
    """Figures of all drafters, and the result."""
    recipe = experiment.recipe
    heldout = Heldout.open(recipe)
    llm = LLM(recipe.target, "none", dtype=recipe.target_dtype, max_batch_size=8)
    asked = heldout.answers[: args.decoded]
    sums: dict[Variant, list[Sums]] = {}
    decoded: dict[Variant, Decoded] = {}
    for variant in wanted:
        _say(f"{variant.name}: {len(heldout.answers)} held-out answers, {len(asked)} decoded")
        folder = experiment.drafter_folder(variant)
        sums[variant] = heldout.sums(experiment.recipe_of(variant), folder)
        decoded[variant] = decode(llm, folder, asked, args.tokens, variant.name)
    rows = [row(experiment, variant, sums, decoded) for variant in wanted]
    about = {**llm.describe(), "drafter": [decoded[each].drafter for each in wanted]}
    settings = {
        "steps": args.steps,
        "base_kernel_size": BASE_KERNEL,
        "num_decoded": len(asked),
        "tokens": args.tokens,
        "greedy": True,
        "recipe": _shared(experiment.described(experiment.recipe_of(wanted[0]))),
    }
    write_result(args.out, provenance(about, seed=args.seeds), settings, rows)


def row(
    experiment: Experiment,
    variant: Variant,
    sums: Mapping[Variant, Sequence[Sums]],
    decoded: Mapping[Variant, Decoded],
) -> dict[str, Any]:
    """One drafter, beside the one of the same block size and seed with the usual reach."""
    base = dataclasses.replace(variant, kernel_size=BASE_KERNEL)
    return {
        "name": variant.name,
        "block_size": variant.block_size,
        "conv_kernel_size": variant.kernel_size,
        "reach": variant.kernel_size - 1,
        "seed": variant.seed,
        "gamma": experiment.recipe.objective.gamma or default_gamma(variant.block_size),
        "training": trained(experiment.work / variant.name),
        "heldout": block_figures(sums[variant], sums.get(base)),
        "decoded": decoded_figures(decoded[variant], decoded.get(base)),
    }


def _shared(described: dict[str, Any]) -> dict[str, Any]:
    """A described recipe without what makes a variant; the rows say that."""
    drafter, run = dict(described["drafter"]), dict(described["run"])
    for name in ("block_size", "conv_kernel_size"):
        del drafter[name]
    del run["seed"]
    return {**described, "drafter": drafter, "run": run}


def _shared_recipe(args: argparse.Namespace) -> TrainRecipe:
    recipe = load_recipe(args.recipe, TrainRecipe, (*SMALL, *args.set))
    data = dataclasses.replace(recipe.data, features=str(args.features))
    schedule = dataclasses.replace(recipe.schedule, max_steps=args.steps)
    recipe = dataclasses.replace(recipe, data=data, schedule=schedule)
    if recipe.drafter.method != "dflash2":
        raise ConfigError(f"{args.recipe} trains {recipe.drafter.method}: it has no convolutions")
    return recipe


def _chosen(wanted: Sequence[Variant], names: Sequence[str]) -> list[Variant]:
    known = {variant.name: variant for variant in wanted}
    for name in names:
        if name not in known:
            raise ConfigError(f"--only {name} is none of {', '.join(known)}")
    return [known[name] for name in names or known]


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--features", type=Path, required=True, help="shards to train on")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of every drafter")
    parser.add_argument("--work", type=Path, default=Path("runs/convolution"))
    parser.add_argument("--blocks", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--kernels", type=int, nargs="+", default=[2, 3, 1], help="taps")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help=SEEDS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="train these alone")
    parser.add_argument("--start-from", type=Path, help="a drafter that all go on from")
    parser.add_argument("--decoded", type=int, default=32, help="prompts that are decoded")
    parser.add_argument("--tokens", type=int, default=128, help="of each, at most")
    default = ROOT / "recipes" / "smollm2-135m" / "dflash2.toml"
    parser.add_argument("--recipe", type=Path, default=default)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
