// The service itself: queues beside their capacities, what was lost, where the time goes.

import { api } from "./api.js";
import { h, section, table } from "./dom.js";
import { bytes, format, number, share, words } from "./words.js";

export async function showHealth() {
  const health = await api.health();
  if (health.waiting_samples === undefined) {
    return { title: "Health", nodes: [h("h1", {}, "Health"), h("p", { class: "state" }, health.ready ? "Ready. Details need the service's token." : "Not ready.")] };
  }
  return { title: "Health", nodes: [
    h("h1", {}, "Health ", h("span", { class: `verdict ${health.ready ? "ok" : "inconsistent"}` }, health.ready ? "● ready" : "▲ not ready")),
    section("Queues and capacities", h("div", { class: "gauges" },
      gauge("samples that wait for their other side", health.waiting_samples, health.max_pending_samples, format),
      gauge("tokens that wait", health.waiting_tokens, health.max_pending_tokens, format),
      gauge("runs in memory", health.runs, health.max_runs, format)),
    h("dl", { class: "facts" }, fact("open steps", format(health.open_steps)), fact("bodies kept until their steps close", bytes(health.inbox_bytes)), fact("database", bytes(health.database_bytes)),
      fact("bodies that could not be read back", format(health.quarantined)))),
    h("div", { class: "pair" }, counts("Received, since start-up", health.counts), counts("Samples given up, by reason", health.evicted)),
    h("div", { class: "pair" }, counts("Seconds by stage", health.stage_seconds), counts("Crashes by stage", health.errors)),
    h("p", { class: "quiet" }, "The same as Prometheus metrics: ", h("a", { href: "metrics" }, "metrics"), "."),
  ] };
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

function gauge(title, value, capacity, shown) {
  const part = capacity ? value / capacity : 0;
  const fill = h("span", { class: `meter-fill ${part > 0.8 ? "bad" : ""}` });
  fill.style.width = `${Math.min(100, 100 * part)}%`;
  return h("div", { class: "gauge" }, h("span", {}, title), h("span", { class: "meter wide", "aria-hidden": "true" }, fill), h("span", { class: "quiet" }, `${shown(value)} of ${shown(capacity)} (${share(part)})`));
}

function counts(title, values) {
  const rows = Object.entries(values ?? {}).filter(([, value]) => value);
  return section(title, rows.length ? table(title, [{ title: "what", get: ([name]) => words(name) }, { title: "count", numeric: true, get: ([, value]) => number(value) }], rows) : h("p", { class: "quiet" }, "None."));
}
