"""The page of a trace: the text coloured by cycle; each cycle opens to what it chose from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blockdraft.errors import CheckpointError
from blockdraft.report.document import THEME_BUTTON, document, escape
from blockdraft.report.facts import fact_list, flat

_NUM_HUES = 6

_JUMPS = {
    "any": "every cycle",
    "none": "nothing accepted",
    "all": "all accepted",
    "gained": "the path beat top-1",
    "lost": "top-1 would have been better",
    "missed": "refused, right token was a candidate",
    "absent": "refused, right token was no candidate",
}

#: What the scripts need of a trace; the rest is in the page's text already.
_DATA_KEYS = ("params", "method", "first", "cycles", "tokens")


def page_of_file(trace: Mapping[str, Any], path: Path) -> str:
    """The page of a trace from a file; what that lacks shows only where the page is made.

    Raises: CheckpointError naming the file.
    """
    try:
        return trace_page(trace)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is no whole trace ({error!r}); record it again") from error


def trace_page(trace: Mapping[str, Any]) -> str:
    """One HTML file that shows a trace (`docs/reference/trace_json.md`)."""
    body = f"""<main>{_header(trace)}</main>
{_controls(trace)}
<main>
<div class="text card" id="text" tabindex="0" role="region" aria-label="The answer">\
{_text(trace)}</div>
<p class="key">{_key(trace)}</p>
<section class="card" id="cycle" aria-live="polite">{_nothing(trace)}</section>
<details class="card"><summary>Provenance</summary>{fact_list(flat(trace["provenance"]))}</details>
</main>"""
    scripts = ("trace_cycle.js", "trace_lattice.js", "trace.js")
    return document(
        title=f"Trace: {str(trace['prompt'])[:60]}",
        body=body,
        styles=("trace.css",),
        scripts=scripts if trace["cycles"] else (),
        data={key: _without_pieces(key, trace[key]) for key in _DATA_KEYS},
    )


def _without_pieces(key: str, value: Any) -> Any:
    """The text stands in the page; the data need not hold it again."""
    if key != "cycles":
        return value
    return [{name: part for name, part in each.items() if name != "pieces"} for each in value]


def _header(trace: Mapping[str, Any]) -> str:
    about, counts = trace["provenance"], trace["speculation"]
    target = about.get("target", {}).get("name", "target")
    params = trace["params"]
    how = "greedy" if params["is_greedy"] else f"temperature {params['temperature']:g}"
    length = counts["mean_acceptance_length"]
    tiles = {
        "tokens": trace["completion_tokens"],
        "cycles": counts["cycles"],
        "tokens a cycle": "–" if length is None else f"{length:.2f}",
        "drafted": counts["drafted"],
        "accepted": _share(counts["accepted"], counts["drafted"]),
        "ended by": {"stop": "a stop", "length": "the limit"}.get(
            trace["finish_reason"], trace["finish_reason"]
        ),
    }
    shown = "".join(
        f"<li><b>{escape(v)}</b><span>{escape(k)}</span></li>" for k, v in tiles.items()
    )
    error = f'<p class="why">{escape(trace["error"])}</p>' if trace.get("error") else ""
    return f"""<header class="top"><div>
<h1>{escape(target)} with {escape(trace["method"])}, {how}</h1>
<p class="prompt">{escape(trace["prompt"])}</p>{error}
<ul class="tiles">{shown}</ul></div>
{THEME_BUTTON}</header>"""


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else str(part)


def _controls(trace: Mapping[str, Any]) -> str:
    if not trace["cycles"]:
        return ""
    has_lattice = any(cycle["slots"] for cycle in trace["cycles"])
    names = _JUMPS if has_lattice else {name: _JUMPS[name] for name in ("any", "none", "all")}
    jumps = "".join(f'<option value="{name}">{text}</option>' for name, text in names.items())
    return f"""<div class="bar"><div class="bar-inner"><div class="controls">
<span class="nav">
<button id="prev" class="icon" aria-label="Cycle before" title="Before (p)">◀</button>
<span id="where" aria-live="polite"></span>
<button id="next" class="icon" aria-label="Next cycle" title="Next (n)">▶</button></span>
<label><span>go through</span>
<select id="jump" aria-label="Cycles to go through">{jumps}</select></label>
<span id="count" class="soft num"></span><span class="grow"></span>
<label><span>colour by</span><select id="colour" aria-label="Colour of the text">
<option value="cycle">cycle</option><option value="length">tokens a cycle</option></select></label>
</div><canvas id="strip" aria-label="Tokens that each cycle committed" role="img"></canvas>
</div></div>"""


def _key(trace: Mapping[str, Any]) -> str:
    if not trace["cycles"]:
        return ""
    keys = (
        '<span class="keys">Keys: <kbd>←</kbd> <kbd>→</kbd> cycle by cycle,'
        " <kbd>n</kbd> <kbd>p</kbd> through the chosen kind, <kbd>Home</kbd> <kbd>End</kbd>,"
        " <kbd>t</kbd> theme.</span>"
    )
    return (
        "One colour is one pass of the target. Drafted tokens stand plain; "
        f"the <i>underlined</i> one is the target's own. {keys}"
    )


def _nothing(trace: Mapping[str, Any]) -> str:
    if trace["cycles"]:
        return '<p class="soft">This page needs JavaScript to open its cycles.</p>'
    return (
        "<p>The answer ended with its first token, which the prompt's pass gives: no cycle ran.</p>"
    )


def _text(trace: Mapping[str, Any]) -> str:
    names, first = trace["tokens"], trace["first"]
    opened = _tokens(first["ids"], first["pieces"], names, num_drafts=0)
    spans = [f'<span class="cy" title="from the prompt\'s pass">{opened}</span>']
    most = max((len(cycle["committed"]) for cycle in trace["cycles"]), default=1)
    for i, cycle in enumerate(trace["cycles"]):
        tokens = _tokens(cycle["committed"], cycle["pieces"], names, cycle["accepted"])
        depth = round(8 + 52 * len(cycle["committed"]) / max(1, most))
        spans.append(
            f'<span class="cy h{i % _NUM_HUES}" data-c="{i}" style="--n:{depth}">{tokens}</span>'
        )
    return "".join(spans)


def _tokens(
    ids: Sequence[int], pieces: Sequence[str], names: Mapping[str, str], num_drafts: int
) -> str:
    """A cycle's tokens; the one that is no draft is the target's own."""
    shown = []
    for j, (token_id, piece) in enumerate(zip(ids, pieces, strict=True)):
        text = escape(piece).replace("\n", '<s class="nl"></s>\n')
        if not piece and j == len(ids) - 1:
            name = escape(names.get(str(token_id), f"#{token_id}").strip() or f"#{token_id}")
            text = f'<s class="end" data-name="{name}"></s>'
        shown.append(text if j < num_drafts else f'<s class="own">{text}</s>')
    return "".join(shown)
