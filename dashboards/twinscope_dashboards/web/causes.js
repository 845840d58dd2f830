// Causes: what most likely happened, how sure, the evidence, what would remain, what to do.

import { leading } from "./alerts.js";
import { api, link } from "./api.js";
import { failure, h, loading } from "./dom.js";
import { render, summary } from "./markdown.js";
import { capital, count, moment, number, sentence, share, times, words } from "./words.js";

/** `told`: evidence and fix of the first one stand above already (situation). */
export function causes(step, { told = false } = {}) {
  const found = step.diagnosis ?? [];
  if (found.length === 0) {
    return h("p", { class: "state empty" }, step.state === "open" ? "Causes are named when the step closes." : "No cause was named for this step.");
  }
  return h("ol", { class: "causes" }, found.map((cause, index) => card(cause, step, { first: index === 0, told: told && index === 0 })));
}

function card(cause, step, { first, told }) {
  return h("li", { class: `cause ${cause.family === "none" ? "calm" : ""}` },
    h("div", { class: "cause-head" },
      h("h3", { "data-cause": cause.cause }, words(cause.cause)),
      h("span", { class: "family" }, cause.family === "none" ? "healthy" : cause.family),
      meter(cause.confidence)),
    told ? null : h("p", {}, capital(sentence(cause.evidence))),
    remains(cause, step),
    cause.fix && !told ? h("p", { class: "fix" }, h("strong", {}, "Do: "), sentence(cause.fix)) : null,
    facts(cause),
    cause.runbook ? runbook(cause.runbook, first && cause.family !== "none" ? "Runbook: how it looks, how sure one can be, where to look in your framework" : "Runbook") : null);
}

function meter(confidence) {
  const label = `confidence ${share(confidence)}`;
  const bar = h("span", { class: "meter-fill" });
  bar.style.width = `${Math.round(100 * confidence)}%`;
  return h("span", { class: "confidence" }, h("span", { class: "meter", "aria-hidden": "true" }, bar), h("data", { value: String(confidence) }, label));
}

function remains(cause, step) {
  if (cause.family === "none" || cause.k3_after === null || cause.k3_after === undefined) return null;
  return h("p", { class: "counterfactual" }, "Without it ", h("strong", {}, "rollout_train_kl"), " would be ", number(cause.k3_after),
    step.metrics?.k3_mean ? [" instead of ", number(step.metrics.k3_mean)] : null,
    cause.k3_after_is ? ` (${cause.k3_after_is}).` : ".");
}

function facts(cause) {
  const estimates = cause.estimate_in_words ?? [];
  if (estimates.length === 0 && cause.group.length === 0 && cause.share >= 1) return null;
  const shown = (value) => (typeof value === "number" ? number(value) : typeof value === "string" ? value : Array.isArray(value) ? value.join(", ") : JSON.stringify(value));
  return h("dl", { class: "facts" },
    estimates.map(({ title, value }) => [h("dt", {}, title), h("dd", {}, shown(value))]),
    cause.share < 1 ? [h("dt", {}, "touches"), h("dd", {}, `${share(cause.share)} of the tokens' samples`)] : null,
    cause.group.length ? [h("dt", {}, "cannot be told from"), h("dd", {}, cause.group.filter((id) => id !== cause.cause).map(words).join(", "))] : null,
    cause.separator ? [h("dt", {}, "would tell them apart"), h("dd", {}, cause.separator)] : null);
}

/** A fold that fetches the runbook when it is opened. */
export function runbook(path, title = "Runbook") {
  const inside = h("div", { class: "runbook" });
  return h("details", { ontoggle: async (event) => {
    if (!event.currentTarget.open || inside.childNodes.length) return;
    inside.append(loading("the runbook"));
    try {
      inside.replaceChildren(...render(await api.runbook(path)));
    } catch (error) {
      inside.replaceChildren(failure(error));
    }
  } }, h("summary", {}, title), inside);
}

/** One line about the likeliest cause. */
export function causeLine(step) {
  const best = step?.diagnosis?.[0];
  if (!best) return "—";
  return best.family === "none" ? h("span", { class: "quiet" }, words(best.cause)) : h("span", {}, h("strong", {}, words(best.cause)), ` ${share(best.confidence)}`);
}

/**
 * What an engineer who was woken wants to know, in one box. `place`: {run, step} of the view;
 * `past`: a promise of what was before the onset (past.js).
 */
export function situation({ step, alerts, href, links = [], events = null, place = {}, past = null }) {
  const lead = leading(alerts);
  const fell = alerts.find((alert) => alert.state === "firing" && alert.series === "k3" && alert.came_down);
  const best = step.diagnosis?.[0];
  const healthy = step.verdict === "ok" && !lead;
  const known = lead && past ? past.catch(() => null) : Promise.resolve(null); // the box stands without it
  return h("section", { class: `situation ${step.verdict} ${lead ? "alarmed" : ""} ${byCause(step) ? "by-cause" : ""}`, "aria-label": "What is going on" },
    h("dl", {},
      row("Is it real?", judged(step, lead, { fell, place })),
      healthy ? null : row("Since when?", [since(lead, step, { href, known }), lead && events ? changed(events, lead) : null]),
      row("How bad for training?", harm(step.metrics ?? {}, known)),
      healthy ? null : row("On which tokens?", spread(step, best)),
      best && best.family !== "none" ? row("What caused it?", blamed(best, step)) : null,
      best && best.family !== "none" ? row("What to do?", [sentence(best.fix), " ", h("a", { href: link.runbook(best.cause, place) }, "Runbook"), isStaleness(best) ? intended(step, place) : taught(step, lead, known)]) : null,
      healthy && best ? row("Why?", sentence(best.evidence)) : null,
      links.length ? row("Look at", links) : null,
      row("Notation", signs())));
}

const SIGNS = [
  ["q", "log-prob of a sampled token as the rollout engine reports it"],
  ["p", "the same token's log-prob recomputed by the trainer, before any update"],
  ["Δ", "p − q; 0 where both agree"],
  ["ρ", "e^Δ, trainer's over engine's probability"],
  ["k3", "e^Δ − 1 − Δ; its mean over the tokens is rollout_train_kl, in nats"],
];

/** What the letters on this page stand for, one short line each. */
const signs = () => h("ul", { class: "signs" }, SIGNS.map(([sign, meaning]) => h("li", {}, h("strong", {}, sign), ` = ${meaning}`)));

/** The cause, what was found of it here, and what it is in general, in the words of its runbook. */
function blamed(best, step) {
  const meaning = h("p", { class: "quiet", "data-role": "meaning" });
  api.runbook(best.runbook).then((text) => { meaning.textContent = `In general: ${summary(text)}`; }).catch(() => {}); // the name and the evidence stand without it
  return [h("strong", { "data-role": "cause" }, words(best.cause)), ` (${share(best.confidence)} sure). `, capital(sentence(best.evidence)), meaning];
}

/** What else happened when it began; its absence is told, so that nobody looks for it. */
function changed(events, lead) {
  const onset = lead.onset_step ?? lead.step;
  const near = events.filter((event) => event.step !== null && event.step >= onset - 1 && event.step <= onset);
  return h("p", { class: "quiet" }, near.length
    ? ["Reported then: ", near.slice(0, 5).map((event) => words(event.kind)).join(", "), near.length > 5 ? " and more" : "", " (see Events)."]
    : "No event (weight sync, restart, change of configuration) was reported then; probe.event() shows them here.");
}

/** Everywhere a little, or somewhere a lot? */
function spread(step, best) {
  const { abs_p50: middle, abs_p99: tail, abs_max: most } = step.metrics ?? {};
  if (most === 0) return "On none: p is q on every token.";
  if (most === null || most === undefined) return "Not known: no token has both sides.";
  const part = best && best.family !== "none" && best.share < 1 ? `In samples with ${share(best.share)} of the tokens.` : "In all samples alike, as far as can be told.";
  return [part, middle === null || middle === undefined ? null : [" Half of the tokens differ by more than ", number(middle), " nats, one in a hundred by more than ", number(tail), "."]];
}

const CLIPPED = 0.1; // share of tokens that PPO clips before any update, from where a step back is worth its price
const WORTH = 0.9; // effective sample size, below which it is

/** Is what was trained on it so far off that going back is worth it? */
function damaged(step) {
  const { ess_ratio: worth, clip_fraction: clipped } = step.metrics ?? {};
  return (worth ?? 1) < WORTH || (clipped ?? 0) > CLIPPED || (step.reasons ?? []).some((reason) => /^rollout_train_kl .* is above /.test(reason) && !reason.includes("worth a look"));
}

/** Older weights than the trainer's, and it is known how old. */
const isStaleness = (best) => ["stale_weights", "mixed_weight_versions"].includes(best.cause)
  && (best.estimate?.version_lag ?? best.estimate?.k3_by_version_lag) !== undefined;

function intended(step, place) {
  const groups = place.run === undefined ? null : [" (", h("a", { href: link.step(place.run, step.step, "?at=groups") }, "By group"), ")"];
  return h("p", {}, "If so many versions of lag are intended (asynchronous training), this is staleness, not a fault: judge by k3 at lag 0", groups, ".");
}

/** What was trained on it already. */
function taught(step, lead, known) {
  const onset = lead?.onset_step ?? null;
  if (step.verdict !== "inconsistent" || onset === null || onset < 1 || step.step < onset) return null;
  const last = h("span", { "data-role": "last-before" });
  known.then((found) => { if (typeof found?.ok?.step === "number") last.append(`; the last healthy step before it is ${found.ok.step}`); });
  return h("p", {}, step.step > onset ? `Steps ${onset} to ${step.step} were` : `Step ${onset} was`, " trained on it", last, `. ${damaged(step)
      ? `If the loss does not correct the ratio (importance sampling with q), stop and go back to a checkpoint from before step ${onset}.`
      : "So little was lost by it that no step back is worth its price: mend it and go on."}`);
}

const row = (question, answer) => h("div", {}, h("dt", {}, question), h("dd", {}, answer));

/** Named by its cause alone: every level was within its band. */
const byCause = (step) => (step.reasons ?? []).some((reason) => reason.startsWith("within the level bands, yet"));

function judged(step, lead, { fell, place }) {
  const level = step.metrics?.k3_mean;
  const copied = step.metrics?.abs_max === 0 && step.verdict === "unknown";
  const said = copied ? "Nothing was compared: both sides are the same numbers." : { ok: lead ? "It changed; the level alone would not alarm." : "No sign of trouble.", inconsistent: byCause(step) ? "The level alone would not alarm; the cause does." : "Yes: sampler and trainer disagree.", unknown: "Not known: it could not be judged." }[step.verdict];
  return [h("strong", {}, said),
    copied || level === null || level === undefined ? null : [" rollout_train_kl, the KL between the two, is ", number(level), " nats per token",
      lead?.before > 0 && lead.series === "k3" ? ownLevels(level, lead, place) : null, ". "],
    fell && step.verdict !== "inconsistent" ? `It fell at step ${fell.onset_step ?? fell.step} (${times(fell.ratio)}): the two sides came closer. ` : null,
    step.reasons?.length ? h("ul", {}, step.reasons.map((reason) => h("li", {}, reason))) : null];
}

/** One step and the median of those since the onset have each a ratio to what was before. */
function ownLevels(level, lead, place) {
  return [`; ${place.step === undefined ? "the last" : "this"} step: ${Number((level / lead.before).toPrecision(3))} times this run's own level of `, number(lead.before),
    lead.ratio ? ` (${times(lead.ratio)} in the median)` : null];
}

function since(lead, step, { href, known }) {
  if (!lead) return "No detector fired; the verdict comes from this step's own level.";
  const onset = lead.onset_step ?? lead.step;
  const when = h("span", { "data-role": "when" });
  known.then((found) => { if (found?.at) when.append(`, ${moment(found.at)}`); });
  return [h("a", { href: href(onset), "data-role": "onset" }, `step ${onset}`), when,
    step.step > onset ? `, ${count(step.step - onset + 1, "step")} up to step ${step.step}` : "", ` (${words(lead.kind)}, noticed at step ${lead.step}).`];
}

function harm(metrics, known) {
  if (metrics.clip_fraction === null || metrics.clip_fraction === undefined) return "Not known.";
  if (metrics.abs_max === 0) return "Not known: both sides are the same numbers, so nothing was compared.";
  const healthy = (name) => {
    const told = h("span", { "data-before": name });
    known.then((found) => { if (typeof found?.ok?.[name] === "number") told.append(` (step ${found.ok.step}, before it began: `, number(found.ok[name], share(found.ok[name])), ")"); });
    return told;
  };
  return ["If q is the old policy of the loss, PPO clips ", number(metrics.clip_fraction, share(metrics.clip_fraction)), " of the tokens before any update", healthy("clip_fraction"),
    "; as importance weights, the batch is worth ", number(metrics.ess_ratio, share(metrics.ess_ratio)), " of its tokens, the effective sample size", healthy("ess_ratio"), "."];
}
