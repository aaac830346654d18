"use strict";
// Draws every figure in the colours of the page, and again when the reader turns to dark or light, or prints.
const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
  const out = {
    ...layout,
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 13 },
    hoverlabel: { bgcolor: colour("--panel"), font: { color: colour("--ink") }, align: "left" },
  };
  for (const key of ["xaxis", "yaxis"]) {
    out[key] = { ...axis, ...layout[key], title: { ...layout[key].title, font: { size: 13 } } };
  }
  return out;
}

const boxes = figures.map((_, i) => document.getElementById(`figure-${i}`));
const drawn = new Set();

// What is folded up has no size yet: its figures are drawn when it is opened.
function draw(within = document.body) {
  boxes.forEach((box, i) => {
    if (!within.contains(box) || box.closest("details:not([open])") !== null) return;
    Plotly.react(box, figures[i].data, themed(figures[i].layout), { responsive: true, displayModeBar: false });
    if (drawn.has(box)) return;
    drawn.add(box);
    addLegend(box, figures[i].data);
    watch(box, figures[i]);
  });
}

// A legend of buttons: each hides and shows what it names.
function addLegend(box, data) {
  const group = (trace) => trace.legendgroup || trace.name;
  const named = data.filter((trace) => trace.name && trace.showlegend !== false);
  if (named.length < 2) return;
  for (const trace of named) {
    const button = document.createElement("button");
    button.type = "button";
    button.ariaPressed = "true";
    button.innerHTML = swatch(trace);
    button.append(trace.name.replaceAll("<br>", " ").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&"));
    if (trace.meta) button.append(" ", Object.assign(document.createElement("small"), { textContent: trace.meta }));
    button.addEventListener("click", () => {
      const shown = button.ariaPressed !== "true";
      button.ariaPressed = String(shown);
      for (const each of data) if (group(each) === group(trace)) each.visible = shown;
      draw(box);
    });
    const item = document.createElement("li");
    item.append(button);
    box.parentElement.querySelector(".legend").append(item);
  }
}

function swatch({ mode = "lines", line = {}, marker = {}, fill }) {
  const colour = line.color || marker.color;
  const dashes = { dash: "7 3", dot: "2 3" }[line.dash] || "none";
  const hollow = String(marker.symbol).endsWith("open");
  const shapes = {
    square: '<rect x="11" y="3" width="8" height="8" ',
    "triangle-up": '<path d="M10 11L15 2L20 11Z" ',
  };
  const point = `${shapes[marker.symbol] || '<circle cx="15" cy="7" r="4" '} fill="${hollow ? "none" : colour}" stroke="${colour}" stroke-width="1.5"/>`;
  const area = fill && fill !== "none" ? `<rect y="7" width="30" height="7" fill="${colour}" fill-opacity=".4"/>` : "";
  const stroke = `<path d="M0 7H30" stroke="${colour}" stroke-width="2" stroke-dasharray="${dashes}"/>`;
  return `<svg aria-hidden="true">${area}${mode.includes("lines") ? stroke : ""}${mode.includes("markers") ? point : ""}</svg>`;
}

// Points that have a picture show it beside the pointer.
const shown = document.getElementById("picture");
const pictures = shown ? JSON.parse(document.getElementById("pictures").textContent) : [];

function watch(box, figure) {
  if (!shown || !figure.data.some((trace) => trace.customdata)) return;
  box.on("plotly_hover", show);
  box.on("plotly_unhover", () => { shown.hidden = true; });
}

function show(event) {
  const number = event.points[0].customdata;
  if (number === undefined || number === null) return;
  shown.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(pictures[number]);
  const { clientX, clientY } = event.event;
  shown.style.left = `${Math.max(0, Math.min(clientX + 14, window.innerWidth - 190))}px`;
  shown.style.top = `${Math.max(0, clientY - 190)}px`;
  shown.hidden = false;
}

// A link to a folded part opens it.
function unfold() {
  const part = location.hash.startsWith("#part-") && document.getElementById(location.hash.slice(1));
  if (part && part.tagName === "DETAILS") part.open = true;
}

// On paper all is opened, light, and as wide as a page: wider tables are made smaller.
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((part) => { part.open = true; });
  document.documentElement.classList.add("paper");
  document.querySelectorAll(".scroll").forEach((box) => { box.firstElementChild.style.zoom = box.clientWidth / box.scrollWidth; });
  draw();
});
window.addEventListener("afterprint", () => {
  opened.forEach((part) => { part.open = false; });
  document.documentElement.classList.remove("paper");
  document.querySelectorAll(".scroll > table").forEach((table) => { table.style.zoom = ""; });
  draw();
});

draw();
unfold();
dark.addEventListener("change", () => draw());
window.addEventListener("hashchange", unfold);
document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", () => draw(part)));
