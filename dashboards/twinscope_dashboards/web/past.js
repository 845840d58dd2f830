// What was before the trouble began: the steps up to its onset, of a timeline.

import { link } from "./api.js";
import { h } from "./dom.js";

export const onsetOf = (lead) => (lead === null ? null : lead.onset_step ?? lead.step);

/**
 * `data`: a timeline that reaches the onset. `ok`: the last healthy step before it with what it was
 * worth; `previous`: the last of any verdict; `at`: when the onset was, in seconds. Null: not known.
 */
export function pastOf(data, onset) {
  const before = (fits) => data.step.findLastIndex((step, i) => step < onset && fits(data.verdict[i]));
  const [ok, previous] = [before((verdict) => verdict === "ok"), before(() => true)];
  return {
    ok: ok < 0 ? null : { step: data.step[ok], clip_fraction: data.metrics.clip_fraction?.[ok], ess_ratio: data.metrics.ess_ratio?.[ok] },
    previous: data.step[previous] ?? null, at: data.closed_at[data.step.indexOf(onset)] ?? null,
  };
}

/** Before and after, side by side: the last healthy step, else the last of any verdict. */
export function besideLink(run, past, step) {
  const before = past?.ok?.step ?? past?.previous ?? null;
  return before === null ? null : [" · ", h("a", { href: link.compare(run, before, run, step), "data-role": "beside" }, `step ${before} beside step ${step}`)];
}
