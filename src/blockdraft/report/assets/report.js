// Which charts and methods are shown; sorting and copying tables.

const choices = { t: document.querySelector("#temperature"), c: document.querySelector("#concurrency") };

// A chart without a temperature or concurrency of its own is shown for every choice.
function showChosen() {
  for (const figure of document.querySelectorAll("figure")) figure.hidden = isOther(figure);
  for (const row of document.querySelectorAll("tr[data-t]")) row.hidden = !isAll.checked && isOther(row);
}

function isOther(part) {
  return Object.entries(choices).some(([key, select]) =>
    select && part.dataset[key] !== undefined && part.dataset[key] !== select.value);
}

const isAll = document.querySelector("#all");
isAll.parentElement.hidden = !choices.t && !choices.c;
isAll.addEventListener("change", showChosen);
Object.values(choices).forEach(select => select?.addEventListener("change", showChosen));
showChosen();

// Hidden methods leave their place, so that the others do not move.
for (const chip of document.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => {
    const isShown = chip.getAttribute("aria-pressed") !== "true";
    chip.setAttribute("aria-pressed", isShown);
    for (const mark of document.querySelectorAll(`main .${chip.dataset.key}`)) {
      mark.classList.toggle("off", !isShown);
    }
  });
}

function valueOf(row, column) {
  const raw = row.cells[column].dataset.v;
  const number = parseFloat(raw);
  return raw === "" ? null : Number.isNaN(number) ? raw : number;
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);  // what was not measured is last
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

function sortBy(head) {
  const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
  const isUp = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
  const rows = [...body.rows].map(row => [valueOf(row, column), row]);
  rows.sort(([a], [b]) => (a === null || b === null || isUp ? compare(a, b) : -compare(a, b)));
  body.append(...rows.map(([, row]) => row));
}

function tsvOf(table) {
  const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
  const rows = [...table.tBodies[0].rows].filter(row => row.offsetParent !== null);
  const lines = rows.map(row => [...row.cells].map(cell => cell.dataset.v));
  return [heads, ...lines].map(line => line.join("\t")).join("\n") + "\n";
}

document.addEventListener("click", async event => {
  const sort = event.target.closest(".sort");
  if (sort) sortBy(sort.closest("th"));
  const copy = event.target.closest(".copy");
  if (!copy) return;
  await copyText(tsvOf(copy.closest("section").querySelector("table")));
  copy.textContent = "Copied";
  setTimeout(() => { copy.textContent = "Copy as TSV"; }, 1500);
});
