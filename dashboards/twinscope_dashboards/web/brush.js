// The whole run in a strip; a window on it is dragged, or typed as step numbers.

import { h } from "./dom.js";
import { thin } from "./plots.js";

const [WIDTH, HEIGHT] = [1000, 44];

/** `steps`, `values` (log scale, null unknown), `verdicts`; `pick(from, to)` with step numbers. */
export function brush({ steps, values, verdicts, pick }) {
  const [first, last] = [steps[0], steps.at(-1)];
  const x = (step) => (last === first ? 0 : (WIDTH * (step - first)) / (last - first));
  const shade = h("svg:rect", { class: "window", y: 0, height: HEIGHT, x: 0, width: WIDTH });
  const picture = h("svg:svg", { class: "brush", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    curve(steps, values, x), marks(steps, verdicts, x), shade);
  const field = (label, value) => h("input", { type: "number", min: first, max: last, value, "aria-label": label, onchange: typed });
  const [low, high] = [field("from step", first), field("to step", last)];
  function typed() {
    const asked = [low, high].map((box) => (box.value === "" ? NaN : Math.min(Math.max(Math.round(Number(box.value)), first), last)));
    const wrong = !asked.every(Number.isFinite) ? "a step number is missing" : asked[0] > asked[1] ? `step ${low.value} is after step ${high.value}` : "";
    said.textContent = wrong; // not turned round: the other box may be the next to be typed in
    if (!wrong) pick(...asked);
  }
  const at = (event) => {
    const box = picture.getBoundingClientRect();
    return Math.round(first + ((last - first) * Math.min(Math.max(event.clientX - box.left, 0), box.width)) / box.width);
  };
  let anchor = null;
  picture.addEventListener("pointerdown", (event) => { anchor = at(event); picture.setPointerCapture(event.pointerId); });
  picture.addEventListener("pointermove", (event) => { if (anchor !== null) show(Math.min(anchor, at(event)), Math.max(anchor, at(event))); });
  picture.addEventListener("pointerup", (event) => {
    const [a, b] = [Math.min(anchor, at(event)), Math.max(anchor, at(event))];
    anchor = null;
    if (b - a >= 2) pick(a, b); else pick(first, last);
  });
  const quick = (label, count) => (steps.length > count ? h("button", { type: "button", onclick: () => pick(steps.at(-count), last) }, label) : null);
  const said = h("span", { class: "error", role: "status" });
  function show(from, to) {
    said.textContent = "";
    shade.setAttribute("x", x(from));
    shade.setAttribute("width", Math.max(x(to) - x(from), 2));
    [low.value, high.value] = [from, to];
  }
  const node = h("div", { class: "range" }, picture,
    h("div", { class: "range-controls" }, "steps ", low, " to ", high,
      quick("last 1000", 1000), quick("last 200", 200), quick("last 50", 50),
      h("button", { type: "button", onclick: () => pick(first, last) }, "all"), said));
  return { node, show };
}

function curve(steps, values, x) {
  const known = values.filter((value) => value !== null);
  const [low, high] = [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
  const y = (value) => HEIGHT - 8 - ((HEIGHT - 14) * (value - low)) / Math.max(high - low, 0.5);
  const points = thin(values, { budget: 800 }).filter((i) => values[i] !== null).map((i) => `${x(steps[i]).toFixed(1)},${y(values[i]).toFixed(1)}`);
  return h("svg:polyline", { points: points.join(" ") });
}

/** Stretches of equal verdict as a ribbon along the bottom. */
function marks(steps, verdicts, x) {
  return stretches(steps, verdicts).filter((part) => part.value !== "ok")
    .map((part) => h("svg:rect", { class: part.value, x: x(part.from).toFixed(1), width: Math.max(2, x(part.to) - x(part.from)).toFixed(1), y: HEIGHT - 5, height: 5 }));
}

/** Neighbours of equal value joined: {value, from, to} with steps. */
export function stretches(steps, values) {
  const found = [];
  values.forEach((value, i) => {
    const open = found.at(-1);
    if (open && open.value === value) open.to = steps[i];
    else found.push({ value, from: steps[i], to: steps[i] });
  });
  return found;
}
