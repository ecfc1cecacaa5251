"""Write the card (README.md) of a shipped drafter from its checkpoint, its run and an evaluation.

    python docs/write_card.py src/blockdraft/checkpoints/smollm2-135m-dflash2 \\
        --run runs/smollm2-135m-dflash2 --answers answers/smollm2-135m --evaluation R.json

Nothing on the card is typed by hand: what it was trained on and with comes from the run and the
answers, sizes and hashes from the checkpoint, figures from `blockdraft evaluate`, licences and bars
from a small table. `--check` fails if the card would change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from card_limits import limits

from blockdraft.data.answers import iter_answers, read_meta
from blockdraft.errors import CheckpointError, ConfigError, UserError
from blockdraft.interop.zlab import checkpoint_fingerprint, read_provenance, read_zlab
from blockdraft.training.checkpoint import CheckpointFolder

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "recipes" / "smollm2-135m" / "sources.toml"

#: Fields of a recipe that say where files are: they mean nothing to others.
_PLACES = ("data.answers", "data.features", "run.out", "drafter.start_from")

Rows = Sequence[Mapping[str, Any]]


def main() -> int:
    """Returns 1 if something is missing, or if `--check` was given and the card is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--run", type=Path, required=True, help="folder of the training run")
    parser.add_argument(
        "--earlier", type=Path, nargs="*", default=[], help="runs that this one went on from"
    )
    parser.add_argument("--answers", type=Path, required=True, help="folder of the answers")
    parser.add_argument("--evaluation", type=Path, required=True, help="of blockdraft evaluate")
    parser.add_argument("--method", help="its name there; if not given, the one of these weights")
    parser.add_argument("--sources", type=Path, default=SOURCES)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    try:
        text = card(args)
    except (UserError, OSError, tomllib.TOMLDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    file = args.checkpoint / "README.md"
    old = file.read_text("utf-8") if file.is_file() else None
    if args.check:
        print("up to date" if old == text else f"out of date: {file}")
        return int(old != text)
    file.write_text(text, "utf-8")
    print(f"written: {file}")
    return 0


def card(args: argparse.Namespace) -> str:
    """The whole text. Raises: UserError if the parts do not belong together."""
    about = tomllib.loads(args.sources.read_text("utf-8"))
    result = json.loads(args.evaluation.read_text("utf-8"))
    method = find_method(result, checkpoint_fingerprint(args.checkpoint), args.method)
    config = read_zlab(args.checkpoint)[0]
    has_bars = config.method == "dflash2"  # the plain one is its control
    recipe = json.loads(_run(args.run)[0]["recipe"])
    max_lens = recipe["data"]["max_len"], (read_meta(args.answers) or {}).get("max_tokens", "?")
    parts = [
        head(args.checkpoint),
        acceptance(result, method, about["bars"] if has_bars else {}),
        limits(result, method, config, max_lens, about["languages"]),
        training(args.run, args.earlier),
        data(args.answers, about),
        checkpoint(args.checkpoint),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def find_method(result: Mapping[str, Any], fingerprint: str, asked: str | None) -> str:
    """The method of an evaluation that ran these very weights."""
    drafters = result["provenance"]["drafter"]
    names = [
        name for name, each in drafters.items() if (each or {}).get("fingerprint") == fingerprint
    ]
    if asked is not None and asked not in names:
        raise ConfigError(
            f"{asked} of the evaluation is not this checkpoint ({fingerprint[:12]}); evaluate it"
            " again"
        )
    if not names:
        raise ConfigError(
            f"the evaluation is of other weights than {fingerprint[:12]}: evaluate this checkpoint"
        )
    return asked or names[0]


def head(folder: Path) -> list[str]:
    """Name, and what it is in two sentences."""
    config, tensors = read_zlab(folder)
    target = read_provenance(folder).get("target_name", "its target")
    name = {"dflash": "DFlash", "dflash2": "DFlash 2"}[config.method]
    num = sum(t.numel() for t in tensors.values()) / 1e6
    return [
        f"# {folder.resolve().name}",
        "",
        f"A {name} drafter of {num:.1f} M parameters for `{target}`: it drafts"
        f" {config.num_draft_tokens} tokens in one pass, of which the target keeps those it would"
        " have said itself. The text is the target's own.",
        "",
        "```sh",
        f"blockdraft generate 'Why is the sky blue?' --target {target} --drafter {config.method}",
        "```",
        "",
        "Apache-2.0. Made by `docs/write_card.py`; do not edit.",
    ]


def acceptance(result: Mapping[str, Any], method: str, bars: Mapping[str, float]) -> list[str]:
    """Tables of the greedy runs, one request at a time; the n-gram control stands beside."""
    rows = [row for row in result["rows"] if row["concurrency"] == 1 and row["temperature"] == 0]
    mine = [row for row in rows if row["method"] == method]
    if not mine:
        raise ConfigError(f"the evaluation has no greedy row of {method} at concurrency 1")
    control = {row["task"]: row for row in rows if row["method"] == "ngram"}
    where = result["provenance"]
    lines = [
        "## Acceptance",
        "",
        "Greedy, one request at a time. τ is the number of tokens that a pass of the target"
        " commits, the mean over requests. The longest repeat is the longest run of tokens that"
        f" an answer says twice, the mean over answers. {where['dtype']}, {where['kernels']}"
        f" kernels, {where['machine']['cpu']}, {where['machine']['threads']} threads,"
        f" {where['time'][:10]}.",
        "",
        "| task | prompts | τ | 95 % | τ pooled | n-gram τ | longest repeat | speed-up | bar |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_task_line(row, control.get(row["task"]), bars) for row in mine),
        "",
        "Share of drafts accepted at each position, of those all before which were accepted:",
        "",
        *_positions(mine),
    ]
    if bars:
        lines += [
            "",
            "The bar is the τ that this drafter was asked to reach before it was shipped.",
        ]
    missed = [row["task"] for row in mine if not _is_reached(row, bars)]
    if missed:
        lines += ["", f"Not reached: {', '.join(missed)}."]
    absent = sorted(bars.keys() - {row["task"] for row in mine})
    return lines + (["", f"Not measured: {', '.join(absent)}."] if absent else [])


def _task_line(
    row: Mapping[str, Any], control: Mapping[str, Any] | None, bars: Mapping[str, float]
) -> str:
    bar = bars.get(row["task"])
    word = (
        "" if bar is None else f"{bar:g} {'reached' if _is_reached(row, bars) else 'not reached'}"
    )
    interval = "{:.2f}-{:.2f}".format(*row["tau_ci95"]) if row["tau_ci95"] else "-"
    cells = [
        row["task"],
        str(row["num_prompts"]),
        f"**{_figure(row['tau'])}**",
        interval,
        _figure(row["tau_pooled"]),
        _figure(control["tau"] if control else None),
        _figure(row["mean_longest_repeat"], ".0f"),
        _figure(row["speedup"]),
        word or "-",
    ]
    return f"| {' | '.join(cells)} |"


def _is_reached(row: Mapping[str, Any], bars: Mapping[str, float]) -> bool:
    bar = bars.get(row["task"])
    return bar is None or (row["tau"] is not None and row["tau"] >= bar)


def _positions(rows: Rows) -> Iterator[str]:
    width = max(len(row["conditional_acceptance_by_position"]) for row in rows)
    yield f"| task | {' | '.join(str(i + 1) for i in range(width))} |"
    yield "|---" * (width + 1) + "|"
    for row in rows:
        found = [_figure(each) for each in row["conditional_acceptance_by_position"]]
        yield f"| {row['task']} | {' | '.join(found + ['-'] * (width - len(found)))} |"


def _figure(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def training(run: Path, earlier: Sequence[Path] = ()) -> list[str]:
    """Recipe, steps and hours of a run, and of the runs it went on from."""
    state, log = _run(run)
    steps = [row for row in log if "loss" in row]
    heldout = [row["heldout"] for row in log if "heldout" in row]
    recipe = dict(_leaves(json.loads(state["recipe"])))
    speed = _median([row["slots_per_s"] for row in steps])
    lines = [
        "## Training",
        "",
        f"{state['step']:,} of {recipe['schedule.max_steps']:,} steps of"
        f" {recipe['batch.sequences_per_step']} sequences in {hours(steps):.1f} hours"
        f" ({_figure(speed, ',.0f')} trained slots a second).",
    ]
    for before in earlier:
        found, its_log = _run(before)
        took = hours([row for row in its_log if "loss" in row])
        num = found.get("facts", {}).get("data.num_answers")
        of = "some" if num is None else f"{num:,}"
        told = f"It went on from a run of {found['step']:,} steps in {took:.1f} hours on {of} of"
        lines += ["", f"{told} the answers."]
    if heldout:
        names = ("decoded/length", "heldout/selector_length", "heldout/unary_length")
        last = {name: value for each in heldout for name, value in each.items()}
        told = [f"{name} {last[name]:.2f}" for name in names if name in last]
        lines += ["", f"Last held-out figures: {', '.join(told)}." if told else ""]
    settings = [f"{k} = {json.dumps(v)}" for k, v in sorted(recipe.items()) if k not in _PLACES]
    return [*lines, "", "```toml", *settings, "```"]


def _run(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """State and log of a run."""
    state = CheckpointFolder(folder / "checkpoints", keep=1).read_latest()
    if state is None:
        raise CheckpointError(f"{folder} holds no checkpoint of a run")
    lines = (folder / "log.jsonl").read_text("utf-8").splitlines()
    return state, [json.loads(line) for line in lines]


def hours(steps: Rows) -> float:
    """Of all parts of a run: the clock of each begins at nought."""
    total = before = 0.0
    for row in steps:
        if row["elapsed_s"] < before:
            total += before
        before = row["elapsed_s"]
    return (total + before) / 3600


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def data(answers: Path, about: Mapping[str, Any]) -> list[str]:
    """What the target was asked, and under which licence the prompts are."""
    meta, sources = read_meta(answers) or {}, about["sources"]
    counts: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    kinds: defaultdict[str, set[float]] = defaultdict(set)
    for answer in iter_answers(answers / "answers.jsonl"):
        counts[answer.source] += 1
        tokens[answer.source] += len(answer.token_ids)
        kinds[answer.source].add(answer.temperature)
    unknown = sorted(counts.keys() - sources.keys())
    if unknown:
        raise ConfigError(
            f"no licence is known of {', '.join(unknown)}; add it to the table of sources"
        )
    lines = [
        "## Data",
        "",
        f"The target's own answers, of at most {meta.get('max_tokens', '?')} tokens, to prompts of"
        f" these sets: {counts.total():,} answers, {tokens.total():,} tokens. {about['note']}",
        "",
        "| set | answers | tokens | temperatures | licence | from |",
        "|---|---|---|---|---|---|",
    ]
    for name, num in sorted(counts.items(), key=lambda item: (-tokens[item[0]], item[0])):
        each = ", ".join(f"{t:g}" for t in sorted(kinds[name]))
        known = sources[name]
        row = (name, f"{num:,}", f"{tokens[name]:,}", each, known["licence"], known["from"])
        lines.append(f"| {' | '.join(row)} |")
    return lines


def checkpoint(folder: Path) -> list[str]:
    """Shape and hashes."""
    config, tensors = read_zlab(folder)
    recorded = read_provenance(folder)
    size = (folder / "model.safetensors").stat().st_size / 1e6
    drafts = (
        f"{config.draft_vocab_size:,}" if config.draft_vocab_size else f"all {config.vocab_size:,}"
    )
    windows = sorted({"the whole context" if w is None else f"{w} rows" for w in config.windows})
    rows = {
        "layers": f"{config.num_layers} of width {config.hidden_size}",
        "block": f"{config.block_size} rows: the anchor and {config.num_draft_tokens} drafts",
        "taps": f"target layers {list(config.target_layer_ids)} of {config.num_target_layers}",
        "sees": " and ".join(windows),
        "mask token": config.mask_token_id,
        "tokens that can be drafted": drafts,
        "numbers": ", ".join(
            sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values()})
        ),
        "size": f"{size:.1f} MB",
        "weights SHA-256": f"`{checkpoint_fingerprint(folder)}`",
        "target SHA-256": f"`{recorded.get('target_fingerprint', 'not recorded')}`",
        "trained steps": recorded.get("trained_steps", "not recorded"),
    }
    if config.has_selector:
        rows["selector"] = f"rank {config.selector_rank}, best {config.selector_top_k} of each slot"
    return ["## Checkpoint", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in rows.items())]


if __name__ == "__main__":
    sys.exit(main())
