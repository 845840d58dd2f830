// The second measurement with the same ruler: the policy against its frozen reference.

import { h, section, table } from "./dom.js";
import { axis, color, figure, plain, thin } from "./plots.js";
import { number } from "./words.js";

const absent = (...said) => section("Policy against reference", h("p", { class: "hint", "data-absent": "" }, said));
const noReference = () => absent("No reference log-probs are sent; pass ", h("code", {}, "ref_logprobs"), " to ", h("code", {}, "train(...)"), " to see KL(policy‖reference) here.");
const noReward = () => absent("No reward is sent; with ", h("code", {}, "probe.scalar(step=…, reward=…)"), " it is drawn here against KL(policy‖reference).");

/** Reward against KL over the run, with the service's advice; one line where one of them is not sent. */
export function policyRef(data) {
  const kl = data.metrics.policy_ref_kl;
  const reward = data.scalars.reward ?? data.metrics.reward_mean;
  if (!kl) return noReference();
  if (!reward) return noReward();
  const both = data.step.map((_, i) => i).filter((i) => kl[i] !== null && reward[i] !== null);
  const kept = thin(both.map((i) => kl[i]), { budget: 800 }).map((i) => both[i]);
  const build = () => ({
    data: [{
      type: "scatter", mode: "lines+markers", x: kept.map((i) => kl[i]), y: kept.map((i) => reward[i]),
      marker: { size: 6, color: kept.map((i) => data.step[i]), colorscale: [[0, color("muted")], [1, color("accent")]] }, line: { width: 0.6, color: color("line") },
      text: kept.map((i) => plain(`step ${data.step[i]}`)), hovertemplate: "%{text}<br>KL %{x:.4g}, reward %{y:.4g}<extra></extra>",
    }],
    layout: { xaxis: axis("KL(policy‖reference), nats per token"), yaxis: axis("reward") },
  });
  const advice = data.kl_advice;
  return section("Policy against reference",
    advice ? h("p", { class: `advice ${advice.kind}`, "data-advice": advice.kind }, h("strong", {}, `${advice.title}. `), advice.text) : null,
    figure({ title: "Reward bought with KL", note: "each point a step, darker is later; up without moving right is progress, right without up is drift", height: 280, build }));
}

const KINDS = [["policy_ref_k1", "k1"], ["policy_ref_k2", "k2"], ["policy_ref_k3", "k3"], ["policy_ref_abs", "mean |Δ|"], ["policy_ref_k1_seq_mean", "k1 per sequence"], ["policy_ref_kl_seq_mean", "k3 per sequence"], ["kl_reward_ratio", "KL per reward"]];

/** The numbers of one step, and by length of the sample; one line where no reference was sent. */
export function stepReference(step, statistics) {
  const known = KINDS.filter(([name]) => step.metrics?.[name] !== null && step.metrics?.[name] !== undefined);
  if (known.length === 0) return noReference();
  const lengths = statistics?.policy_ref_by_length ?? [];
  return section("Policy against reference", h("div", { class: "pair" },
    table("Policy against reference", [{ title: "nats", get: ([, title]) => title }, { title: "value", numeric: true, get: ([name]) => number(step.metrics[name]) }], known),
    lengths.length ? table("By length of the sample", [
      { title: "samples shorter than", get: (one) => number(one.length_below) }, { title: "tokens", numeric: true, get: (one) => number(one.tokens) }, { title: "mean k3", numeric: true, get: (one) => number(one.k3_mean) },
    ], lengths) : null));
}
