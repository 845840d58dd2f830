// One run: what is going on, its timeline, alerts, events, steps.

import { api, link } from "./api.js";
import { leading, situation } from "./causes.js";
import { fold, h, nothing, section, table } from "./dom.js";
import { policyRef } from "./reference.js";
import { describe, timeline } from "./timeline.js";
import { count, format, number, series, share, time, times, verdict, words } from "./words.js";

const PAGE = 25;

export async function showRun({ run, query }) {
  const [view, data] = await Promise.all([api.run(run), api.timeline(run)]);
  const at = (step) => link.step(run, step);
  const nodes = [heading(view, run)];
  if (view.last === null) {
    nodes.push(nothing(h("p", {}, "No step of this run is closed yet. ", view.open_steps.length ? ["Open: ", openSteps(view, at), "."] : `Waiting for their other side: ${count(view.waiting_samples, "sample")}.`)));
    return { title: run, nodes, stamp: stamp(view) };
  }
  nodes.push(situation({ step: view.last, alerts: data.alerts, href: at, links: lookAt(run, view.last, data), events: data.events }));
  nodes.push(timeline(data, {
    range: rangeOf(query, data), onStep: (step) => { location.hash = at(step); },
    onRange: (from, to) => history.replaceState(null, "", link.run(run, from === null ? "" : `?from=${from}&to=${to}`)),
  }));
  const reference = policyRef(data);
  if (reference) nodes.push(reference);
  nodes.push(alertList(data.alerts, at), eventList(data.events, at), stepList(data, at));
  return { title: run, nodes, stamp: stamp(view), up: "#/", keys: { j: () => { location.hash = at(leading(data.alerts)?.onset_step ?? view.last.step); } } };
}

/** What tells that something is new without fetching it all. */
export const stamp = (view) => `${view.closed_steps}/${view.open_steps.join()}/${view.last?.step}`;
export const runStamp = async (run) => stamp(await api.run(run));

function heading(view, run) {
  const at = (step) => link.step(run, step);
  return h("div", { class: "heading" },
    h("h1", {}, run, " ", verdict(view.last?.verdict ?? "unknown")),
    h("p", { class: "quiet" }, `${count(view.closed_steps, "closed step")}, last data `, time(view.last_seen), view.active ? null : " (quiet)",
      view.open_steps.length ? [", open: ", openSteps(view, at)] : null,
      view.waiting_samples ? `, waiting for their other side: ${count(view.waiting_samples, "sample")}` : null));
}

const openSteps = (view, at) => view.open_steps.slice(0, 5).map((step, i) => [i ? ", " : "", h("a", { href: at(step) }, `step ${step}`)]);

function lookAt(run, last, data) {
  const shift = data.alerts.find((alert) => alert.state === "firing" && alert.onset_step !== null);
  const before = shift ? data.step.filter((step) => step < shift.onset_step).at(-1) : undefined;
  return [
    h("a", { href: link.step(run, last.step, "?at=tokens") }, "the tokens of the last step"),
    before === undefined ? null : [" · ", h("a", { href: link.compare(run, before, run, shift.onset_step) }, `step ${before} beside step ${shift.onset_step}`)],
  ];
}

function rangeOf(query, data) {
  const [from, to] = [Number(query.get("from")), Number(query.get("to"))];
  return query.has("from") && from < to && from >= data.step[0] ? { from, to: Math.min(to, data.step.at(-1)) } : null;
}

function alertList(alerts, at) {
  const columns = [
    { title: "what", get: (alert) => h("span", {}, h("a", { href: `#/runbooks/alerts/${encodeURIComponent(alert.kind)}`, title: "what it means, what to do" }, words(alert.kind)), ` of ${series(alert.series)}`) },
    { title: "state", get: (alert) => h("span", { class: `alert ${alert.state}` }, alert.state) },
    { title: "since", get: (alert) => h("a", { href: at(alert.onset_step ?? alert.step) }, `step ${alert.onset_step ?? alert.step}`) },
    { title: "before", numeric: true, get: (alert) => number(alert.before) },
    { title: "after", numeric: true, get: (alert) => number(alert.after) },
    { title: "ratio", numeric: true, get: (alert) => times(alert.ratio) || "—" },
    { title: "likely cause", get: (alert) => alert.causes.map(words).join(", ") || "—" },
  ];
  const firing = alerts.filter((alert) => alert.state !== "resolved").sort((a, b) => (b.series === "k3") - (a.series === "k3"));
  const over = alerts.filter((alert) => alert.state === "resolved");
  return section("Alerts", firing.length ? table("Alerts", columns, firing) : h("p", { class: "quiet" }, "Nothing fires."),
    over.length ? fold(`${over.length} over (a spike lasts one step; what goes on is the shift above)`, table("Resolved alerts", columns, over.slice(0, 200))) : null);
}

function eventList(events, at) {
  if (events.length === 0) return null;
  const newest = events.toReversed();
  const list = (some) => table("Events", [
    { title: "event", get: (event) => words(event.kind) },
    { title: "step", get: (event) => (event.step === null ? "—" : h("a", { href: at(event.step) }, String(event.step))) },
    { title: "details", get: describe },
  ], some);
  return section("Events", list(newest.slice(0, 8)), newest.length > 8 ? fold(`${newest.length - 8} earlier`, list(newest.slice(8, 300))) : null);
}

/** The latest steps, a page at a time. */
function stepList(data, at) {
  const rows = data.step.map((_, i) => i).reverse();
  const metric = (name) => (i) => number(data.metrics[name]?.[i]);
  const columns = [
    { title: "step", get: (i) => h("a", { href: at(data.step[i]) }, String(data.step[i])) },
    { title: "verdict", get: (i) => verdict(data.verdict[i]) },
    { title: "rollout_train_kl", numeric: true, get: metric("k3_mean") },
    { title: "mean |Δ|", numeric: true, get: metric("abs_mean") },
    { title: "E[ρ]", numeric: true, get: metric("rho_mean") },
    { title: "effective sample", numeric: true, get: (i) => share(data.metrics.ess_ratio?.[i]) },
    { title: "tokens", numeric: true, get: (i) => number(data.counted[i]) },
    { title: "likely cause", get: (i) => words(data.cause[i]) || "—" },
  ];
  let first = 0;
  const box = h("div", {});
  const draw = () => {
    const turn = (by, label) => h("button", { type: "button", disabled: first + by < 0 || first + by >= rows.length, onclick: () => { first += by; draw(); } }, label);
    box.replaceChildren(table("Steps", columns, rows.slice(first, first + PAGE)),
      rows.length > PAGE ? h("p", { class: "pager" }, turn(-PAGE, "newer"), ` ${first + 1} to ${Math.min(first + PAGE, rows.length)} of ${format(rows.length)} `, turn(PAGE, "older")) : "");
  };
  draw();
  return section("Steps", box);
}
