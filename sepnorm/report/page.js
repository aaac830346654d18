"use strict";
// Draws every figure in the colours of the page, and again when the reader turns to dark or light.
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
    font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: colour("--panel"), font: { color: colour("--ink") }, align: "left" },
  };
  for (const key of Object.keys(layout)) {
    if (/^[xy]axis\d*$/.test(key)) out[key] = { ...axis, ...layout[key] };
  }
  for (const key of ["xaxis", "yaxis"]) out[key] = { ...axis, ...out[key] };
  return out;
}

const boxes = figures.map((_, i) => document.getElementById(`figure-${i}`));
const drawn = new Set();

// What is folded up has no size yet: its figures are drawn when it is opened.
function draw() {
  boxes.forEach((box, i) => {
    if (box.closest("details:not([open])") !== null) return;
    Plotly.react(box, figures[i].data, themed(figures[i].layout), { responsive: true, displayModeBar: false });
    if (!drawn.has(box)) watch(box, figures[i]);
    drawn.add(box);
  });
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

draw();
dark.addEventListener("change", draw);
document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", draw));
