// Shared by all pages: the theme button, tips for marks, copying.

function toggleTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  document.dispatchEvent(new Event("themechange"));
}

const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);

function showTip(mark, x, y) {
  tip.textContent = mark.dataset.tip;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(x + 14, innerWidth - box.width - 8);
  const top = y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

document.addEventListener("pointermove", event => {
  const mark = event.target.closest("[data-tip]");
  if (mark) showTip(mark, event.clientX, event.clientY);
  else tip.hidden = true;
});
document.addEventListener("pointerdown", event => {  // a finger does not hover
  const mark = event.target.closest("[data-tip]");
  if (mark) showTip(mark, event.clientX, event.clientY);
});
document.addEventListener("scroll", () => { tip.hidden = true; }, true);

// A page opened as a file may have no clipboard, so the old way is kept as the second.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

document.querySelector("#theme")?.addEventListener("click", toggleTheme);
