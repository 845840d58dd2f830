// Two steps side by side, or two runs over one another.

import { api, link } from "./api.js";
import { causes } from "./causes.js";
import { h, section, table } from "./dom.js";
import { axis, color, figure, logarithmic, plain, thin } from "./plots.js";
import { distribution, profiles } from "./shapes.js";
import { KEY_METRICS, asShare, number, times, verdict } from "./words.js";

/** `parts`: [] form only, [run, run] two runs, [run, step, run, step] two steps. */
export async function showCompare({ parts }) {
  const runs = (await api.runs()).filter((run) => run.last !== null);
  const nodes = [h("h1", {}, "Compare"), form(runs, parts)];
  if (parts.length === 4) nodes.push(...await steps(parts));
  else if (parts.length === 2) nodes.push(...await twoRuns(parts));
  else nodes.push(h("p", { class: "quiet" }, "Choose two runs; with step numbers, two steps, of one run or of two."));
  return { title: "Compare", nodes };
}

function form(runs, parts) {
  const four = parts.length === 4;
  const chosen = four ? [parts[0], parts[2]] : parts;
  const select = (label, value) => h("select", { "aria-label": label }, runs.map((run) => h("option", { value: run.run, selected: run.run === value }, run.run)));
  const field = (label, value) => h("input", { type: "number", min: 0, "aria-label": label, placeholder: "all steps", value: value ?? "" });
  const [a, b] = [select("first run", chosen[0]), select("second run", chosen[1])];
  const [x, y] = [field("first step", four ? parts[1] : null), field("second step", four ? parts[3] : null)];
  const go = (event) => {
    event.preventDefault();
    location.hash = x.value !== "" && y.value !== "" ? link.compare(a.value, x.value, b.value, y.value) : link.compare(a.value, b.value);
  };
  return h("form", { class: "compare-form", onsubmit: go }, h("span", {}, a, " step ", x), h("span", {}, " with "), h("span", {}, b, " step ", y), h("button", { type: "submit" }, "Compare"));
}

async function steps([runA, stepA, runB, stepB]) {
  const [a, b, profilesA, profilesB] = await Promise.all([api.step(runA, stepA), api.step(runB, stepB), api.profiles(runA, stepA), api.profiles(runB, stepB)]);
  const label = (step) => `${step.run} step ${step.step}`;
  const linked = (step) => h("a", { href: link.step(step.run, step.step) }, label(step));
  const rows = KEY_METRICS.filter(([name]) => [a, b].some((step) => step.metrics?.[name] !== null && step.metrics?.[name] !== undefined));
  const nodes = [section("Numbers", table("Two steps", [
    { title: "metric", get: ([, title]) => title },
    { title: linked(a), numeric: true, get: ([name, , , unit]) => number(a.metrics[name], asShare(unit, a.metrics[name])) },
    { title: linked(b), numeric: true, get: ([name, , , unit]) => number(b.metrics[name], asShare(unit, b.metrics[name])) },
    { title: "second over first", numeric: true, get: ([name]) => (a.metrics[name] && b.metrics[name] ? times(b.metrics[name] / a.metrics[name]) : "—") },
  ], rows))];
  if (profilesA && profilesB) {
    const both = { first: label(a), second: label(b) };
    const pairing = { label: both.first, others: [[both.second, profilesB]] };
    nodes.push(section("Shapes", legend(both), h("div", { class: "pair" }, distribution(profilesA, null, pairing), profiles(profilesA, pairing))));
  }
  nodes.push(section("Causes", h("div", { class: "pair" }, [a, b].map((step) => h("div", {}, h("h3", {}, linked(step), " ", verdict(step.verdict)), causes(step))))));
  return nodes;
}

const legend = ({ first, second }) => h("p", { class: "legend" }, h("span", { class: "swatch" }, h("span", { class: "dot accent" }), first), h("span", { class: "swatch" }, h("span", { class: "dot accent2" }), second));

async function twoRuns([runA, runB]) {
  const [a, b] = await Promise.all([api.timeline(runA), api.timeline(runB)]);
  const names = ["k3_mean", "abs_mean", "ess_ratio", "clip_fraction", "reward", "grad_norm", "entropy"].filter((name) => [a, b].some((one) => one.metrics[name] ?? one.scalars[name]));
  const log = new Set(["k3_mean", "abs_mean"]);
  const curve = (one, name, tint) => {
    const values = one.metrics[name] ?? one.scalars[name] ?? [];
    const kept = thin(values);
    return { type: "scatter", mode: "lines", name: plain(one.run), x: kept.map((i) => one.step[i]), y: kept.map((i) => values[i]), line: { width: 1.6, color: color(tint) }, hovertemplate: "step %{x}: %{y:.4g}<extra>%{fullData.name}</extra>" };
  };
  const plots = names.map((name) => figure({
    title: KEY_METRICS.find(([id]) => id === name)?.[1] ?? name, height: 240,
    build: () => ({ data: [curve(a, name, "accent"), curve(b, name, "accent2")], layout: { xaxis: axis("step"), yaxis: axis("", log.has(name) ? logarithmic : {}), hovermode: "x" } }),
  }));
  return [legend({ first: h("a", { href: link.run(runA) }, runA), second: h("a", { href: link.run(runB) }, runB) }), h("div", { class: "pair" }, plots)];
}
