// Plots: Plotly, from the file that the installed package brings, loaded when the first plot is
// seen. Text given to Plotly is escaped, because it would read some tags as formatting.

import { h } from "./dom.js";

let library = null;

export function plotly() {
  library ??= new Promise((done, failed) => {
    if (window.Plotly) return done(window.Plotly);
    const early = document.getElementById("plotly");
    const script = early ?? h("script", { src: "plotly.min.js" });
    script.addEventListener("load", () => done(window.Plotly));
    script.addEventListener("error", () => failed(new Error("the plotting library is not installed on the service (pip install plotly)")));
    if (early === null) document.head.append(script);
  });
  return library;
}

export const plain = (text) => String(text ?? "").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A colour of the theme with an opacity, as Plotly wants it. */
export function faded(name, opacity) {
  const hex = color(name).replace("#", "");
  const [r, g, b] = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},${opacity})`;
}

export function axis(title, more = {}) {
  return {
    title: { text: title, font: { size: 12 }, standoff: 8 }, gridcolor: color("grid"), linecolor: color("line"), zerolinecolor: color("line"),
    tickfont: { size: 11 }, automargin: true, ...more,
  };
}

export const logarithmic = { type: "log", exponentformat: "power", dtick: 1 };

function frame(layout) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: "inherit", color: color("text"), size: 12 },
    margin: { l: 56, r: 12, t: layout.showlegend ? 44 : 8, b: 40 }, showlegend: false, hovermode: "closest", dragmode: "zoom",
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("text"), family: "inherit" }, align: "left" },
    legend: { orientation: "h", yref: "container", y: 1, yanchor: "top", x: 0, font: { size: 12 }, itemsizing: "constant" }, ...layout,
  };
}

const CONFIG = { responsive: true, displayModeBar: false, displaylogo: false, doubleClick: false, showTips: false };
const live = new Set();

addEventListener("themechange", () => {
  for (const plot of live) {
    if (plot.box.isConnected) plot.redraw(); else live.delete(plot);
  }
});

/**
 * A figure that draws itself once it is seen.
 *
 * `build()` gives {data, layout} in the colours of the moment; `on`: Plotly events by name;
 * `note`: how to read it; `table`: the same numbers as a node, built when asked for; `height`:
 * pixels, or a function that tells them anew for each drawing.
 */
export function figure({ title, note, label, height = 300, build, on = {}, table = null }) {
  const box = h("div", { class: "plot", role: "img", "aria-label": label ?? title });
  const pixels = typeof height === "function" ? height : () => height;
  box.style.height = `${pixels()}px`;
  const plot = { box, drawn: null, redraw: () => (plot.drawn === null ? null : draw()) };
  // One drawing at a time, and the newest wish is the last: the library would finish in any order.
  let [turn, wishes] = [Promise.resolve(), 0];
  const draw = () => {
    const mine = (wishes += 1);
    turn = turn.then(() => (mine === wishes || plot.drawn === null ? paint() : plot.drawn));
    return turn;
  };
  const paint = async () => {
    try {
      const Plotly = await plotly();
      const { data, layout } = build();
      box.style.height = `${pixels()}px`;
      plot.drawn = await Plotly.react(box, data, frame({ height: pixels(), ...layout }), CONFIG);
      return plot.drawn;
    } catch (error) {
      box.replaceChildren(h("p", { class: "state" }, `No plot: ${error.message}.`));
      box.style.height = "auto";
      return null;
    }
  };
  const start = async () => {
    if (await draw()) for (const [event, listener] of Object.entries(on)) box.on(event, listener);
    box.dataset.drawn = "yes";
    performance.mark("plot");
  };
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    live.add(plot);
    start();
  }, { rootMargin: "200px" });
  seen.observe(box);
  const numbers = table === null ? null : h("details", { class: "numbers", ontoggle: (event) => {
    const details = event.currentTarget;
    if (details.open) details.replaceChildren(details.firstElementChild, table());
  } }, h("summary", {}, "as a table"));
  const node = h("figure", {}, title ? h("figcaption", {}, h("strong", {}, title), note ? h("span", {}, ` ${note}`) : null) : null, box, numbers);
  node.redraw = () => plot.redraw();
  node.plot = box;
  return node;
}

/**
 * Indexes of at most about `budget` points that keep the shape: in every bucket the smallest, the
 * largest, the first and the last value.
 */
export function thin(values, { from = 0, to = values.length, budget = 1600 } = {}) {
  const count = to - from;
  if (count <= budget) return Array.from({ length: Math.max(count, 0) }, (_, i) => from + i);
  const width = count / (budget / 4);
  const kept = [];
  for (let start = from; start < to; start += width) {
    const [begin, end] = [Math.floor(start), Math.min(to, Math.floor(start + width))];
    let low = begin, high = begin;
    for (let i = begin; i < end; i += 1) {
      if (values[i] !== null && (values[low] === null || values[i] < values[low])) low = i;
      if (values[i] !== null && (values[high] === null || values[i] > values[high])) high = i;
    }
    kept.push(...[...new Set([begin, low, high, end - 1])].sort((a, b) => a - b));
  }
  return kept;
}
