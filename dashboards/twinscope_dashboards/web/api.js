// The service's JSON API (docs/api.md), and the addresses of this page's views.

export class Problem extends Error {
  constructor(message, { status = 0, fix = "", kind = "" } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.fix = fix;
  }
}

async function get(path, more = {}) {
  let response;
  try {
    response = await fetch(path, { headers: { accept: "application/json" }, ...more });
  } catch {
    throw new Problem("no connection to the service", { fix: "Is it running? The page tries again by itself." });
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Problem(body.detail ?? body.title ?? response.statusText, { status: response.status, fix: body.fix, kind: body.type?.split(":").at(-1) });
  return body;
}

const name = encodeURIComponent;
const PAGE = 200;
export const ALERTS = 1000; // of a run: the service tells no more, newest first
export const EVENTS = 300;
export const STEPS = 5000; // of a run's timeline

export const api = {
  /** Every run, following the pages. */
  async runs() {
    const found = [];
    for (let after = ""; ;) {
      const page = await get(`v1/runs?limit=${PAGE}${after}`);
      found.push(...page.runs);
      if (page.next === null) return found;
      after = `&after=${name(page.next)}`;
    }
  },
  run: (run) => get(`v1/runs/${name(run)}`),
  /** The latest steps as columns; `until`: no step after this one. */
  timeline: (run, { last = STEPS, until = null } = {}) => get(`v1/runs/${name(run)}/timeline?last=${last}${until === null ? "" : `&until=${until}`}`),
  step: (run, step) => get(`v1/runs/${name(run)}/steps/${name(step)}`),
  /** The step before, this one and the next, as far as there. */
  around: (run, step) => get(`v1/runs/${name(run)}/steps?limit=3${step >= 1 ? `&after=${step - 2}` : ""}`),
  evidence: (run, step) => get(`v1/runs/${name(run)}/steps/${name(step)}/evidence`),
  async profiles(run, step) {
    return (await get(`v1/runs/${name(run)}/steps/${name(step)}/profiles`)).statistics;
  },
  alerts: (run) => get(`v1/runs/${name(run)}/alerts?limit=${ALERTS}`),
  events: (run) => get(`v1/runs/${name(run)}/events?limit=${EVENTS}`),
  silences: () => get("v1/silences"),
  silence: (asked) => get("v1/silences", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(asked) }),
  endSilence: (id) => get(`v1/silences/${name(id)}`, { method: "DELETE" }),
  /** The state of the service; an answer of 503 is one too. */
  async health() {
    const response = await fetch("readyz");
    return response.json();
  },
  openapi: () => get("openapi.json"),
  async runbook(path) {
    if (!/^(causes|alerts)\/[a-z0-9_]+\.md$/i.test(path)) throw new Problem(`not a runbook: ${path}`);
    const response = await fetch(`runbooks/${path}`);
    if (!response.ok) throw new Problem(`no runbook ${path}`, { status: response.status });
    return response.text();
  },
};

function from(place) {
  const query = new URLSearchParams(Object.entries(place).filter(([, value]) => value !== null && value !== undefined)).toString();
  return query ? `?${query}` : "";
}

export const link = {
  run: (run, query = "") => `#/runs/${name(run)}${query}`,
  step: (run, step, query = "") => `#/runs/${name(run)}/steps/${step}${query}`,
  /** `place`: the run, and perhaps the step, from which it was opened: the way back. */
  runbook: (path, place = {}) => `#/runbooks/${path}${from(place)}`,
  compare: (...parts) => `#/compare/${parts.map(name).join("/")}`,
};
