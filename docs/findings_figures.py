"""Figures of docs/findings: selector.md, attention.md and convolution.md."""

from __future__ import annotations

from typing import Any

NAMES = {
    "top1": "each slot's best on its own",
    "walk": "the selector's walk",
    "beam4": "beam of 4",
    "beam16": "beam of 16",
    "viterbi": "Viterbi: greatest sum of scores",
    "likeliest": "Viterbi on log q: likeliest block",
    "longest": "greatest expected accepted length",
    "oracle": "the right one, if it is there",
}


def findings_candidates(result: dict[str, Any]) -> str:
    """Acceptance and time by the number of candidates."""
    rows, times = result["rows"], result["rows"]["times"]
    lines = [
        f"{_asked(result)}; blocks of {rows['num_draft_tokens']} drafted tokens; trained with and "
        f"shipped with {rows['selector_top_k']} candidates; τ pooled over "
        f"{rows['num_answers']} answers, with 95 % intervals by prompt; medians of "
        f"{times['select_ms']['2']['num']} alternating rounds, one row "
        "([JSON](../../benchmarks/results/findings_selector.json)).",
        "",
        "| candidates | τ of the walk | against the shipped number | "
        "τ if the right one were taken | drafter's pass, ms | choosing, ms |",
        "|---|---|---|---|---|---|",
    ]
    for n in sorted(map(int, rows["candidates"])):
        own = rows["candidates"][str(n)]
        draft, select = (_ms(times[kind], str(n)) for kind in ("pass_ms", "select_ms"))
        lines.append(
            f"| {n} | {_tau(own['walk'])} | {_ratio(own['walk'])} | "
            f"{own['oracle']['tau_pooled']:.2f} | {draft} | {select} |"
        )
    checked = rows["decoding"]
    pairs = ", ".join(f"{n}: {checked[n]['tau_pooled']:.3f}" for n in sorted(checked, key=int))
    replayed = ", ".join(
        f"{rows['candidates'][n]['walk']['tau_pooled']:.3f}" for n in sorted(checked, key=int)
    )
    texts = sum(each["num_different_texts"] for each in checked.values())
    lines += [
        "",
        f"Decoding itself, with drafters opened with so many candidates, gave τ {pairs}; followed "
        f"through the texts: {replayed}. Texts that differ: {texts}.",
    ]
    return "\n".join(lines) + "\n"


def findings_choosers(result: dict[str, Any]) -> str:
    """Acceptance and time of ways to choose."""
    rows, times = result["rows"], result["rows"]["times"]
    top_k = rows["selector_top_k"]
    tasks = list(rows["choosers"]["walk"]["tau_pooled_by_task"])
    lines = [
        f"| among {top_k} candidates | τ | against the walk | {' | '.join(tasks)} | PyTorch, ms |",
        f"|---|---|---|{'---|' * len(tasks)}---|",
    ]
    for name, own in rows["choosers"].items():
        by_task = " | ".join(f"{own['tau_pooled_by_task'][task]:.2f}" for task in tasks)
        time = _ms(times["choose_ms"], name)
        lines.append(f"| {NAMES[name]} | {_tau(own)} | {_ratio(own)} | {by_task} | {time} |")
    edges = _ms(times["edges_ms"], str(top_k))
    lines += [
        "",
        f"Scoring all edges of a block beforehand takes {edges} ms; the walk in C, which scores "
        f"only those it passes, takes {_ms(times['select_ms'], str(top_k))} ms with everything "
        "around it.",
    ]
    return "\n".join(lines) + "\n"


def findings_repeats(result: dict[str, Any]) -> str:
    """What the selector adds where the text repeats itself, and where not."""
    lines = [
        "| next tokens | cycles | τ, best on its own | τ, walk | walk over best on its own | "
        "τ, right one if there | of the headroom | τ, n-gram lookup |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n, classes in result["rows"]["repeats"].items():
        for kind, label in (("repeated", f"{n} or more repeat"), ("new", f"fewer than {n} repeat")):
            own = classes[kind]
            if not own["cycles"]:
                continue
            share = own["headroom_recovered"]
            lines.append(
                f"| {label} | {own['cycles']} | {own['top1_tau']:.2f} | {own['walk_tau']:.2f} | "
                f"{own['walk_over_top1']:.3f}{_interval(own['walk_over_top1_ci95'])} | "
                f"{own['oracle_tau']:.2f} | {'-' if share is None else f'{share:.0%}'} | "
                f"{own['ngram_tau']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def findings_attention(result: dict[str, Any]) -> str:
    """Attention of the drafted rows by checkpoint and layer."""
    lines = [
        f"{_asked(result)}; mean over heads, drafted rows and cycles "
        "([JSON](../../benchmarks/results/findings_attention.json)).",
        "",
        "| drafter | layer | own block | of the first slot | of the last slot | itself | "
        "the anchor's row | other slots | context: as many rows just before | older |",
        f"|---|{'---|' * 9}",
    ]
    for row in result["rows"]:
        name = f"{row['drafter']} ({'with' if row['has_convolution'] else 'without'} convolution)"
        layers = zip(row["layers"], row["layers_by_row"], strict=True)
        for i, (own, (_, *slots)) in enumerate(layers):
            parts = (own[part] for part in ("itself", "anchor", "slots", "recent", "older"))
            values = (_block(own), _block(slots[0]), _block(slots[-1]), *parts)
            first, *others = (f"{value:.1%}" for value in values)
            lines.append(f"| {name} | {i + 1} | **{first}** | {' | '.join(others)} |")
    lines.append("")
    for row in result["rows"]:
        width, context = len(row["layers_by_row"][0]), row["mean_context_len"]
        lines.append(
            f"{row['drafter']}: {row['num_blocks']} blocks, {context:.0f} rows of context on "
            f"average. If all rows were looked at alike, the block's {width} would have "
            f"{width / (width + context):.1%}."
        )
    return "\n".join(lines) + "\n"


CHOICES = {
    "unary": "each slot's best on its own",
    "selector": "the selector's, true token before it",
    "oracle": "the right one, if it is there",
}


def findings_convolution(result: dict[str, Any]) -> str:
    """Acceptance by block size and taps of the convolutions."""
    rows = sorted(
        result["rows"], key=lambda row: (row["block_size"], row["seed"], row["conv_kernel_size"])
    )
    base = result["settings"]["base_kernel_size"]
    lines = [
        *_convolution_head(result, rows),
        "",
        f"| block | taps | rows back | seed | of the convolutions, K | slots, M | minutes | "
        f"loss | τ, best on its own | over {base} taps | τ, selector | over {base} taps | "
        f"τ, right one if there | τ, decoding | over {base} taps |",
        f"|{'---|' * 15}",
        *(_convolution_row(row) for row in rows),
        "",
        "What is right in a slot, by its place in the block, on the same held-out blocks:",
        "",
        *_convolution_positions(rows),
    ]
    texts = len({row["decoded"]["texts_sha256"] for row in rows})
    same = "All drafters wrote the same texts." if texts == 1 else f"{texts} sets of texts differ."
    return "\n".join([*lines, "", same]) + "\n"


def _convolution_head(result: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    about, asked = result["provenance"], result["settings"]
    recipe, first = asked["recipe"], rows[0]
    start = recipe["drafter"]["start_from"] or "the target's last layers"
    whole = first["training"]["num_parameters"] - first["training"]["num_conv_parameters"]
    return [
        f"Drafters of {about['target']['name']}: {recipe['drafter']['num_layers']} layers, "
        f"{whole / 1e6:.1f} M parameters without their convolutions, drafting "
        f"{recipe['drafter']['draft_vocab_size']:,} tokens, started from {start}; "
        f"{asked['steps']} steps of {recipe['batch']['sequences_per_step']} answers with at most "
        f"{recipe['data']['num_anchors']} blocks each, {recipe['optimizer']['name']}, "
        f"{recipe['run']['precision']}, {first['training']['num_training']:,} answers "
        f"({recipe['data']['features']}). Held out: {first['heldout']['num_blocks']:,} blocks of "
        f"{first['heldout']['num_answers']} answers; {asked['num_decoded']} of them decoded anew, "
        f"greedily, at most {asked['tokens']} tokens. 95 % intervals by answer "
        "([JSON](../../benchmarks/results/findings_convolution.json)).",
    ]


def _convolution_row(row: dict[str, Any]) -> str:
    trained, held, decoded = row["training"], row["heldout"], row["decoded"]
    cells = [
        *(str(row[name]) for name in ("block_size", "conv_kernel_size", "reach", "seed")),
        f"{trained['num_conv_parameters'] / 1e3:.0f}",
        f"{trained['num_slots'] / 1e6:.2f}",
        f"{trained['wall_s'] / 60:.1f}",
        f"{held['loss']:.3f}",
    ]
    for name in ("unary", "selector"):
        cells += [_length(held[name]), _over_base(held[name])]
    cells += [_length(held["oracle"])]
    cells += [f"{decoded['tau_pooled']:.3f}{_interval(decoded['tau_pooled_ci95'], 2)}"]
    return f"| {' | '.join([*cells, _over_base(decoded)])} |"


def _convolution_positions(rows: list[dict[str, Any]]) -> list[str]:
    width = max(row["block_size"] for row in rows) - 1
    lines = [
        f"| block | taps | seed | taken | {' | '.join(map(str, range(1, width + 1)))} |",
        f"|{'---|' * (width + 4)}",
    ]
    for choice, label in CHOICES.items():
        for row in rows:
            shares = [f"{share:.1%}" for share in row["heldout"][choice]["right_by_position"]]
            cells = [*shares, *[""] * (width - len(shares))]
            names = (row["block_size"], row["conv_kernel_size"], row["seed"], label)
            lines.append(f"| {' | '.join([*map(str, names), *cells])} |")
    return lines


def _length(own: dict[str, Any]) -> str:
    return f"{own['length']:.3f}{_interval(own['length_ci95'], 2)}"


def _over_base(own: dict[str, Any]) -> str:
    ratio = own["over_base"]
    return "-" if ratio is None else f"{ratio:.3f}{_interval(own['over_base_ci95'])}"


def _block(row: dict[str, float]) -> float:
    return row["itself"] + row["anchor"] + row["slots"]


def _asked(result: dict[str, Any]) -> str:
    prompts, asked = result["provenance"]["prompts"], result["settings"]
    about = result["provenance"]["drafter"]
    names = ", ".join(
        f"{each['source']} ({each['fingerprint'][:8]})"
        for each in (about if isinstance(about, list) else [about])
    )
    return (
        f"{names}; the first turns of {sum(map(len, prompts.values()))} prompts of "
        f"{', '.join(prompts)}, greedy, at most {asked['tokens']} tokens, {asked['dtype']}"
    )


def _tau(own: dict[str, Any]) -> str:
    return f"{own['tau_pooled']:.3f}{_interval(own['tau_pooled_ci95'], 2)}"


def _ratio(own: dict[str, Any]) -> str:
    return f"{own['over_shipped']:.3f}{_interval(own['over_shipped_ci95'])}"


def _interval(ends: list[float] | None, digits: int = 3) -> str:
    if ends is None or ends[0] == ends[1]:
        return ""
    return f" ({ends[0]:.{digits}f}-{ends[1]:.{digits}f})"


def _ms(cells: dict[str, dict[str, float]], name: str) -> str:
    return f"{cells[name]['median']:.3f}" if name in cells else "-"
