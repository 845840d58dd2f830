// All runs: verdict, level, cause, since when, last data.

import { leading, rise, silencedUntil } from "./alerts.js";
import { api, link } from "./api.js";
import { causeLine } from "./causes.js";
import { h, nothing, table } from "./dom.js";
import { plotly, thin } from "./plots.js";
import { count, format, number, pulse, pulseWord, time, times, verdict } from "./words.js";

const SPARKS = 60; // runs that get a small curve, an onset and a mark of what rose
const RANK = { inconsistent: 0, unknown: 1, ok: 2 };

export async function showRuns() {
  const runs = (await api.runs()).map((run) => ({ ...run, verdict: run.last?.verdict ?? "unknown" }));
  if (runs.length === 0) return { title: "Runs", nodes: [welcome()] };
  const silences = api.silences().catch(() => []); // the runs are there without them
  const order = (a, b) => b.active - a.active || RANK[a.verdict] - RANK[b.verdict] || (grown(b) ?? 1) - (grown(a) ?? 1) || b.last_seen - a.last_seen;
  runs.sort(order);
  await Promise.all(runs.slice(0, SPARKS).map(async (run) => {
    run.timeline = await api.timeline(run.run, { last: 120 }).catch(() => null);
    run.alert = leading(run.timeline?.alerts ?? []);
  }));
  for (const run of runs) run.silenced = silencedUntil(await silences, run.run);
  runs.sort(order); // only now it is known how much each has grown
  for (const run of runs) run.about = [run.last_seen, run.timeline?.closed_at ?? [], run.timeline?.events ?? []];
  for (const run of runs) run.pulse = pulse(...run.about);
  setTimeout(() => plotly().catch(() => {}), 400); // the next view will want it
  return { title: "Runs", nodes: [h("h1", {}, "Runs"), summary(runs), list(runs),
    runs.length > SPARKS ? h("p", { class: "hint", "data-limit": "runs" }, `Since when, the mark ▲ of what rose and the curve are shown for ${SPARKS} of these ${format(runs.length)} runs: the active ones first, and among them the worst verdicts. Verdict, cause and level are shown for all.`) : null] };
}

function welcome() {
  return nothing(h("h1", {}, "No run yet"),
    h("p", {}, "TwinScope waits for the two log-probs of every sampled token. Put a probe on both sides:"),
    h("pre", {}, [
      "import twinscope", `probe = twinscope.Probe("${location.origin}", run="my-run")`, "",
      "probe.rollout(token_ids=responses, logprobs=q)           # what the engine sampled with",
      "probe.train(step=step, token_ids=responses, logprobs=p)  # recomputed, before any update",
      "probe.close_step(step)"].join("\n")),
    h("p", {}, "Or look at a recorded run that goes wrong: ", h("code", {}, "twinscope demo")));
}

function summary(runs) {
  const many = (value) => runs.filter((run) => run.pulse === value).length;
  const going = (value) => runs.filter((run) => run.pulse !== "finished" && run.verdict === value).length;
  return h("p", { class: "summary" }, `${count(runs.length, "run")}: ${["live", "quiet", "silent", "finished"].filter(many).map((value) => `${many(value)} ${value}`).join(", ")}. `,
    ["inconsistent", "unknown", "ok"].filter(going).map((value) => h("span", { class: "tally" }, `${going(value)} `, verdict(value))));
}

function list(runs) {
  return table("Runs", [
    { title: "run", get: (run) => h("a", { href: link.run(run.run) }, run.run) },
    { title: "verdict", get: (run) => h("span", {}, verdict(run.verdict), " ", rise(run.verdict, run.alert), run.silenced ? h("span", { class: "silenced" }, ` ${run.silenced}`) : null) },
    { title: "since", get: (run) => (run.alert ? since(run) : "—") },
    { title: "likely cause", get: (run) => causeLine(run.last) },
    { title: "rollout_train_kl", numeric: true, get: (run) => number(run.last?.metrics?.k3_mean) },
    { title: "latest steps", get: spark },
    { title: "last step", numeric: true, get: (run) => (run.last_step === null ? "—" : h("a", { href: link.step(run.run, run.last_step) }, String(run.last_step))) },
    { title: "last data", get: (run) => h("span", {}, time(run.last_seen), run.pulse === "live" ? "" : pulseWord(...run.about)) },
  ], runs, { cards: true });
}

/** The last step's level over the run's own one; null where no detector knows that. */
function grown(run) {
  const level = run.last?.metrics?.k3_mean ?? null;
  return run.alert?.series === "k3" && run.alert.before > 0 && level !== null ? level / run.alert.before : null;
}

function since(run) {
  const onset = run.alert.onset_step ?? run.alert.step;
  return h("a", { href: link.step(run.run, onset), title: "the last step's level over the run's own" }, `step ${onset}`, grown(run) === null ? "" : ` (last step ${times(grown(run))})`);
}

/** rollout_train_kl on a log scale, 120 × 26. */
function spark(run) {
  const values = (run.timeline?.metrics.k3_mean ?? []).map((value) => (value > 0 ? Math.log10(value) : null));
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return "—";
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const span = Math.max(high - low, 0.5);
  const points = thin(values, { budget: 240 }).filter((i) => values[i] !== null)
    .map((i) => `${(2 + (116 * i) / (values.length - 1)).toFixed(1)},${(23 - (20 * (values[i] - low)) / span).toFixed(1)}`);
  const [x, y] = points.at(-1).split(",");
  return h("svg:svg", { class: `spark ${run.verdict}`, viewBox: "0 0 120 26", width: 120, height: 26, role: "img",
    "aria-label": `rollout_train_kl of ${count(values.length, "step")} from ${format(10 ** known[0])} to ${format(10 ** known.at(-1))}` },
    h("svg:polyline", { points: points.join(" ") }), h("svg:circle", { cx: x, cy: y, r: 2.4 }));
}
