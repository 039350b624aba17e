"use strict";
const page = JSON.parse(document.getElementById("charts").textContent);
const views = {}, drawing = {};

function rowsOf(columns) {
  const names = Object.keys(columns);
  if (!names.length) return [];
  return columns[names[0]].map((_, place) => Object.fromEntries(names.map((name) => [name, columns[name][place]])));
}

const rows = Object.fromEntries(Object.entries(page.rows).map(([name, columns]) => [name, rowsOf(columns)]));

// Expressions are interpreted ("ast"), so that the page needs no permission to run texts as code.
const OPTIONS = { mode: "vega-lite", renderer: "svg", actions: false, ast: true };

function draw(name) {
  drawing[name] ??= (async () => {
    const { rows: data, spec } = page.charts[name];
    const { view } = await vegaEmbed(document.getElementById(name), { ...spec, datasets: { rows: rows[data] } }, OPTIONS);
    views[name] = view;
    const svg = document.querySelector(`#${name} svg`);
    svg.setAttribute("aria-hidden", "true");  // the element around it says what it shows
  })();
  return drawing[name];
}

async function drawShown() {
  for (const node of document.querySelectorAll(".chart")) {
    if (!node.closest("[hidden]")) await draw(node.id);
  }
  document.body.dataset.drawn = "all";
}

for (const choice of document.querySelectorAll(".tabs:not(.theme) input")) {
  choice.addEventListener("change", () => {
    for (const other of document.getElementsByName(choice.name)) {
      document.getElementById(other.value).hidden = !other.checked;
    }
    delete document.body.dataset.drawn;
    drawShown();
  });
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const themes = document.querySelectorAll(".theme input");
function remembered() {
  try { return localStorage.getItem("paceline-theme") ?? "auto"; } catch { return "auto"; }
}
function remember(theme) {
  try { localStorage.setItem("paceline-theme", theme); } catch { /* a page without storage follows the system */ }
}
function show(theme) {
  document.documentElement.dataset.theme = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
}
for (const choice of themes) {
  choice.checked = choice.value === remembered();
  choice.addEventListener("change", () => { remember(choice.value); show(choice.value); });
}
dark.addEventListener("change", () => show(remembered()));
show(remembered());
addEventListener("beforeprint", () => show("light"));
addEventListener("afterprint", () => show(remembered()));

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(code);
    try { await navigator.clipboard.writeText(code.textContent); } catch { document.execCommand("copy"); }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });
}

const MOVES = {
  in: ([from, to]) => [from + (to - from) / 4, to - (to - from) / 4],
  out: ([from, to]) => [from - (to - from) / 2, to + (to - from) / 2],
  left: ([from, to]) => [from - (to - from) / 4, to - (to - from) / 4],
  right: ([from, to]) => [from + (to - from) / 4, to + (to - from) / 4],
};
for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", () => {
    const view = views[button.dataset.of], move = MOVES[button.dataset.zoom];
    if (!view) return;
    view.signal(`zoom_${button.dataset.field}`, move ? move(view.scale("x").domain()) : null).runAsync();
  });
}

drawShown();
