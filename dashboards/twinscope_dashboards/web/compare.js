// Two steps side by side, or two runs over one another.

import { leading } from "./alerts.js";
import { api, link } from "./api.js";
import { causes } from "./causes.js";
import { fill, h, loading, section, table } from "./dom.js";
import { onsetOf } from "./past.js";
import { axis, color, figure, logarithmic, plain, thin } from "./plots.js";
import { distribution, profiles } from "./shapes.js";
import { KEY_METRICS, asShare, number, share, times, verdict, words } from "./words.js";

/** `parts`: [] form only, [run, run] two runs, [run, step, run, step] two steps. */
export async function showCompare({ parts }) {
  const runs = (await api.runs()).filter((run) => run.last !== null);
  const nodes = [h("h1", {}, "Compare"), form(runs, parts)];
  let ready = null;
  if (parts.length === 4 || parts.length === 2) {
    const box = h("div", {}, loading("both"));
    nodes.push(box);
    ready = fill(box, () => (parts.length === 4 ? steps(parts) : twoRuns(parts)));
  } else if (runs.length < 2) nodes.push(h("p", { class: "quiet" }, "There is one run only: give two of its steps."));
  else nodes.push(h("p", { class: "quiet" }, "Choose two runs; with step numbers, two steps, of one run or of two."));
  return { title: "Compare", nodes, ready };
}

function form(runs, parts) {
  const four = parts.length === 4;
  const chosen = four ? [parts[0], parts[2]] : parts.length === 2 ? parts : runs.slice(0, 2).map((run) => run.run);
  const select = (label, value) => h("select", { "aria-label": label }, runs.map((run) => h("option", { value: run.run, selected: run.run === value }, run.run)));
  const field = (label, value) => h("input", { type: "number", min: 0, "aria-label": label, placeholder: "all steps", value: value ?? "" });
  const [a, b] = [select("first run", chosen[0]), select("second run", chosen[1])];
  const [x, y] = [field("first step", four ? parts[1] : null), field("second step", four ? parts[3] : null)];
  const missing = h("p", { class: "error", role: "alert" });
  const go = (event) => {
    event.preventDefault();
    const [first, second] = [a.value, b.value];
    const [m, n] = [x.value.trim(), y.value.trim()];
    const said = incomplete({ first, second, m, n });
    missing.textContent = said?.text ?? "";
    if (said) (said.at === "first" ? x : said.at === "second" ? y : b).focus();
    else location.hash = m === "" ? link.compare(first, second) : link.compare(first, m, second, n);
  };
  return h("form", { class: "compare-form", onsubmit: go, novalidate: true }, h("span", {}, a, " step ", x), h("span", {}, " with "), h("span", {}, b, " step ", y), h("button", { type: "submit" }, "Compare"), missing);
}

/** What is missing for a comparison, and where; null: nothing. */
export function incomplete({ first, second, m, n }) {
  if ((m === "") !== (n === "")) {
    const [at, run] = m === "" ? ["first", first] : ["second", second];
    return { at, text: `Which step of ${run}, the ${at} one? Give both step numbers to compare two steps, none to compare the runs.` };
  }
  if (first === second && m === n) return { at: m === "" ? "run" : "second", text: m === "" ? "That is the same run twice: choose another, or give two steps of it." : "That is the same step twice: give another step number." };
  return null;
}

/** `what` is a run or step: two names, the same numbers. */
const twins = (what) => h("p", { class: "advice", role: "status", "data-twins": "" }, h("strong", {}, "The same numbers. "), `In both ${what} every number is equal to the last digit: the same data under two names, or one view compared with itself.`);

async function steps([runA, stepA, runB, stepB]) {
  const [a, b, profilesA, profilesB] = await Promise.all([api.step(runA, stepA), api.step(runB, stepB), api.profiles(runA, stepA), api.profiles(runB, stepB)]);
  const label = (step) => (runA === runB ? `step ${step.step}` : `${step.run} step ${step.step}`);
  const linked = (step) => h("a", { href: link.step(step.run, step.step) }, label(step));
  const rows = KEY_METRICS.filter(([name]) => [a, b].some((step) => step.metrics?.[name] !== null && step.metrics?.[name] !== undefined));
  const same = rows.every(([name]) => a.metrics[name] === b.metrics[name]);
  const nodes = [same ? twins("steps") : null, section("Numbers", table("Two steps", [
    { title: "metric", get: ([, title]) => title },
    { title: linked(a), numeric: true, get: ([name, , , unit]) => number(a.metrics[name], asShare(unit, a.metrics[name])) },
    { title: linked(b), numeric: true, get: ([name, , , unit]) => number(b.metrics[name], asShare(unit, b.metrics[name])) },
    { title: "ratio", numeric: true, get: ([name]) => (a.metrics[name] && b.metrics[name] ? times(b.metrics[name] / a.metrics[name]) : "—") },
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

/** Of the values that are known; null: none is. */
export function median(values) {
  const known = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  const half = known.length >> 1;
  return known.length === 0 ? null : known.length % 2 ? known[half] : (known[half - 1] + known[half]) / 2;
}

const PARTED = new Set(["k3_mean", "ess_ratio"]); // told of parts of the runs, too

const changed = (...runs) => runs.map((one) => ({ run: one.run, lead: leading(one.alerts) })).filter(({ lead }) => lead !== null);

/**
 * Stretches of both runs: a fault that began late does not move the median of all steps. The last
 * quarter of each, and the steps from the onset of an alarm of either. [title, one -> index -> is in it]
 */
function parts(a, b) {
  const onsets = [...new Set(changed(a, b).map(({ lead }) => onsetOf(lead)))];
  return [
    ["last quarter", (one) => (_, i) => i >= Math.floor(0.75 * one.step.length)],
    ...onsets.map((onset) => [`from step ${onset} on`, (one) => (_, i) => one.step[i] >= onset]),
  ];
}

/** Which of the runs changed, and at which step; null: none did. */
function onsets(a, b) {
  const found = changed(a, b).map(({ run, lead }) => `${run} changed at step ${onsetOf(lead)} (${words(lead.kind)})`);
  return found.length ? h("p", { "data-role": "onsets" }, `${found.join("; ")}. Below the medians over all steps stand those from there on.`) : null;
}

/** Where each run stands, and medians, which one bad step does not move: over all steps and by parts. */
function summary(a, b) {
  const columns = [["k3_mean", ""], ["abs_mean", ""], ["ess_ratio", "share"], ["clip_fraction", "share"]]
    .filter(([name]) => [a, b].some((one) => one.metrics[name]));
  const bad = (one) => one.verdict.filter((value) => value !== "ok").length / Math.max(one.verdict.length, 1);
  const rows = [
    ["steps", (one) => number(one.step.length)],
    ["steps that were not ok", (one) => number(bad(one), share(bad(one)))],
    ["last verdict", (one) => (one.verdict.length ? verdict(one.verdict.at(-1)) : "—")],
    ["last likely cause", (one) => words(one.cause.at(-1)) || "—"],
    ["last rollout_train_kl", (one) => number(one.metrics.k3_mean?.at(-1)), (one) => one.metrics.k3_mean?.at(-1)],
    ...columns.map(([name, unit]) => middle(name, unit)),
    ...parts(a, b).flatMap(([title, inside]) => columns.filter(([name]) => PARTED.has(name)).map(([name, unit]) => middle(name, unit, { title, inside }))),
  ];
  const linked = (one) => h("a", { href: link.run(one.run) }, one.run);
  return table("Two runs", [
    { title: "metric", get: ([title]) => title },
    { title: linked(a), numeric: true, get: ([, shown]) => shown(a) },
    { title: linked(b), numeric: true, get: ([, shown]) => shown(b) },
    { title: "ratio", numeric: true, get: ([, , value]) => (value && value(a) && value(b) ? times(value(b) / value(a)) : "—") },
  ], rows);
}

/** A row: the median of a metric, of all steps or of those `inside`. */
function middle(name, unit, { title = null, inside = () => () => true } = {}) {
  const value = (one) => median((one.metrics[name] ?? []).filter(inside(one)));
  const metric = `median ${KEY_METRICS.find(([id]) => id === name)[1]}`;
  return [title === null ? metric : `${metric}, ${title}`, (one) => number(value(one), asShare(unit, value(one))), value];
}

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
  const same = ["k3_mean", "abs_mean", "abs_max"].every((name) => JSON.stringify(a.metrics[name]) === JSON.stringify(b.metrics[name])) && a.step.length === b.step.length;
  return [same ? twins("runs") : null, section("Numbers", onsets(a, b), summary(a, b)), h("h2", {}, "Curves"), legend({ first: h("a", { href: link.run(runA) }, runA), second: h("a", { href: link.run(runB) }, runB) }), h("div", { class: "pair" }, plots)];
}
