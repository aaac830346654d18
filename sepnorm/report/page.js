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

function draw() {
  figures.forEach((figure, i) => {
    Plotly.react(`figure-${i}`, figure.data, themed(figure.layout), { responsive: true, displayModeBar: false });
  });
}

draw();
dark.addEventListener("change", draw);

// Points that have a picture show it beside the pointer.
const shown = document.getElementById("picture");

function show(event) {
  const number = event.points[0].customdata;
  if (number === undefined || number === null) return;
  shown.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(pictures[number]);
  const { clientX, clientY } = event.event;
  shown.style.left = `${Math.max(0, Math.min(clientX + 14, window.innerWidth - 190))}px`;
  shown.style.top = `${Math.max(0, clientY - 190)}px`;
  shown.hidden = false;
}

const pictures = shown ? JSON.parse(document.getElementById("pictures").textContent) : [];
figures.forEach((figure, i) => {
  if (!shown || !figure.data.some((trace) => trace.customdata)) return;
  const box = document.getElementById(`figure-${i}`);
  box.on("plotly_hover", show);
  box.on("plotly_unhover", () => { shown.hidden = true; });
});
