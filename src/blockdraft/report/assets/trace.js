// The page: which cycle is open, how one gets to another, and what is drawn of it.

const spans = [...document.querySelectorAll("#text .cy[data-c]")];
const panel = document.querySelector("#cycle");
const strip = document.querySelector("#strip");
const jump = document.querySelector("#jump");
let open = -1;
let lattice = null;

// Kinds of cycles that one may want to look through.
const KINDS = {
  any: () => true,
  none: c => c.drafted.length > 0 && c.accepted === 0,
  all: c => c.why === "all_accepted",
  gained: c => { const could = couldHave(c); return could !== null && c.accepted > could.top1; },
  lost: c => { const could = couldHave(c); return could !== null && c.accepted < could.top1; },
  missed: c => { const could = couldHave(c); return could !== null && c.why === "rejected" && could.oracle > c.accepted; },
  absent: c => { const could = couldHave(c); return could !== null && c.why === "rejected" && could.oracle === c.accepted; },
};

function show(index, isScrolled = true) {
  if (!cycles.length) return;
  open = Math.max(0, Math.min(cycles.length - 1, index));
  document.querySelector("#text .on")?.classList.remove("on");
  const span = spans[open];
  span.classList.add("on");
  if (isScrolled) scrollWithin(span);
  document.querySelector("#where").textContent = `cycle ${open + 1} of ${cycles.length}`;
  document.querySelector("#prev").disabled = open === 0;
  document.querySelector("#next").disabled = open === cycles.length - 1;
  render();
  drawStrip();
}

// Only the box of the text scrolls: the page must not jump under the reader.
function scrollWithin(span) {
  const box = document.querySelector("#text");
  const top = span.getBoundingClientRect().top - box.getBoundingClientRect().top;
  if (top < 10 || top > box.clientHeight - 40) box.scrollTop += top - box.clientHeight / 2;
}

function render() {
  const cycle = cycles[open];
  const could = couldHave(cycle);
  lattice = cycle.slots ? new Lattice(cycle) : null;
  const counts = [`${cycle.drafted.length} drafted`, `${cycle.accepted} accepted`, `${cycle.committed.length} committed`];
  const other = could ? html`<small>the text goes on like top-1 alone for ${could.top1}, like the walked path for ${cycle.accepted}, within the candidates for ${could.oracle}</small>` : "";
  panel.innerHTML = html`<h2>Cycle ${open + 1} <small>${counts.join(" \u00b7 ")}</small>${other}</h2>
    <p class="why">${whyStopped(cycle)}</p>${slotTable(cycle)}${lattice ? latticePart(cycle) : noLattice(cycle)}`;
  if (lattice) redraw();
}

function latticePart(cycle) {
  const pairs = cycle.pair
    ? " A candidate's share depends on the token before it: choose any other one (click, or arrow keys and Enter) to see where the walk goes from there."
    : " This method has no selector: each slot is chosen by itself.";
  return html`<section class="lattice"><h3>Candidates</h3>
    <p>Each column is a slot, the drafter's own best on top. The bar is a candidate's share after the walked predecessor;
    the line is the walked path, green where it stands, red where it was refused; <b>\u25c6</b> is the token the text goes on with.${pairs}</p>
    <div class="scroll-x" id="drawing"></div><p id="reading" aria-live="polite"></p></section>`;
}

function noLattice(cycle) {
  if (!cycle.drafted.length) return "";
  return '<p class="soft">This method proposes one sequence, without scores or other candidates: each q is 1.</p>';
}

function redraw() {
  const box = document.querySelector("#drawing");
  const hadFocus = box.contains(document.activeElement);
  const left = box.scrollLeft;
  box.innerHTML = drawLattice(lattice);
  box.scrollLeft = left;
  const svg = box.firstElementChild;
  if (hadFocus) svg.focus({ preventScroll: true });
  svg.addEventListener("keydown", moveInLattice);
  svg.addEventListener("click", event => {
    const cell = event.target.closest("[data-cell]");
    if (cell) choose(...cell.dataset.cell.split(",").map(Number));
  });
  svg.addEventListener("pointerover", event => {
    const cell = event.target.closest("[data-cell]");
    if (cell) read(...cell.dataset.cell.split(",").map(Number));
  });
  const last = Math.min(cycles[open].accepted, lattice.slots.length - 1);
  read(...(lattice.at ?? lattice.pin ?? [last, Math.max(0, lattice.path[last])]));
}

function read(slot, candidate) {
  document.querySelector("#reading").innerHTML = lattice.reading(slot, candidate);
}

function choose(slot, candidate) {
  const isSame = lattice.pin && lattice.pin[0] === slot && lattice.pin[1] === candidate;
  lattice.pin = isSame || lattice.path[slot] === candidate ? null : [slot, candidate];
  lattice.at = [slot, candidate];
  redraw();
}

function moveInLattice(event) {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const move = moves[event.key];
  if (move) {
    const [slot, c] = lattice.at ?? [0, lattice.path[0] - move[1]];
    const to = Math.max(0, Math.min(lattice.slots.length - 1, slot + move[0]));
    lattice.at = [to, Math.max(0, Math.min(lattice.size - 1, c + move[1]))];
  } else if (event.key === "Enter" || event.key === " ") {
    if (lattice.at) choose(...lattice.at);
  } else if (event.key === "Escape") {
    lattice.pin = lattice.at = null;
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
  redraw();
}

function seek(step) {
  const wanted = KINDS[jump.value];
  for (let i = open + step; i >= 0 && i < cycles.length; i += step) {
    if (wanted(cycles[i])) return show(i);
  }
}

// --- the strip: one bar a cycle, as high as what it committed ---

function drawStrip() {
  const scale = devicePixelRatio || 1, width = strip.clientWidth, height = strip.clientHeight;
  strip.width = width * scale;
  strip.height = height * scale;
  const pen = strip.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name);
  const most = Math.max(1, ...cycles.map(c => c.committed.length));
  const step = width / cycles.length, bar = Math.max(0.6, step - (step > 3 ? 1 : 0));
  const wanted = KINDS[jump.value];
  cycles.forEach((cycle, i) => {
    const tall = cycle.committed.length / most * (height - 4);
    pen.fillStyle = colour(i === open ? "--ink" : wanted(cycle) ? "--s1" : "--line");
    pen.fillRect(i * step, height - tall, bar, tall);
  });
  if (open >= 0) {
    pen.fillStyle = colour("--ink");
    pen.fillRect(open * step - 0.5, 0, Math.max(2, bar), 3);
  }
}

function fromStrip(event) {
  const box = strip.getBoundingClientRect();
  show(Math.floor((event.clientX - box.left) / box.width * cycles.length));
}

strip.addEventListener("pointerdown", event => { strip.setPointerCapture(event.pointerId); fromStrip(event); });
strip.addEventListener("pointermove", event => { if (event.buttons) fromStrip(event); });
new ResizeObserver(drawStrip).observe(strip);
document.addEventListener("themechange", drawStrip);

// --- controls ---

document.querySelector("#text").addEventListener("click", event => {
  const span = event.target.closest(".cy[data-c]");
  if (span) show(Number(span.dataset.c), false);
});
document.querySelector("#prev").addEventListener("click", () => seek(-1));
document.querySelector("#next").addEventListener("click", () => seek(1));
jump.addEventListener("change", () => {
  const wanted = KINDS[jump.value];
  const count = cycles.filter(wanted).length;
  document.querySelector("#count").textContent = jump.value === "any" ? "" : `${count} of ${cycles.length}`;
  if (count && !wanted(cycles[open])) show(cycles.findIndex(wanted));
  drawStrip();
});
document.querySelector("#colour").addEventListener("change", event => {
  document.querySelector("#text").classList.toggle("by-length", event.target.value === "length");
});

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input")) return;
  const keys = {
    ArrowLeft: () => show(open - 1), k: () => show(open - 1), ArrowRight: () => show(open + 1), j: () => show(open + 1),
    Home: () => show(0), End: () => show(cycles.length - 1), n: () => seek(1), p: () => seek(-1),
    PageUp: () => show(open - 10), PageDown: () => show(open + 10), t: toggleTheme,
  };
  const act = keys[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// A link may name a cycle: page.html#17
const named = Number(location.hash.slice(1));
show(Number.isInteger(named) && named > 0 ? named - 1 : 0, named > 0);
