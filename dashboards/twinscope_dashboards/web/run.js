// One run: what is going on, its timeline, alerts, events, steps.

import { alertList, leading, rise } from "./alerts.js";
import { EVENTS, api, link } from "./api.js";
import { situation } from "./causes.js";
import { fill, fold, h, loading, nothing, section, table } from "./dom.js";
import { besideLink, onsetOf, pastOf } from "./past.js";
import { policyRef } from "./reference.js";
import { describe, timeline } from "./timeline.js";
import { count, fiveMinutes, format, number, pulseWord, share, time, verdict, words } from "./words.js";

const PAGE = 15;

export async function showRun({ run, query }) {
  const [view, alerts, events] = await Promise.all([api.run(run), api.alerts(run), api.events(run)]);
  const at = (step) => link.step(run, step);
  const [living, silenced] = [h("span", {}), h("span", { class: "silenced" })];
  const nodes = [heading(view, run, { living, silenced, lead: leading(alerts) })];
  if (view.last === null) {
    nodes.push(nothing(h("p", {}, "No step of this run is closed yet. ", view.open_steps.length ? ["Open: ", openSteps(view, at), "."] : `Waiting for their other side: ${count(view.waiting_samples, "sample")}.`)));
    return { title: run, nodes, stamp: stamp(view) };
  }
  const [curves, steps, beside] = [h("div", { class: "curves" }, loading("the timeline")), h("div", {}), h("span", {})];
  const columns = api.timeline(run);
  const onset = onsetOf(leading(alerts));
  const past = onset === null ? null : columns.then((data) => pastOf(data, onset));
  nodes.push(situation({ step: view.last, alerts, href: at, links: [h("a", view.last.coverage?.counted ? { href: link.step(run, view.last.step, "?at=tokens") } : { href: at(view.last.step) }, view.last.coverage?.counted ? "the tokens of the last step" : "the last step"), beside], events, place: { run }, past }),
    curves, alertList(run, alerts, at, { silenced }), eventList(events, at), steps);
  const ready = fill(curves, async () => {
    const data = await columns;
    living.replaceChildren(pulseWord(view.last_seen, data.closed_at, data.events)); // the verdict may be about what is long past
    if (onset !== null) beside.replaceChildren(...[besideLink(run, await past, onset)].flat().filter(Boolean));
    steps.replaceChildren(stepList(data, at));
    return [timeline(data, {
      range: rangeOf(query, data), onStep: (step) => { location.hash = at(step); },
      onRange: (from, to) => readdress(link.run(run, from === null ? "" : `?from=${from}&to=${to}`)),
    }), policyRef(data)];
  });
  return { title: run, nodes, ready, stamp: stamp(view), up: "#/", keys: { j: () => { location.hash = at(leading(alerts)?.onset_step ?? view.last.step); } } };
}

/** Another address of the view that is shown, and stays. */
function readdress(address) {
  history.replaceState(null, "", address);
  dispatchEvent(new Event("readdressed"));
}

/** What tells that something is new without fetching it all. */
export const stamp = (view) => `${view.closed_steps}/${view.open_steps.join()}/${view.last?.step}/${(view.processes ?? []).map(({ state }) => state[0]).join("")}/${fiveMinutes()}`;
export const runStamp = async (run) => stamp(await api.run(run));

function heading(view, run, { living, silenced, lead }) {
  const at = (step) => link.step(run, step);
  return h("div", { class: "heading" },
    h("h1", {}, run, " ", verdict(view.last?.verdict ?? "unknown"), rise(view.last?.verdict, lead), silenced),
    h("p", { class: "quiet" }, `${count(view.closed_steps, "closed step")}, last data `, time(view.last_seen), living,
      view.open_steps.length ? [", open: ", openSteps(view, at)] : null,
      view.waiting_samples ? `, waiting for their other side: ${count(view.waiting_samples, "sample")}` : null),
    heardFrom(view.processes ?? []));
}

/** Which processes still speak: an idle one does, once a minute; a dead one does not. */
function heardFrom(processes) {
  const [alive, lost] = ["alive", "lost"].map((state) => processes.filter((process) => process.state === state));
  if (!alive.length && !lost.length) return null;
  const latest = (list) => time(Math.max(...list.map((process) => process.last_heard_at)));
  const who = lost.slice(0, 5).map(({ rank, pid }) => (rank === null ? `pid ${pid}` : `rank ${rank}`)).join(", ") + (lost.length > 5 ? " …" : "");
  return h("p", { class: "quiet processes" },
    alive.length ? [`${format(alive.length)} ${alive.length === 1 ? "process" : "processes"} alive, last heard from `, latest(alive)] : null,
    alive.length && lost.length ? "; " : null,
    lost.length ? [`${format(lost.length)} without a sign of life (${who}), last heard from `, latest(lost)] : null);
}

const openSteps = (view, at) => view.open_steps.slice(0, 5).map((step, i) => [i ? ", " : "", h("a", { href: at(step) }, `step ${step}`)]);

function rangeOf(query, data) {
  if (!query.has("from") || !query.has("to")) return null;
  const [from, to] = [Number(query.get("from")), Number(query.get("to"))].sort((a, b) => a - b);
  return from >= data.step[0] && from <= data.step.at(-1) ? { from, to: Math.min(to, data.step.at(-1)) } : null;
}

function eventList(events, at) {
  if (events.length === 0) return null;
  const newest = events.toReversed();
  const list = (some) => table("Events", [
    { title: "event", get: (event) => words(event.kind) },
    { title: "step", get: (event) => (event.step === null ? "—" : h("a", { href: at(event.step) }, String(event.step))) },
    { title: "details", get: describe },
  ], some);
  return section("Events", list(newest.slice(0, 8)), newest.length > 8 ? fold(`${newest.length - 8} earlier`, list(newest.slice(8))) : null,
    newest.length >= EVENTS ? h("p", { class: "hint", "data-limit": "events" }, `Only the newest ${EVENTS} events of a run are listed here; this run has had more.`) : null);
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
    box.replaceChildren(table("Steps", columns, rows.slice(first, first + PAGE), { cards: "compact" }),
      rows.length > PAGE ? h("p", { class: "pager" }, turn(-PAGE, "newer"), ` ${first + 1} to ${Math.min(first + PAGE, rows.length)} of ${format(rows.length)}${data.closed_steps > rows.length ? ` (the latest; ${format(data.closed_steps)} in all)` : ""} `, turn(PAGE, "older")) : "");
  };
  draw();
  return section("Steps", box);
}
