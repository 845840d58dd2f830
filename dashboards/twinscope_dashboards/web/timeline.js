// A run over its steps: rollout_train_kl with the band of healthy steps, what detectors found, what
// happened, and reward, gradient norm, entropy beside it, on one axis of steps.

import { brush, stretches } from "./brush.js";
import { h } from "./dom.js";
import { axis, color, faded, figure, logarithmic, plain, thin } from "./plots.js";
import { count, series, times, words } from "./words.js";

const FIRST = ["reward", "reward_mean", "grad_norm", "entropy", "entropy_mean", "policy_ref_kl"];
const TITLES = {
  ess_ratio: "effective sample size", clip_fraction: "clipped before update", rho_mean: "E[ρ]", abs_mean: "mean |Δ|", abs_p99: "p99 |Δ|",
  abs_max: "max |Δ|", k1_mean: "k1", policy_ref_kl: "KL(policy‖ref)", policy_ref_kl_seq_mean: "KL(policy‖ref) per sequence", length_mean: "length", entropy_mean: "entropy", reward_mean: "reward",
};
const LOG = new Set(["abs_mean", "abs_p99", "abs_max", "policy_ref_kl"]);

/** `data`: the answer of /timeline. `range`: {from, to} or null; `onRange(from, to)`; `onStep(step)`. */
export function timeline(data, { range, onRange, onStep }) {
  const columns = { ...data.metrics, ...data.scalars };
  const extra = Object.keys(columns).filter((name) => name !== "k3_mean" && name !== "lr");
  const shown = new Set(FIRST.filter((name) => extra.includes(name)).slice(0, 3));
  const all = { from: data.step[0], to: data.step.at(-1) };
  let view = range ?? all;
  const plot = figure({
    title: "rollout_train_kl", note: "log scale; grey: where this run's healthy steps lie; click at a step to open it, drag to zoom, double-click to see all",
    label: `rollout_train_kl of ${data.step.length} steps, logarithmic, with alarms and events`,
    height: () => 320 + 92 * shown.size, build: () => build(data, columns, { view, shown }),
    on: {
      plotly_click: (event) => { const point = event.points.find(({ x }) => Number.isInteger(x)); if (point) press.once(point.x); },
      plotly_doubleclick: () => { press.twice(); pick(all.from, all.to); },
      plotly_relayout: (event) => {
        if (event["xaxis.range[0]"] !== undefined) pick(...inside(event["xaxis.range[0]"], event["xaxis.range[1]"]));
      },
    },
  });
  const press = presses(onStep);
  plot.plot.addEventListener("click", (event) => { const step = stepAt(plot.plot, event, data.step); if (step !== null) press.once(step); });
  const strip = brush({ steps: data.step, values: data.metrics.k3_mean?.map((v) => (v > 0 ? Math.log10(v) : null)) ?? [], verdicts: data.verdict, pick });
  strip.show(view.from, view.to);
  function pick(from, to) {
    view = { from: Math.max(from, all.from), to: Math.min(to, all.to) };
    strip.show(view.from, view.to);
    plot.redraw();
    onRange(...(view.from === all.from && view.to === all.to ? [null, null] : [view.from, view.to]));
  }
  const toggles = h("fieldset", { class: "toggles" }, h("legend", {}, "beside it"), extra.map((name) => h("label", {},
    h("input", { type: "checkbox", checked: shown.has(name), onchange: (event) => {
      if (event.target.checked) shown.add(name); else shown.delete(name);
      plot.redraw();
    } }), ` ${TITLES[name] ?? words(name)}`)));
  return h("div", { class: "timeline" }, plot, strip.node, h("details", {}, h("summary", {}, "More curves"), toggles));
}

/** First and last step between two places on the axis; the nearest one, if none is. */
function inside(low, high) {
  const nearest = Math.round((low + high) / 2);
  return Math.ceil(low) <= Math.floor(high) ? [Math.ceil(low), Math.floor(high)] : [nearest, nearest];
}

const DOUBLE_MS = 350; // a little more than the plotting library waits for the second press

/** One press opens a step, a moment later: it may be the first half of a double one. */
function presses(onStep) {
  let [waiting, deaf] = [null, 0];
  return {
    once(step) {
      if (waiting === null && performance.now() > deaf) waiting = setTimeout(() => { waiting = null; onStep(step); }, DOUBLE_MS);
    },
    twice() {
      clearTimeout(waiting);
      [waiting, deaf] = [null, performance.now() + DOUBLE_MS];
    },
  };
}

/** The step below or above which the plot was pressed; null beside the axes. */
function stepAt(box, event, steps) {
  const { xaxis, _size: size } = box._fullLayout ?? {};
  if (!xaxis) return null;
  const edge = box.getBoundingClientRect();
  const [x, y] = [event.clientX - edge.left - size.l, event.clientY - edge.top - size.t];
  if (x < 0 || x > size.w || y < 0 || y > size.h) return null;
  const at = xaxis.p2d(x);
  return steps.reduce((best, step) => (Math.abs(step - at) < Math.abs(best - at) ? step : best), steps[0]);
}

function build(data, columns, { view, shown }) {
  const panels = [...shown];
  const unit = 1 / (3.4 + 0.9 * panels.length);
  const lane = 0.5 * unit;
  const top = 1 - lane - 2.9 * unit;
  const names = ["y", ...panels.map((_, i) => `y${i + 3}`)];
  const first = data.step.findIndex((step) => step >= view.from);
  const after = data.step.findIndex((step) => step > view.to);
  const [from, to] = [Math.max(0, first - 1), after < 0 ? data.step.length : Math.min(after + 1, data.step.length)];
  const range = [view.from - 0.5, view.to + 0.5];
  const layout = {
    margin: { l: 64, r: 14, t: 6, b: 38 }, hovermode: "closest", barmode: "overlay", shapes: alarms(data),
    xaxis: axis("step", { range, anchor: names.at(-1), zeroline: false, tickformat: "d" }),
    yaxis: axis("nats per token", { ...decades(data, from, to), domain: [top, 1 - lane], fixedrange: true, zeroline: false }),
    yaxis2: { domain: [1 - lane + 0.012, 1], fixedrange: true, showgrid: false, zeroline: false, tickfont: { size: 10 }, automargin: true, type: "category", range: [-0.6, lanes(data).length - 0.4], categoryarray: lanes(data) },
  };
  panels.forEach((name, i) => {
    const high = top - i * 0.9 * unit - 0.02;
    const typed = LOG.has(name) ? { type: "log", exponentformat: "power", nticks: 3 } : { nticks: 4 };
    layout[`yaxis${i + 3}`] = axis("", { ...typed, domain: [Math.max(0, high - 0.9 * unit + 0.03), high], fixedrange: true, zeroline: false });
  });
  layout.annotations = panels.map((name, i) => ({ xref: "paper", x: 0.004, yref: `y${i + 3} domain`, y: 1.02, xanchor: "left", yanchor: "top", showarrow: false, text: plain(TITLES[name] ?? words(name)), font: { size: 11, color: color("muted") } }));
  const beside = panels.map((name, i) => curve(data, columns[name], { from, to, name, axis: names[i + 1], tint: "accent2", width: 1.2 }));
  return { data: [...band(data, from, to), ...k3(data, from, to), ...spikes(data), ...events(data), ...verdicts(data), ...beside], layout };
}

/** A log axis around what is in view, never narrower than a decade: noise looks like noise. */
function decades(data, from, to) {
  const seen = [data.metrics.k3_mean ?? [], data.baseline.low, data.baseline.high].flatMap((values) => values.slice(from, to)).filter((value) => value > 0);
  if (seen.length === 0) return logarithmic;
  let [low, high] = [seen.reduce((a, b) => Math.min(a, b)), seen.reduce((a, b) => Math.max(a, b))].map(Math.log10);
  const more = Math.max(0.04 * (high - low), (1 - (high - low)) / 2);
  [low, high] = [low - more, high + more];
  return { ...logarithmic, range: [low, high], dtick: high - low < 2.5 ? "D2" : 1 };
}

function curve(data, values, { from, to, name, axis: yaxis, tint, width }) {
  const kept = thin(values, { from, to, budget: yaxis === "y" ? 1200 : 600 });
  return {
    type: "scatter", mode: kept.length < 60 ? "lines+markers" : "lines", yaxis, x: kept.map((i) => data.step[i]), y: kept.map((i) => values[i]),
    line: { color: color(tint), width }, marker: { size: 4 }, name: plain(TITLES[name] ?? words(name)), hovertemplate: "step %{x}<br>%{y:.4g}<extra>%{fullData.name}</extra>", connectgaps: false,
  };
}

function band(data, from, to) {
  const { low, middle, high } = data.baseline;
  const kept = thin(middle, { from, to, budget: 800 });
  const line = (values, more) => ({ type: "scatter", mode: "lines", x: kept.map((i) => data.step[i]), y: kept.map((i) => values[i]), line: { width: 0, color: color("muted") }, hoverinfo: "skip", ...more });
  return [line(low, {}), line(high, { fill: "tonexty", fillcolor: faded("muted", 0.28) }), line(middle, { line: { width: 1, dash: "dot", color: color("muted") } })];
}

function k3(data, from, to) {
  const values = data.metrics.k3_mean ?? [];
  const line = curve(data, values, { from, to, name: "rollout_train_kl", axis: "y", tint: "accent", width: 1.8 });
  line.mode = "lines";
  const kept = thin(values, { from, to, budget: 300 });
  const tint = { ok: color("accent"), inconsistent: color("bad"), unknown: color("unknown") };
  return [line, {
    type: "scatter", mode: "markers", x: kept.map((i) => data.step[i]), y: kept.map((i) => values[i]), name: "rollout_train_kl",
    marker: { size: 6, opacity: to - from > 300 ? 0 : 1, color: kept.map((i) => tint[data.verdict[i]]), symbol: kept.map((i) => ({ ok: "circle", inconsistent: "triangle-up", unknown: "x" })[data.verdict[i]]) },
    text: kept.map((i) => `${data.verdict[i]}${data.cause[i] ? `, ${plain(words(data.cause[i]))}` : ""}<br>${count(data.counted[i] ?? 0, "token")}`),
    hovertemplate: "<b>step %{x}</b><br>%{y:.4g}<br>%{text}<extra></extra>",
  }];
}

const NARROW = 600; // pixels of a window in which there is no room for many words

function told(alert) {
  const [what, ratio] = [`step ${alert.onset_step}`, alert.ratio ? ` ${times(alert.ratio)}` : ""];
  return innerWidth < NARROW ? what + ratio : `${words(alert.kind)} at ${what}${ratio}${ratio && alert.kind === "level_shift" ? " in the median" : ""}`;
}

/** From the onset of a change of k3 to its end, or to now. */
function alarms(data) {
  const about = data.alerts.filter((alert) => (alert.series === "k3" || alert.kind === "bypass") && alert.kind !== "spike" && alert.onset_step !== null);
  return about.flatMap((alert) => {
    const end = alert.state === "resolved" ? alert.step : data.step.at(-1);
    const tint = alert.state === "resolved" || alert.came_down ? "muted" : "bad";
    return [
      { type: "rect", xref: "x", yref: "y domain", x0: alert.onset_step - 0.5, x1: end + 0.5, y0: 0, y1: 1, line: { width: 0 }, fillcolor: faded(tint, 0.1), layer: "below" },
      { type: "line", xref: "x", yref: "y domain", x0: alert.onset_step - 0.5, x1: alert.onset_step - 0.5, y0: 0, y1: 1, line: { color: color(tint), width: 1.5, dash: "dash" },
        label: { text: plain(told(alert)), textposition: "end", textangle: 0, xanchor: "right", yanchor: "top", padding: 4, font: { size: 11, color: color(tint) } } },
    ];
  });
}

function spikes(data) {
  const at = new Map(data.step.map((step, i) => [step, i]));
  const found = data.alerts.filter((alert) => alert.kind === "spike" && alert.series === "k3" && at.has(alert.onset_step ?? alert.step)).slice(0, 500);
  return [{
    type: "scatter", mode: "markers", x: found.map((alert) => alert.onset_step ?? alert.step), y: found.map((alert) => data.metrics.k3_mean?.[at.get(alert.onset_step ?? alert.step)]),
    marker: { size: 12, symbol: "circle-open", color: color("bad"), line: { width: 2 } }, text: found.map((alert) => plain(alert.message)), hovertemplate: "<b>spike</b> %{text}<extra></extra>",
  }];
}

const known = (data) => data.events.filter((event) => event.step !== null);

/** Rows above the curve: the verdict, and one per kind of event, at most four. */
export function lanes(data) {
  return ["verdict", ...new Set(known(data).map((event) => words(event.kind)))].slice(0, 5);
}

function events(data) {
  const rows = lanes(data);
  const found = known(data).filter((event) => rows.includes(words(event.kind)));
  return [{
    type: "scatter", mode: "markers", yaxis: "y2", x: found.map((event) => event.step), y: found.map((event) => words(event.kind)),
    marker: { symbol: "diamond", size: 7, color: color("accent2") }, text: found.map((event) => plain(describe(event))), hovertemplate: "<b>step %{x}</b> %{y}<br>%{text}<extra></extra>",
  }];
}

export const describe = (event) => Object.entries(event.fields ?? {}).map(([name, value]) => `${words(name)}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");

function verdicts(data) {
  const parts = stretches(data.step, data.verdict);
  return ["ok", "inconsistent", "unknown"].map((value) => {
    const mine = parts.filter((part) => part.value === value);
    return {
      type: "bar", orientation: "h", yaxis: "y2", base: mine.map((part) => part.from - 0.5), x: mine.map((part) => part.to - part.from + 1), y: mine.map(() => "verdict"), width: 0.5,
      marker: { color: color({ ok: "ok", inconsistent: "bad", unknown: "unknown" }[value]), line: { width: 0 } }, name: value,
      text: mine.map((part) => `${part.from} to ${part.to}`), textposition: "none", hovertemplate: "<b>%{fullData.name}</b> steps %{text}<extra></extra>",
    };
  });
}

export { series };
