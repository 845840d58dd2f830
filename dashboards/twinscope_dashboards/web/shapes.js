// The plots of one step: distribution of Δ, q against p, profiles, lags, groups. Each also draws two
// steps over one another, for the comparison.

import { choice, h, section, table } from "./dom.js";
import { axis, color, faded, figure, logarithmic, plain } from "./plots.js";
import { format, number, share, times, words } from "./words.js";

/** Share of tokens per factor of two of |Δ|, apart by sign. `others`: [label, statistics] more. */
export function distribution(statistics, step, { label = "this", others = [] } = {}) {
  const hist = statistics.histogram;
  const build = () => ({
    data: others.length
      ? [[label, statistics], ...others].flatMap(([name, one], i) => side(one.histogram, "both", { label: plain(name), tint: ["accent", "accent2"][i % 2], fill: i === 0 }))
      : [...side(hist, "negative", { label: "p < q: the trainer finds it less likely", tint: "warm", fill: true }), ...side(hist, "positive", { label: "p > q: the trainer finds it more likely", tint: "cool", fill: true })],
    layout: {
      showlegend: true, hovermode: "x", xaxis: axis("|Δ|, nats (log scale)", { ...logarithmic, range: [-5, 1.3] }),
      yaxis: axis("share of tokens per octave", { tickformat: ".0%", rangemode: "tozero" }),
      shapes: marks(step),
    },
  });
  return figure({ title: "Distribution of Δ = p − q", note: "both curves alike and ending before 1: rounding, harmless; one far above the other: the two sides hold different distributions (temperature, weights); a second hump right of 1: wrong tokens or fills", build, height: 320,
    table: () => table("Tokens by |Δ|", [
      { title: "|Δ| from", numeric: true, get: (i) => number(hist.edges[i]) }, { title: "to", numeric: true, get: (i) => number(hist.edges[i + 1]) },
      { title: "p > q", numeric: true, get: (i) => number(hist.positive[i]) }, { title: "p < q", numeric: true, get: (i) => number(hist.negative[i]) },
    ], hist.positive.map((_, i) => i)) });
}

function marks(step) {
  return [["abs_mean", "mean"], ["abs_p99", "p99"]].filter(([name]) => step?.metrics?.[name] > 0).map(([name, label]) => ({
    type: "line", xref: "x", yref: "paper", x0: step.metrics[name], x1: step.metrics[name], y0: 0, y1: 1, line: { color: color("muted"), width: 1, dash: "dot" },
    label: { text: label, textposition: "end", textangle: 0, yanchor: "top", xanchor: name === "abs_mean" ? "right" : "left", font: { size: 11, color: color("muted") } },
  }));
}

function side(hist, which, { label, tint, fill }) {
  const total = hist.positive.reduce((a, b) => a + b, 0) + hist.negative.reduce((a, b) => a + b, 0) + hist.zero;
  const counts = which === "both" ? hist.positive.map((count, i) => count + hist.negative[i]) : hist[which];
  const octaves = (i) => Math.log2(hist.edges[i + 1] / hist.edges[i]);
  return [{
    type: "scatter", mode: "lines", name: label, x: counts.map((_, i) => Math.sqrt(hist.edges[i] * hist.edges[i + 1])), y: counts.map((count, i) => (total ? count / total / octaves(i) : 0)),
    line: { shape: "hvh", width: 1.6, color: color(tint) }, fill: fill ? "tozeroy" : "none", fillcolor: faded(tint, 0.18), customdata: counts, hovertemplate: "|Δ| %{x:.3g}: %{customdata} tokens<extra></extra>",
  }];
}

const POINTS = 1500;

/** q against p of kept tokens: of the samples chosen by chance, and of the worst ones. */
export function scatter(evidence) {
  const points = (chosen) => {
    const all = evidence.samples.filter((sample) => sample.chosen === chosen).flatMap((sample) => (sample.rollout_logprobs ?? []).map((q, i) => ({ q, p: sample.train_logprobs?.[i], i: i + sample.first_token, sample })))
      .filter(({ q, p, sample, i }) => Number.isFinite(q) && Number.isFinite(p) && sample.mask?.[i - sample.first_token] !== 0);
    const every = Math.max(1, Math.ceil(all.length / POINTS));
    return all.filter((_, i) => i % every === 0);
  };
  const trace = (chosen, label, tint) => {
    const some = points(chosen);
    return {
      type: "scatter", mode: "markers", name: label, x: some.map((one) => one.q), y: some.map((one) => one.p), marker: { size: 4, color: faded(tint, 0.5) },
      text: some.map((one) => plain(`${one.sample.sample_id ?? "sample"}, token ${one.i}`)), hovertemplate: "%{text}<br>q %{x:.4f}, p %{y:.4f}<extra></extra>",
    };
  };
  const low = Math.min(-1, ...["worst", "chance"].flatMap(points).flatMap((one) => [one.q, one.p])) * 1.04;
  const build = () => ({
    data: [trace("worst", "in the worst samples", "warm"), trace("chance", "in random samples", "accent")],
    layout: {
      showlegend: true, xaxis: axis("q, rollout log-prob", { range: [low, -low * 0.03] }), yaxis: axis("p, train log-prob", { range: [low, -low * 0.03] }),
      shapes: [{ type: "line", x0: low, y0: low, x1: 0, y1: 0, line: { color: color("muted"), width: 1, dash: "dot" }, layer: "below" }],
    },
  });
  return figure({ title: "q against p", note: "on the dotted line both agree; another slope is a temperature, horizontal streaks are fills", build, height: 320 });
}

/** The values with `b` binary digits. */
const octave = (b) => (b < 2 ? String(b) : `${2 ** (b - 1)}–${2 ** b - 1}`);

const PROFILES = [
  ["position", "position", octave, "does it grow with the position (rotary angles), or begin somewhere (window, turn)?"],
  ["relative", "relative position", (b) => `${Math.round((100 * b) / 16)} %`, "start and end of the response"],
  ["first", "first tokens", (b) => `${b}`, "the first token alone points at boundaries"],
  ["last", "last tokens", (b) => `−${b}`, "the last token alone points at EOS"],
  ["q", "q", (b) => `${(-b / 2).toFixed(1)}`, "unlikely tokens differ more; likely ones should not"],
  ["length", "length", octave, "long samples worse: position or accumulated state"],
];
// column, what its mean is, column of its squares where the sums have one
const MEASURES = [["k3", "mean k3"], ["abs", "mean |Δ|", "d2"], ["d", "mean Δ", "d2"], ["rho_m1", "E[ρ] − 1"]];
const FEW = 100; // tokens in a bucket, below which its bar is pale

/** Two standard errors of a mean of n values; null where the squares are not known. */
export function twoErrors(n, sum, squares) {
  return squares === null || n < 2 ? null : 2 * Math.sqrt(Math.max(squares / n - (sum / n) ** 2, 0) / (n - 1));
}

/** 5446 as 5.4k: it stands on a bar. */
const short = (n) => (n < 1000 ? String(n) : n < 1e6 ? `${Number((n / 1e3).toPrecision(2))}k` : `${Number((n / 1e6).toPrecision(2))}M`);

/** Mean of a measure by bucket. `others`: [label, statistics] drawn beside. */
export function profiles(statistics, { label = "this", others = [] } = {}) {
  let [profile, measure] = [PROFILES[0], MEASURES[0]];
  const rows = (one) => (one.profiles[profile[0]] ?? []).map((sums, bucket) => {
    const [n, sum] = [sums[0], sums[one.columns.indexOf(measure[0])]];
    return { bucket, n, mean: n ? sum / n : null, error: twoErrors(n, sum, measure[2] ? sums[one.columns.indexOf(measure[2])] : null) };
  }).filter((row) => row.n > 0);
  const build = () => ({
    data: [[label, statistics], ...others].map(([name, one], i) => ({
      type: "bar", name: plain(name), x: rows(one).map((row) => profile[2](row.bucket)), y: rows(one).map((row) => row.mean), customdata: rows(one).map((row) => row.n),
      marker: { color: color(["accent", "accent2"][i % 2]), opacity: rows(one).map((row) => (row.n < FEW ? 0.4 : 1)) },
      error_y: { type: "data", array: rows(one).map((row) => row.error ?? 0), visible: measure[2] !== undefined, color: color("muted"), thickness: 1.2, width: 3 },
      ...(others.length ? {} : { text: rows(one).map((row) => short(row.n)), textposition: measure[2] ? "inside" : "outside", textangle: 0, cliponaxis: false, textfont: { size: 10 }, insidetextanchor: "start" }),
      hovertemplate: "%{x}: %{y:.4g}<br>%{customdata} tokens<extra></extra>",
    })),
    layout: { showlegend: others.length > 0, xaxis: axis(profile[1], { type: "category" }), yaxis: axis(measure[1], { rangemode: "tozero" }), bargap: 0.15 },
  });
  const read = () => [profile[3], " On the bars: tokens; pale: fewer than ", String(FEW), measure[2] ? "; whiskers: two standard errors, if tokens were independent." : "."];
  const hint = h("p", { class: "hint" }, read());
  const plot = figure({ title: "Where in the samples", label: "Mismatch by position, length or probability", build, height: 270,
    table: () => table("Mismatch by bucket", [
      { title: profile[1], get: (row) => profile[2](row.bucket) }, { title: "tokens", numeric: true, get: (row) => number(row.n) }, { title: measure[1], numeric: true, get: (row) => number(row.mean) },
      { title: "± two standard errors", numeric: true, get: (row) => number(row.error) },
    ], rows(statistics)) });
  const again = () => { hint.replaceChildren(...read()); plot.redraw(); };
  return h("div", { class: "plotbox" }, h("div", { class: "choices" },
    choice("by", PROFILES.map((one) => [one, one[1]]), profile, (one) => { profile = one; again(); }),
    choice("measure", MEASURES.map((one) => [one, one[1]]), measure, (one) => { measure = one; again(); })), plot, hint);
}

/** Mean |q[t] − p[t + lag]|: smallest at 0 unless the two are shifted. `samples`: the kept ones. */
export function lags(statistics, samples = []) {
  const { lag, columns, sums } = statistics.lags;
  const mean = sums.map((row) => (row[0] ? row[columns.indexOf("abs")] / row[0] : null));
  const best = mean.reduce((low, value, i) => (value !== null && (mean[low] === null || value < mean[low]) ? i : low), 0);
  const build = () => ({
    data: [{ type: "bar", x: lag, y: mean, marker: { color: lag.map((_, i) => (i === best ? color("accent") : faded("muted", 0.5))) }, hovertemplate: "lag %{x}: %{y:.4g} nats<extra></extra>" }],
    layout: { xaxis: axis("lag, tokens", { dtick: 2, zeroline: false }), yaxis: axis("mean |q[t] − p[t + lag]|", { rangemode: "tozero" }), bargap: 0.15 },
  });
  const shifted = samples.filter((sample) => sample.lag);
  const aligned = shifted.length ? `smallest at lag 0 over all samples; yet ${shifted.length} of the ${samples.length} kept ones are shifted (see the token heat map)` : "smallest at lag 0: the tokens are aligned";
  const said = mean[best] === null ? "" : lag[best] === 0 ? aligned : `smallest at lag ${lag[best]}: one side is shifted`;
  return h("div", { class: "plotbox" }, figure({ title: "Lags", note: said, build, height: 300,
    table: () => table("Mismatch by lag", [{ title: "lag", get: (i) => String(lag[i]) }, { title: "mean |q[t] − p[t + lag]|", numeric: true, get: (i) => number(mean[i]) }], lag.map((_, i) => i)) }));
}

/** Levels by replica, engine, weight version ... and by version lag, worst first. */
export function groups(statistics, step) {
  const k3 = statistics.columns.indexOf("k3");
  const row = (name, label, sums) => ({ name, label, n: sums[0], mean: sums[0] ? sums[k3] / sums[0] : null });
  const rows = [
    ...statistics.groups.map((one) => row(one.name, one.label, one.sums)),
    ...Object.entries(statistics.version_lag).map(([lag, sums]) => row("version lag", lag, sums)),
  ].filter((one) => one.n > 0).sort((a, b) => (b.mean ?? 0) - (a.mean ?? 0));
  if (rows.length === 0) return h("p", { class: "hint" }, "No replica, engine or version labels came with these samples; with them, levels are shown for each.");
  const level = step.metrics?.k3_mean;
  return section("By group", table("Levels by group", [
    { title: "group", get: (one) => words(one.name) }, { title: "label", get: (one) => one.label || "—" },
    { title: "tokens", numeric: true, get: (one) => number(one.n) }, { title: "mean k3", numeric: true, get: (one) => number(one.mean) },
    { title: "of the step's level", numeric: true, get: (one) => (level ? times(one.mean / level) : "—") },
  ], rows.slice(0, 60), { cards: "compact" }));
}

export { format, share };
