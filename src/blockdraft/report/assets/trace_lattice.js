// The candidates of one cycle as columns; what each predecessor adds is decoded when it is looked at.

const CELL = { width: 112, height: 22, gap: 34, left: 92, top: 36 };

class Lattice {
  constructor(cycle) {
    this.cycle = cycle;
    this.slots = cycle.slots;
    this.size = this.slots[0].ids.length;
    this.pair = cycle.pair ? unpack(cycle.pair) : null;
    this.path = cycle.drafted.map((id, j) => this.slots[j].ids.indexOf(id));
    this.could = couldHave(cycle);
    this.pin = null;   // [slot, candidate]: the walk is shown again from there
    this.at = null;    // the candidate under the keys
  }

  extra(slot, before, candidate) {
    return this.pair ? this.pair(slot, slot ? before : 0, candidate, this.size) : 0;
  }

  score(slot, before, candidate) {
    return this.slots[slot].unary[candidate] + this.extra(slot, before, candidate);
  }

  // Softmax over a slot's candidates after one predecessor.
  shares(slot, before) {
    const scores = this.slots[slot].ids.map((_, c) => this.score(slot, before, c));
    const most = Math.max(...scores);
    const weights = scores.map(score => Math.exp(score - most));
    const sum = weights.reduce((a, b) => a + b);
    return weights.map(weight => weight / sum);
  }

  // The path of the draft, or the best one from the pinned candidate on.
  walk() {
    if (!this.pin) return this.path;
    const [slot, candidate] = this.pin;
    const walk = [...this.path.slice(0, slot), candidate];
    for (let s = slot + 1; s < this.slots.length; s++) {
      const shares = this.shares(s, walk[s - 1]);
      walk.push(shares.indexOf(Math.max(...shares)));
    }
    return walk;
  }

  stateOf(slot) {
    if (slot < this.cycle.accepted) return "";
    return this.cycle.why === "rejected" && slot === this.cycle.accepted ? "refused" : "unread";
  }

  reading(slot, c) {
    const walk = this.walk();
    const { ids, unary, p } = this.slots[slot];
    const before = slot ? walk[slot - 1] : 0;
    const from = slot ? this.slots[slot - 1].ids[before] : this.cycle.anchor;
    const score = this.pair
      ? html`own score ${unary[c].toFixed(2)}, after ${token(from)} ${signed(this.extra(slot, before, c))}: ${this.score(slot, before, c).toFixed(2)}`
      : html`score ${unary[c].toFixed(2)}`;
    const share = percent(this.shares(slot, before)[c]);
    return html`Slot ${slot + 1}, candidate ${c + 1}: ${token(ids[c])} &middot; ${score} &middot;
      ${share} among the candidates${p ? html` &middot; the target gives it ${percent(p[c])}` : ""}`;
  }
}

function signed(value) {
  return (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(2);
}

function unpack({ step, data }) {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return (slot, before, c, size) => step * view.getInt16(2 * ((slot * size + before) * size + c), true);
}

function place(slot, row) {
  return [CELL.left + slot * (CELL.width + CELL.gap), CELL.top + row * (CELL.height + 3)];
}

function edge(fromSlot, fromRow, toRow, kind, style = "") {
  const [x0, y0] = fromSlot < 0 ? [CELL.left - CELL.gap, CELL.top + 8] : place(fromSlot, fromRow);
  const [x1, y1] = place(fromSlot + 1, toRow);
  const start = fromSlot < 0 ? x0 : x0 + CELL.width;
  const middle = (start + x1) / 2, half = CELL.height / 2;
  const from = fromSlot < 0 ? y0 + 3 : y0 + half;
  return `<path class="edge ${kind}" ${style} d="M${start} ${from}C${middle} ${from} ${middle} ${y1 + half} ${x1} ${y1 + half}"/>`;
}

function drawLattice(lattice) {
  const { slots, cycle } = lattice;
  const width = CELL.left + slots.length * (CELL.width + CELL.gap) - CELL.gap + 4;
  const height = CELL.top + lattice.size * (CELL.height + 3) + 2;
  const walk = lattice.walk();
  const parts = [...edges(lattice, walk), anchor(cycle)];
  slots.forEach((slot, s) => {
    parts.push(head(lattice, s));
    const shares = lattice.shares(s, s ? walk[s - 1] : 0);
    slot.ids.forEach((_, c) => parts.push(cell(lattice, walk, s, c, shares[c])));
  });
  return `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" tabindex="0" role="application"
    aria-label="Candidates of each slot; arrow keys move, Enter follows the walk from a candidate">${parts.join("")}</svg>`;
}

function edges(lattice, walk) {
  const found = [];
  const looked = lattice.at ?? lattice.pin;
  if (looked && lattice.pair && looked[0] + 1 < lattice.slots.length) {
    lattice.shares(looked[0] + 1, looked[1]).forEach((share, c) => {
      if (share > 0.004) found.push(edge(looked[0], looked[1], c, "", `stroke-width="${(0.6 + 5 * share).toFixed(2)}" opacity="${(0.15 + 0.6 * share).toFixed(2)}"`));
    });
  }
  lattice.path.forEach((row, s) => found.push(edge(s - 1, s ? lattice.path[s - 1] : 0, row, `walk ${lattice.stateOf(s)}`)));
  if (lattice.pin) {
    for (let s = lattice.pin[0]; s < walk.length; s++) found.push(edge(s - 1, s ? walk[s - 1] : 0, walk[s], "again"));
  }
  return found;
}

function anchor(cycle) {
  return `<g><text class="head" x="0" y="12">anchor</text><text x="0" y="${CELL.top + 15}" fill="currentColor">${escapeHtml(clip(readable(cycle.anchor), 8))}</text></g>`;
}

function head(lattice, slot) {
  const [x] = place(slot, 0);
  const right = lattice.could.right[slot];
  const isKnown = right !== undefined;
  const isIn = isKnown && lattice.slots[slot].ids.includes(right);
  const note = isKnown && !isIn ? `without ${readable(right)}` : "";
  return `<text class="head" x="${x}" y="12">slot ${slot + 1}</text><text class="head missing" x="${x}" y="27" font-size="10.5">${escapeHtml(clip(note, 17))}</text>`;
}

function cell(lattice, walk, slot, c, share) {
  const [x, y] = place(slot, c);
  const { ids } = lattice.slots[slot];
  const kinds = ["cell"];
  if (lattice.path[slot] === c) kinds.push("path", lattice.stateOf(slot));
  if (lattice.pin && walk[slot] === c && slot >= lattice.pin[0]) kinds.push("pin");
  if (lattice.at && lattice.at[0] === slot && lattice.at[1] === c) kinds.push("at");
  const isRight = lattice.could.right[slot] === ids[c];
  const mark = isRight ? `<text class="says" x="${x + CELL.width - 6}" y="${y + 15.5}" text-anchor="end">\u25c6</text>` : "";
  return `<g class="${kinds.join(" ")}" data-cell="${slot},${c}"><rect class="box" x="${x}" y="${y}" width="${CELL.width}" height="${CELL.height}" rx="4"/>
    <rect class="share" x="${x + 1}" y="${y + 1}" width="${(share * (CELL.width - 2)).toFixed(1)}" height="${CELL.height - 2}" rx="3"/>
    <text x="${x + 6}" y="${y + 15.5}">${escapeHtml(clip(readable(ids[c]), 12))}</text>${mark}</g>`;
}

function clip(text, most) {
  const letters = [...text];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "\u2026" : text;
}
