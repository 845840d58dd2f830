// The service itself: queues beside their capacities, what was lost, where the time goes.

import { api } from "./api.js";
import { h, section, table } from "./dom.js";
import { bytes, format, number, share, words } from "./words.js";

export async function showHealth() {
  const health = await api.health();
  if (health.waiting_samples === undefined) {
    return { title: "Health", nodes: [h("h1", {}, "Health"), h("p", { class: "state" }, health.ready ? "Ready. Details need the service's token." : "Not ready."), unready(health)] };
  }
  return { title: "Health", nodes: [
    h("h1", {}, "Health ", h("span", { class: `verdict ${health.ready ? "ok" : "inconsistent"}` }, health.ready ? "● ready" : "▲ not ready")),
    unready(health),
    section("Queues and capacities", h("div", { class: "gauges" },
      gauge("samples that wait for their other side", health.waiting_samples, health.max_pending_samples, format),
      gauge("tokens that wait", health.waiting_tokens, health.max_pending_tokens, format),
      gauge("runs in memory", health.runs, health.max_runs, format)),
    h("dl", { class: "facts" }, fact("open steps", format(health.open_steps)), fact("bodies kept until their steps close", bytes(health.inbox_bytes)), fact("database", bytes(health.database_bytes)),
      fact("bodies that could not be read back", format(health.quarantined)))),
    h("div", { class: "pair" },
      counts("Received since start-up", health.counts, { what: "what", value: "count", names: COUNTS }),
      counts("Samples given up since start-up", health.evicted, { what: "why", value: "samples", names: REASONS })),
    h("div", { class: "pair" },
      counts("Where the time went since start-up", health.stage_seconds, { what: "work", value: "seconds", names: STAGES, shown: seconds }),
      counts("Crashes since start-up", health.errors, { what: "in which work", value: "crashes", names: STAGES })),
    h("p", { class: "quiet" }, "The same as Prometheus metrics: ", h("a", { href: "metrics" }, "metrics"), "."),
  ] };
}

/** Why batches are not taken, and what to do. */
const unready = ({ reason, fix }) => (reason ? h("div", { class: "state error", role: "alert" }, h("strong", {}, `Batches are not taken: ${reason}`), h("p", {}, `What to do: ${fix}`)) : null);

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

function gauge(title, value, capacity, shown) {
  const part = capacity ? value / capacity : 0;
  const fill = h("span", { class: `meter-fill ${part > 0.8 ? "bad" : ""}` });
  fill.style.width = `${Math.min(100, 100 * part)}%`;
  return h("div", { class: "gauge" }, h("span", {}, title), h("span", { class: "meter wide", "aria-hidden": "true" }, fill), h("span", { class: "quiet" }, `${shown(value)} of ${shown(capacity)} (${share(part)})`));
}

const COUNTS = {
  batches: "bodies (batches)", samples: "samples", tokens: "tokens", joined: "samples with both sides", duplicates: "samples sent twice, ignored", retokenized: "samples whose sides have different tokens", late: "samples that came after their step was closed",
};
const REASONS = {
  step_closed: "their step closed before the other side came", capacity: "too many waited", ttl: "the other side did not come in time",
};
const STAGES = {
  join: "join: pair the two sides", measure: "measure: all statistics of a block", judge: "judge: verdict of a step", detect: "detect: compare with the run's past", diagnose: "diagnose: name causes", pack: "pack: keep the worst and random samples",
  save: "save: write bodies to disk before they are acknowledged", store: "store: write results to the database", close: "close: whole closing of steps (contains others)", tick: "tick: housekeeping every few seconds", replay: "replay: read back what a restart left", warm_up: "warm up: compile the measurement at start",
};
const seconds = (value) => number(value, value >= 100 ? value.toFixed(0) : value >= 0.01 ? value.toPrecision(2) : "< 0.01");

/** Largest first. `names`: words for the ids that are known. */
function counts(title, values, { what, value, names, shown = number }) {
  const rows = Object.entries(values ?? {}).filter(([, n]) => n).sort(([, a], [, b]) => b - a);
  return section(title, rows.length ? table(title, [{ title: what, get: ([name]) => names[name] ?? words(name) }, { title: value, numeric: true, get: ([, n]) => shown(n) }], rows) : h("p", { class: "quiet" }, "None."));
}
