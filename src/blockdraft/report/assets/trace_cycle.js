// What one cycle says: counts, reasons, and its table of slots.

const trace = JSON.parse(document.querySelector("#data").textContent);
const cycles = trace.cycles;
const isGreedy = trace.params.is_greedy;

// Tokens of the whole answer: what was right, seen from any cycle.
const answer = [...trace.first.ids, ...cycles.flatMap(cycle => cycle.committed)];

function html(strings, ...values) {
  return strings.map((s, i) => s + (i < values.length ? values[i] : "")).join("");
}

function escapeHtml(text) {
  return text.replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
}

// White space is what tokens often differ in, so it is drawn.
function readable(id) {
  const text = trace.tokens[id] ?? `#${id}`;
  if (text === "") return `#${id}`;
  return text.replace(/ /g, "\u00b7").replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/\r/g, "\u240d");
}

function token(id, kind = "") {
  return html`<span class="tok ${kind}" title="token ${id}">${escapeHtml(readable(id))}</span>`;
}

function percent(value) {
  if (value === null || value === undefined) return "\u2013";
  const share = 100 * value;
  if (share >= 99.95 && share < 100) return ">99.9\u00a0%";
  if (share > 0 && share < 0.1) return "<0.1\u00a0%";
  return `${share.toFixed(share < 10 ? 1 : 0)}\u00a0%`;
}

function leading(flags) {
  const end = flags.indexOf(false);
  return end < 0 ? flags.length : end;
}

// Drafts that would have stood for other choices, judged by the text as it went on.
function couldHave(cycle) {
  if (!cycle.slots) return null;
  const right = answer.slice(cycle.start, cycle.start + cycle.slots.length);
  const slots = cycle.slots.slice(0, right.length);
  return {
    top1: leading(slots.map((slot, j) => slot.ids[0] === right[j])),
    oracle: leading(slots.map((slot, j) => slot.ids.includes(right[j]))),
    right,
  };
}

const ENDINGS = {
  end_token: "The end token ends the answer here.", stop_string: "A stop string ends the answer here.",
  length: "The token limit ends the answer here.", error: "The answer ends here with an error.",
  cancelled: "The answer was cancelled here.",
};

function whyStopped(cycle) {
  return html`${reason(cycle)}${cycle.ended ? " " + ENDINGS[cycle.ended] : ""}`;
}

function reason(cycle) {
  const last = cycle.committed[cycle.committed.length - 1];
  const at = cycle.accepted;
  switch (cycle.why) {
    case "nothing_drafted":
      return trace.method === "plain"
        ? html`Plain decoding: the target says ${token(last, "ok")}.`
        : html`Nothing was drafted, so the pass gives the one token that the target says: ${token(last, "ok")}.`;
    case "doubted":
      return "The target gave numbers that are not finite, so the draft was taken back; the next cycle goes without one.";
    case "cut":
      return html`Nothing was refused: the answer ends within the accepted tokens, at ${token(last, "ok")}.`;
    case "all_accepted":
      return html`All ${cycle.drafted.length} drafts stand. The pass also gives the token behind them: ${token(last, "ok")}.`;
    default:
      return refusal(cycle, at, last);
  }
}

function refusal(cycle, at, last) {
  const draft = token(cycle.drafted[at], "no");
  if (isGreedy) {
    const [best, p] = cycle.says[at][0];
    return html`Stopped at slot ${at + 1}: the draft says ${draft} (${percent(cycle.p[at])} by the target),
      but the target says ${token(best, "ok")} (${percent(p)}).`;
  }
  const q = cycle.q ? cycle.q[at] : 1;
  return html`Stopped at slot ${at + 1}: ${draft} was drawn with q = ${percent(q)}, the target gives it p = ${percent(cycle.p[at])};
    the coin ${cycle.u[at]} is not below p/q = ${(cycle.p[at] / q).toPrecision(2)}.
    Drawn in its place, from what the target has more of: ${token(last, "ok")}.`;
}

function slotTable(cycle) {
  if (!cycle.says.length) return "";
  const could = couldHave(cycle);
  const rows = cycle.says.map((says, j) => slotRow(cycle, could, says, j)).join("");
  const coin = isGreedy ? "" : "<th>q</th><th>coin</th>";
  const top1 = could ? "<th class=l>top-1 alone</th>" : "";
  return html`<div class="scroll-x"><table class="slots"><thead><tr>
    <th class=l>slot</th><th class=l>draft</th><th>p</th>${coin}${top1}
    <th class=l>the target says</th></tr></thead><tbody>${rows}</tbody></table></div>`;
}

function slotRow(cycle, could, says, j) {
  const isDraft = j < cycle.drafted.length;
  const isStanding = j < cycle.accepted;
  const isRefused = cycle.why === "rejected" && j === cycle.accepted;
  const isRead = isStanding || isRefused || (!isDraft && cycle.why !== "cut" && cycle.accepted === cycle.drafted.length);
  const kind = isStanding ? "ok" : isRefused ? "no" : "";
  const verdict = isStanding ? "\u2713" : isRefused ? "\u2717" : "";
  const draft = isDraft ? token(cycle.drafted[j], kind) : '<span class="soft">none: one more token</span>';
  const q = cycle.q ? percent(cycle.q[j]) : "1";
  const coin = isGreedy ? "" : isDraft ? html`<td class=num>${q}</td><td class=num>${isRead ? cycle.u[j].toFixed(3) : "\u2013"}</td>` : "<td></td><td></td>";
  const best = could && isDraft ? cycle.slots[j].ids[0] : null;
  const top1 = could ? html`<td class=l>${best === null ? "" : token(best, best === could.right[j] ? "ok" : "")}</td>` : "";
  const list = says.slice(0, 3).map(([id, p]) => html`${token(id)}<span class=num>${percent(p)}</span>`).join(" ");
  return html`<tr class="${isRead ? "" : "dim"}"><td class=l>${j + 1} <span class="verdict ${kind}">${verdict}</span></td><td class=l>${draft}</td>
    <td class=num>${isDraft ? percent(cycle.p[j]) : ""}</td>${coin}${top1}<td class="l says">${list}</td></tr>`;
}
