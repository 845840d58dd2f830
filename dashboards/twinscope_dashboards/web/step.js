// One step: situation, causes, distribution, where in the samples, tokens, coverage, all numbers.

import { api, link } from "./api.js";
import { leading } from "./alerts.js";
import { causes, situation } from "./causes.js";
import { fill, fold, h, loading, nothing, section, table } from "./dom.js";
import { besideLink, onsetOf, pastOf } from "./past.js";
import { stepReference } from "./reference.js";
import { distribution, groups, lags, profiles, scatter } from "./shapes.js";
import { tokenMap, worstTokens } from "./tokens.js";
import { COVERAGE, KEY_METRICS, asShare, count, format, number, share, time, verdict, words } from "./words.js";

export async function showStep(place) {
  try {
    return await shownStep(place);
  } catch (error) {
    if (error.kind !== "no-such-step") throw error;
    return missing(place.run, place.step);
  }
}

/** A step that nobody sent, or that is gone: which there are, and the way back. */
async function missing(run, asked) {
  const { last, closed_steps: closed } = await api.run(run);
  const near = last === null ? "No step of the run is closed yet." : ["The run has ", count(closed, "closed step"), ", the last is ", h("a", { href: link.step(run, last.step) }, `step ${last.step}`), "."];
  return {
    title: `${run} step ${asked}`, stamp: ABSENT, up: link.run(run),
    nodes: [h("div", { class: "heading" }, h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Runs"), " › ", h("a", { href: link.run(run) }, run)), h("h1", {}, `There is no step ${asked}`)),
      nothing(h("p", {}, `Nothing was received for step ${asked} of ${run}, or it is not kept any more. `, near), h("p", {}, h("a", { href: link.run(run) }, `Back to ${run}`)))],
  };
}

const ABSENT = "no such step";

async function shownStep({ run, step: number_, query }) {
  const [step, alerts, around] = await Promise.all([api.step(run, number_), api.alerts(run), neighbours(run, Number(number_))]);
  const at = (other) => link.step(run, other);
  const about = alerts.filter((alert) => covers(alert, step.step)).map((alert) => ({ ...alert, state: "firing" }));
  const onset = onsetOf(leading(about));
  const past = onset === null ? null : api.timeline(run, { last: LOOK_BACK, until: onset }).then((data) => pastOf(data, onset));
  const { parts, ready } = step.coverage?.counted ? compared(run, step, query) : { parts: [], ready: null };
  const nodes = [
    heading(run, step, around, at),
    situation({ step, alerts: about, href: at, links: lookAt(run, step, past), place: { run, step: step.step }, past }),
    parts.length ? keyNumbers(step) : null,
    section("Causes", causes(step, { told: true })),
    ...parts, coverage(step), everything(step),
  ];
  const target = { tokens: "tokens", groups: "s-by-group" }[query.get("at")];
  const again = () => document.getElementById(target)?.scrollIntoView();
  if (target) ready?.then(() => requestAnimationFrame(again));
  const go = (other) => () => { if (other !== undefined) location.hash = at(other); };
  return { title: `${run} step ${step.step}`, nodes, ready, again, stamp: `${step.state}/${step.samples}`, up: link.run(run), keys: { j: go(around.next), k: go(around.previous) } };
}

/** Where the two sides differ: boxes that fill when profiles and samples have come. */
function compared(run, step, query) {
  const shapes = h("div", {}, loading("where in the samples it differs"));
  const tokens = h("div", {}, loading("the kept samples"));
  const evidence = api.evidence(run, step.step);
  const open = (sample) => link.step(run, step.step, `?at=tokens&sample=${encodeURIComponent(sample)}`);
  return {
    parts: [h("section", { "aria-label": "Distribution and profiles" }, shapes), h("section", { "aria-label": "Tokens", id: "tokens" }, tokens)],
    ready: Promise.allSettled([
      fill(shapes, async () => shapesOf(await api.profiles(run, step.step), await evidence, step)),
      fill(tokens, async () => [worstTokens(await evidence, step, { open }), await tokenMap(await evidence, { chosen: query.get("sample") })]),
    ]),
  };
}

export async function stepStamp(run, number_) {
  try {
    const step = await api.step(run, number_);
    return `${step.state}/${step.samples}`;
  } catch (error) {
    if (error.kind !== "no-such-step") throw error;
    return ABSENT;
  }
}

/** Was this step part of what the alert is about? */
function covers(alert, step) {
  return (alert.onset_step ?? alert.step) <= step && (alert.state !== "resolved" || step < alert.step);
}

async function neighbours(run, step) {
  const near = await api.around(run, step).catch(() => ({ steps: [] }));
  const found = near.steps.map((other) => other.step);
  return { previous: found.find((other) => other === step - 1), next: found.find((other) => other > step) };
}

function heading(run, step, around, at) {
  const turn = (other, label) => (other === undefined ? h("span", { class: "quiet" }, label) : h("a", { href: at(other) }, label));
  return h("div", { class: "heading" },
    h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Runs"), " › ", h("a", { href: link.run(run) }, run), " › ", turn(around.previous, "‹ previous"), " ", turn(around.next, "next ›")),
    h("h1", {}, `Step ${step.step} `, verdict(step.verdict)),
    h("p", { class: "quiet" }, `${count(step.samples, "sample")}, ${count(step.tokens, "token")}, `,
      step.state === "closed" ? ["closed ", time(step.closed_at), step.closed_by ? ` (${{ complete: "complete", call: "by call", grace: "after the grace period", ttl: "given up" }[step.closed_by] ?? step.closed_by})` : ""] : "still open"));
}

const LOOK_BACK = 200; // steps before an onset in which a healthy one is looked for

function lookAt(run, step, past) {
  if (!step.coverage?.counted) return [h("a", { href: link.run(run) }, "the run")];
  const beside = h("span", {});
  past?.then((found) => beside.append(...[besideLink(run, found, step.step)].flat().filter(Boolean))).catch(() => {}); // the tokens are there without it
  return [h("a", { href: link.step(run, step.step, "?at=tokens") }, "the worst tokens"), beside];
}

const FIRST = 6; // of KEY_METRICS; the others are folded

function keyNumbers(step) {
  const known = KEY_METRICS.filter(([name]) => step.metrics?.[name] !== null && step.metrics?.[name] !== undefined);
  return section("Key numbers", tiles(step, known.slice(0, FIRST)), known.length > FIRST ? fold(`${known.length - FIRST} more`, tiles(step, known.slice(FIRST))) : null);
}

function tiles(step, metrics) {
  return h("dl", { class: "tiles" }, metrics.map(([name, title, meaning, unit]) => h("div", { class: "tile", "data-metric": name },
    h("dt", {}, title), h("dd", {}, number(step.metrics[name], asShare(unit, step.metrics[name])), unit === "nats" ? h("span", { class: "unit" }, " nats") : null), h("dd", { class: "meaning" }, meaning))));
}

function shapesOf(statistics, evidence, step) {
  if (statistics === null) return h("p", { class: "state empty" }, "Profiles of this step are not kept any more.");
  return [
    h("h2", {}, "How and where they differ"),
    h("div", { class: "pair" }, distribution(statistics, step), scatter(evidence)),
    h("div", { class: "pair" }, profiles(statistics), lags(statistics, evidence.samples)),
    groups(statistics, step),
    stepReference(step, statistics),
  ];
}

/** Open by itself where something was lost; one line where nothing was. */
function coverage(step) {
  const received = step.coverage?.received ?? 0;
  const rows = Object.entries(step.coverage ?? {});
  const columns = [
    { title: "tokens", get: ([name]) => COVERAGE[name] ?? words(name) },
    { title: "count", numeric: true, get: ([name, tokens]) => h("span", { "data-coverage": name }, number(tokens)) },
    { title: "share", numeric: true, get: ([, count]) => (received ? share(count / received) : "—") },
  ];
  const sides = Object.entries(step.sides ?? {});
  const joined = [["joined", step.joined], ["retokenized", step.retokenized], ["duplicates", step.duplicates], ["late", step.late], ["given up", Object.values(step.evicted ?? {}).reduce((a, b) => a + b, 0)]];
  const lost = LOSSES.filter((name) => step.coverage?.[name]).map((name) => COVERAGE[name]).concat(joined.slice(1).filter(([, samples]) => samples).map(([name]) => `samples ${name}`));
  const title = lost.length || step.verdict === "unknown" ? `Look: ${lost.join(", ") || "the step could not be judged"}` : `Nothing lost: ${format(step.coverage?.counted ?? 0)} of ${format(received)} tokens counted${step.coverage?.masked_out ? ", the others masked" : ""}`;
  const details = fold(title, h("div", { class: "pair" }, table("Tokens by what became of them", columns, rows), h("div", {},
    table("Samples by side", [
      { title: "side", get: ([name]) => name },
      { title: "received", numeric: true, get: ([, side]) => number(side.received) },
      { title: "waiting", numeric: true, get: ([, side]) => number(side.waiting) },
      { title: "expected", numeric: true, get: ([, side]) => number(side.expected) },
    ], sides),
    table("Samples by what became of them", [{ title: "samples", get: ([name]) => name }, { title: "count", numeric: true, get: ([, count]) => number(count) }], joined),
    step.retokenized_examples?.length ? fold("Different tokens on the two sides", table("Retokenized samples", [
      { title: "sample", get: (one) => one.sample_id || "—" },
      { title: "first difference at", numeric: true, get: (one) => number(one.first_difference) },
      { title: "rollout tokens", numeric: true, get: (one) => number(one.rollout_tokens) },
      { title: "train tokens", numeric: true, get: (one) => number(one.train_tokens) },
    ], step.retokenized_examples)) : null)));
  if (lost.length || step.verdict === "unknown") { details.open = true; details.dataset.opened = "by itself"; }
  return section("Coverage", details);
}

const LOSSES = ["nonfinite", "sentinel", "positive", "clamped"];

function everything(step) {
  const rows = [...Object.entries(step.metrics ?? {}), ...Object.entries(step.scalars ?? {}).map(([name, value]) => [`scalar ${name}`, value])];
  const columns = [{ title: "name", get: ([name]) => h("code", {}, name) }, { title: "value", numeric: true, get: ([, value]) => number(value) }];
  return section("All numbers", h("p", {}, "The names with a slash, and the long ones, are those that verl, TRL, slime, NeMo-RL, prime-rl, SkyRL and OpenRLHF log: compare with the plot you have."),
    fold(`${rows.length} metrics`, table("All metrics", columns, rows)));
}
