// The tokens themselves: the worst ones, and a heat map of the kept samples. Only what is near the
// window is in the document, so that a sample of 32 000 tokens scrolls like one of 300.

import { choice, fold, h, nothing, section, table } from "./dom.js";
import { capital, count, format, number, words } from "./words.js";

const CHUNK = 256; // tokens that come and go together
const STEPS = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]; // |Δ| at which the colour changes, nats

/** Colour class of a token: c is p > q, w is p < q; 0 pale to 7 strong. */
export function heat(delta) {
  if (!Number.isFinite(delta)) return "heat none";
  const level = STEPS.filter((bound) => Math.abs(delta) >= bound).length;
  return level === 0 ? "heat h0" : `heat ${delta > 0 ? "c" : "w"}${level}`;
}

export const k3 = (delta) => (Math.abs(delta) < 1e-3 ? delta * delta * (0.5 + delta / 6) : Math.expm1(delta) - delta);

export function worstTokens(evidence, step, { open }) {
  if (evidence.worst_tokens.length === 0) return section("Worst tokens", nothing("None is kept."));
  const shown = new Set(evidence.samples.map((sample) => sample.sample_id).filter(Boolean));
  const columns = [
    { title: "token", get: (one) => one.text ?? (one.token_id === null ? "—" : `#${one.token_id}`) },
    { title: "Δ", numeric: true, get: (one) => h("span", { class: `chip ${heat(one.p - one.q)}` }, number(one.p - one.q)) },
    { title: "k3", numeric: true, get: (one) => number(k3(one.p - one.q)) },
    { title: "q", numeric: true, get: (one) => number(one.q) },
    { title: "p", numeric: true, get: (one) => number(one.p) },
    { title: "position", numeric: true, get: (one) => number(one.position) },
    { title: "sample", get: (one) => (shown.has(one.sample_id) ? h("a", { href: open(one.sample_id) }, one.sample_id) : one.sample_id ?? one.sample_key.slice(0, 8)) },
  ];
  return section("Worst tokens", h("p", {}, `The largest |Δ| of ${format(step.coverage?.counted ?? 0)} counted tokens.`), table("Worst tokens", columns, evidence.worst_tokens.slice(0, 6), { cards: "compact" }),
    evidence.worst_tokens.length > 6 ? fold(`${evidence.worst_tokens.length - 6} more`, table("More of the worst tokens", columns, evidence.worst_tokens.slice(6), { cards: "compact" })) : null);
}

export async function tokenMap(evidence, { chosen = null } = {}) {
  const samples = evidence.samples.map((sample, index) => ({ ...sample, index, label: sample.sample_id ?? `sample ${index}` }));
  if (samples.length === 0) return section("Token heat map", nothing("The samples of this step are not kept any more."));
  const detail = h("div", { class: "detail" });
  const buttons = samples.map((sample) => strip(sample, () => open(sample)));
  function open(sample) {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === sample.index)));
    detail.replaceChildren(...sampleView(sample).filter(Boolean));
  }
  const lists = ["worst", "chance"].map((kind) => h("div", { class: "strips" }, samples.filter((sample) => sample.chosen === kind).map((sample) => buttons[sample.index])));
  lists[1].hidden = lists[0].childElementCount > 0;
  const pick = choice("samples", [["worst", "worst samples"], ["chance", "random samples"]], lists[1].hidden ? "worst" : "chance", (kind) => {
    lists[0].hidden = kind !== "worst";
    lists[1].hidden = kind !== "chance";
    const first = samples.find((sample) => sample.chosen === kind);
    if (first) open(first);
  });
  open(samples.find((sample) => sample.label === chosen) ?? samples[0]);
  const asText = samples.some((sample) => sample.text);
  return section("Token heat map", asText ? null : h("p", { class: "hint" }, !samples.some((sample) => sample.token_ids) ? "No token ids came with these samples; with them, tokens are shown. " : "Numbers are token ids: the service knows no tokenizer. To read text here, start it with ", h("code", {}, "TWINSCOPE_TOKENIZER=/path/tokenizer.json"), " (the file that lies beside the model)."), h("p", {}, "Each strip is one sample from its first to its last token; open one to see its tokens. ",
    "Worst: what adds most to the mean. Random: a fair draw."), pick, legend(), lists, detail);
}

function legend() {
  const swatch = (className, label) => h("span", { class: "swatch" }, h("span", { class: className, "aria-hidden": "true" }), label);
  return h("p", { class: "legend" }, swatch("heat w7", "p < q"), swatch("heat w4", ""), swatch("heat h0", "|Δ| < 0.02"), swatch("heat c4", ""), swatch("heat c7", "p > q"), swatch("heat none", "masked or unknown"), `  steps at |Δ| of ${STEPS.join(", ")} nats`);
}

const deltas = (sample) => (sample.rollout_logprobs ?? []).map((q, i) => {
  const p = sample.train_logprobs?.[i];
  return q === null || p === null || p === undefined || sample.mask?.[i] === 0 ? NaN : p - q;
});

/** One sample as a button with a picture, one column of pixels per token (or per few). */
function strip(sample, open) {
  const values = deltas(sample);
  const width = Math.min(values.length, 1024);
  const picture = h("canvas", { width, height: 1, "aria-hidden": "true" });
  const paint = () => {
    const context = picture.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    context.clearRect(0, 0, width, 1);
    for (let x = 0; x < width; x += 1) {
      const part = values.slice(Math.floor((x * values.length) / width), Math.max(Math.floor(((x + 1) * values.length) / width), Math.floor((x * values.length) / width) + 1));
      const worst = part.reduce((a, b) => (Math.abs(b) > Math.abs(a) || Number.isNaN(a) ? b : a), NaN);
      context.fillStyle = style.getPropertyValue(`--${heat(worst).replace("heat ", "heat-")}`).trim();
      context.fillRect(x, 0, 1, 1);
    }
  };
  paint();
  addEventListener("themechange", () => picture.isConnected && paint());
  const known = values.filter(Number.isFinite);
  const mean = known.reduce((a, b) => a + k3(b), 0) / Math.max(known.length, 1);
  return h("button", { type: "button", class: "strip", "aria-pressed": "false", onclick: open },
    h("span", { class: "strip-name" }, sample.lag ? h("strong", { class: "lag", title: shifted(sample.lag) }, `lag ${signed(sample.lag)} `) : null, sample.label), picture, h("span", { class: "strip-level" }, `${count(values.length, "token")}, k3 ${format(mean)}`));
}

const signed = (lag) => (lag < 0 ? `−${-lag}` : `+${lag}`);
const shifted = (lag) => `shifted: q[t] fits p[t ${lag < 0 ? "−" : "+"} ${Math.abs(lag)}]`;

function sampleView(sample) {
  const values = deltas(sample);
  const said = h("p", { class: "token-said", role: "status" }, "Point at or touch a token, or move through them with the arrow keys.");
  const facts = ["rollout_version", "train_version", "turn", "cached_tokens", "pad_left", "reward", "advantage"].filter((name) => sample[name] !== undefined && sample[name] !== null).map((name) => `${words(name)} ${format(sample[name])}`);
  const labels = Object.entries(sample.groups ?? {}).map(([name, label]) => `${words(name)} ${label}`);
  return [
    h("h3", {}, sample.label),
    sample.lag ? h("p", {}, h("strong", {}, capital(shifted(sample.lag))), ", so Δ below compares different tokens.") : null,
    h("p", { class: "quiet" }, [`${count(values.length, "token")}${sample.first_token ? ` from token ${sample.first_token} on` : ""}`, sample.prompt_ids ? `prompt of ${count(sample.prompt_ids.length, "token")}` : null, ...facts, ...labels].filter(Boolean).join(", ")),
    said, cells(sample, values, said),
  ];
}

/** The tokens in chunks; a chunk far from the window is an empty box of the same height. */
function cells(sample, values, said) {
  const box = h("div", { class: sample.text ? "tokens text" : "tokens ids", tabindex: "0", role: "application", "aria-label": `Tokens of ${sample.label}; arrow keys move` });
  let current = null;
  const tell = (i) => {
    current?.classList.remove("current");
    current = box.querySelector(`[data-i="${i}"]`);
    current?.classList.add("current");
    const token = [sample.text?.[i] === undefined ? null : JSON.stringify(sample.text[i]), sample.token_ids ? `id ${sample.token_ids[i]}` : null].filter(Boolean).join(" ");
    const more = [["entropy", sample.entropy], ["rank", sample.sampled_rank], ["kept mass", sample.kept_mass], ["ref", sample.ref_logprobs]].filter(([, array]) => array).map(([name, array]) => `${name} ${format(array[i])}`);
    const masked = sample.mask?.[i] === 0 ? ["masked"] : [];
    said.textContent = [`token ${i + sample.first_token}`, token, `q ${format(sample.rollout_logprobs?.[i])}`, `p ${format(sample.train_logprobs?.[i])}`, `Δ ${format(values[i])}`, `k3 ${format(k3(values[i]))}`, ...masked, ...more].join("   ");
  };
  const fill = (chunk) => {
    const first = Number(chunk.dataset.first);
    chunk.replaceChildren(...values.slice(first, first + CHUNK).map((delta, j) => h("span", { class: heat(delta), "data-i": first + j }, sample.text?.[first + j] ?? (sample.token_ids ? String(sample.token_ids[first + j]) : "·"))));
  };
  const near = new IntersectionObserver((entries) => entries.forEach(({ target: chunk, isIntersecting }) => {
    if (isIntersecting && !chunk.childElementCount) { fill(chunk); chunk.style.minHeight = ""; }
    if (!isIntersecting && chunk.childElementCount) { chunk.style.minHeight = `${chunk.offsetHeight}px`; chunk.replaceChildren(); }
  }), { root: box, rootMargin: "400px" });
  for (let first = 0; first < values.length; first += CHUNK) {
    const chunk = h("div", { class: "chunk", "data-first": first });
    chunk.style.minHeight = `${Math.ceil(Math.min(CHUNK, values.length - first) / 14) * 26}px`;
    box.append(chunk);
    near.observe(chunk);
  }
  box.addEventListener("pointerover", (event) => { if (event.target.dataset.i !== undefined) tell(Number(event.target.dataset.i)); });
  box.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 14, ArrowUp: -14, PageDown: CHUNK, PageUp: -CHUNK, Home: -values.length, End: values.length }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const next = Math.min(Math.max((current ? Number(current.dataset.i) : -1) + by, 0), values.length - 1);
    const chunk = box.children[Math.floor(next / CHUNK)];
    if (!chunk.childElementCount) fill(chunk);
    tell(next);
    current?.scrollIntoView({ block: "nearest" });
  });
  return box;
}
