// Numbers, times and names as people read them.

import { h } from "./dom.js";

/** Four significant digits; powers of ten where zeros would be counted. */
export function format(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace("e+", "e");
  return Number(value.toPrecision(4)).toString();
}

/** A number with its exact value beside it: shown, machine-readable and in the tooltip. */
export function number(value, shown = format(value)) {
  if (value === null || value === undefined) return h("span", { class: "unknown", title: "not known" }, "—");
  return h("data", { value: String(value), title: String(value) }, shown);
}

export const share = (value) => (value === null || value === undefined ? "—"
  : `${(100 * value).toFixed(value !== 0 && Math.abs(value) < 0.1 ? 1 : 0)} %`);
export const times = (ratio) => (ratio === null || ratio === undefined ? "" : `×${Number(ratio.toPrecision(3))}`);
export const words = (id) => (id ?? "").replaceAll("_", " ");
/** "1 step", "2 steps". */
export const count = (number_, noun) => `${format(number_)} ${noun}${number_ === 1 ? "" : "s"}`;
/** With one full stop at its end. */
export const sentence = (text) => (/[.!?]\s*$/.test(text ?? "") ? text.trimEnd() : `${text ?? ""}.`);

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function ago(seconds) {
  if (!seconds) return "—";
  const past = Date.now() / 1000 - seconds;
  const [count, unit] = past < 90 ? [past, "s"] : past < 5400 ? [past / 60, "min"] : past < 129600 ? [past / 3600, "h"] : [past / 86400, "d"];
  return `${Math.max(0, Math.round(count))} ${unit} ago`;
}
/** A moment of today or of another day, in this reader's time. */
export function moment(seconds) {
  const at = new Date(seconds * 1000);
  const today = at.toDateString() === new Date().toDateString();
  return `${today ? "" : `${at.toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" })} `}${at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })}`;
}
export const until = (seconds) => `until ${moment(seconds)}`;

const QUIET_S = 900; // as the silence alarm: three usual step times, but never before 15 minutes

const FRESH_S = 60; // data younger than this, or than five usual step times, are those of a live run

/** Does a run still live? `closed`: times at which its latest steps closed, ascending. */
export function pulse(lastSeen, closed, events) {
  return events.at(-1)?.kind === "finished" ? "finished" : pulseAt(lastSeen, usualPause(closed));
}

/** Seconds from step to step, the median of the latest. */
function usualPause(closed) {
  const pauses = closed.slice(-120).map((at, i, all) => (i ? at - all[i - 1] : null)).slice(1).sort((a, b) => a - b);
  return pauses[Math.floor(pauses.length / 2)] ?? 0;
}

function pulseAt(lastSeen, usual) {
  const age = Date.now() / 1000 - lastSeen;
  return age > Math.max(QUIET_S, 3 * usual) ? "silent" : age < Math.max(FRESH_S, 5 * usual) ? "live" : "quiet";
}

/** The word of `pulse`, which `retell` keeps true while nothing new comes. */
export function pulseWord(lastSeen, closed, events) {
  const told = h("span", { class: "pulse", "data-last": lastSeen, "data-usual": usualPause(closed) });
  tellPulse(told, pulse(lastSeen, closed, events));
  return told;
}

function tellPulse(told, found) {
  const minutes = Math.max(1, Math.floor((Date.now() / 1000 - Number(told.dataset.last)) / 60));
  told.className = `pulse ${found}`;
  told.dataset.pulse = found;
  told.textContent = found === "quiet" ? `: quiet for ${minutes} min` : `: ${found}`;
}

export const time = (seconds) => (seconds ? h("time", { datetime: new Date(seconds * 1000).toISOString(), title: new Date(seconds * 1000).toLocaleString() }, ago(seconds)) : "—");

/** Say anew how long ago everything was, and what still lives. */
export function retell(root) {
  for (const told of root.querySelectorAll("time[datetime]")) told.textContent = ago(Date.parse(told.dateTime) / 1000);
  for (const told of root.querySelectorAll("[data-pulse]:not(.finished)")) tellPulse(told, pulseAt(Number(told.dataset.last), Number(told.dataset.usual)));
}

/** Changes every five minutes: a run that goes silent brings no news of itself. */
export const fiveMinutes = () => Math.floor(Date.now() / 300000);

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = count > 0 ? Math.min(units.length - 1, Math.floor(Math.log10(count) / 3)) : 0;
  return `${Number((count / 1000 ** power).toPrecision(3))} ${units[power]}`;
}

const MARKS = { ok: "●", inconsistent: "▲", unknown: "?" };

/** A verdict by word, shape and colour. */
export function verdict(value) {
  const known = value in MARKS ? value : "unknown";
  return h("span", { class: `verdict ${known}` }, h("span", { "aria-hidden": "true" }, MARKS[known]), ` ${known}`);
}

/** What rose, where the verdict alone would say `ok`. */
export const risen = (what) => h("span", { class: "verdict risen" }, h("span", { "aria-hidden": "true" }, "▲"), ` ${what}`);

const SERIES = {
  step: "steps", train: "the train side", rollout: "the rollout side", delta: "Δ", k3: "rollout_train_kl", abs_p50: "median |Δ|", abs_p99: "99th percentile of |Δ|", rho_excess: "E[ρ] − 1", surprise: "E[−p] less the entropy",
  nonfinite_share: "share of tokens that are NaN or infinite", sentinel_share: "share of tokens with a fill value", positive_share: "share of tokens with a log-prob above 0",
  zero_rollout_share: "share of tokens with log-prob q exactly 0", zero_train_share: "share of tokens with log-prob p exactly 0", delta_zero_share: "share of tokens with q = p", clamped_share: "share of tokens beyond the clamp",
};

/** What a watched series is, in words; `k3{replica=3}` is that of one replica. */
export function series(id) {
  const group = /^k3\{(.*)\}$/.exec(id ?? "");
  return group ? `rollout_train_kl of ${group[1]}` : SERIES[id] ?? words(id);
}

// The figures that stand at the top of a step: name in the API, title, what it says.
export const KEY_METRICS = [
  ["k3_mean", "rollout_train_kl", "k3 estimate of KL(rollout‖train), nats per token", "nats"],
  ["abs_mean", "mean |Δ|", "how far the two log-probs of a token are apart", "nats"],
  ["abs_p99", "99th percentile of |Δ|", "one token in a hundred is further apart", "nats"],
  ["ess_ratio", "effective sample size", "share of the tokens that the batch is worth", "share"],
  ["clip_fraction", "clipped before any update", "share of tokens outside the PPO range already (0.8 to 1.2 unless set)", "share"],
  ["rho_mean", "E[ρ]", "mean of train over rollout probability; 1 if q is what was sampled", ""],
  ["abs_max", "largest |Δ|", "the worst single token, not clamped", "nats"],
  ["inv_rho_mean", "E[1/ρ]", "the reverse; 1 if p is what was sampled", ""],
  ["pearson_prob", "correlation of e^q and e^p", "often stays green when all else is red", ""],
  ["ppl_ratio", "perplexity ratio", "train over rollout, per sequence", ""],
  ["policy_ref_kl", "KL(policy‖reference)", "same ruler, against the frozen reference", "nats"],
  ["kl_reward_ratio", "KL per reward", "nats paid per unit of reward above the baseline", ""],
];
export const asShare = (unit, value) => (unit === "share" ? share(value) : format(value));

export const COVERAGE = {
  received: "tokens received in joined samples",
  counted: "counted: mask 1, both sides finite and possible",
  masked_out: "masked out",
  nonfinite: "NaN or infinite on a side",
  sentinel: "missing-value markers such as −9999",
  positive: "log-prob above 0: impossible",
  zero_rollout: "q exactly 0 (a certain token, or a zero fill)",
  zero_train: "p exactly 0",
  delta_zero: "Δ exactly 0",
  clamped: "|Δ| beyond the clamp",
};
