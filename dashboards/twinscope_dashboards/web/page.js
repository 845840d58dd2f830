// The page: runs at #/, one run at #/runs/NAME, one step at #/runs/NAME/steps/STEP.
// Everything from the service is put into the document as text, never as markup.

const view = document.getElementById("view");

function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "circle", "line", "text", "title", "a-svg"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.map((child) => (child instanceof Node ? child : String(child ?? "—"))));
  return node;
}

async function get(path) {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail ?? body.title ?? response.statusText);
  return body;
}

const number = (value) =>
  value === null || value === undefined ? "—" : value === 0 || Math.abs(value) >= 0.01 ? value.toFixed(4) : value.toExponential(2);
const verdict = (value) => element("span", { class: `verdict ${value}` }, value);
const cause = (step) => step?.diagnosis?.[0]?.cause?.replaceAll("_", " ") ?? "—";
const runLink = (run) => `#/runs/${encodeURIComponent(run)}`;

function table(columns, rows) {
  const head = element("tr", {}, ...columns.map((column) => element("th", { scope: "col" }, column)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", { class: cell instanceof Node ? "" : "number" }, cell))));
  return element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
}

async function showRuns() {
  const { runs } = await get("v1/runs");
  if (runs.length === 0) {
    return [element("h2", {}, "No run yet"), element("p", {}, "Point a probe here (README, five-minute start), or run: twinscope demo")];
  }
  const rows = await Promise.all(runs.map(async (run) => {
    const last = run.last_step === null || run.last_step === undefined ? null
      : await get(`v1/runs/${encodeURIComponent(run.run)}/steps/${run.last_step}`);
    return [element("a", { href: runLink(run.run) }, run.run), last?.step, verdict(last?.verdict ?? "unknown"),
      number(last?.metrics?.k3_mean), cause(last)];
  }));
  return [element("h2", {}, "Runs"), table(["run", "last closed step", "verdict", "rollout_train_kl", "likely cause"], rows)];
}

function timeline(steps) {
  const points = steps.filter((step) => step.metrics?.k3_mean > 0);
  if (points.length < 2) return element("p", {}, "The timeline appears with the second closed step.");
  const width = 960, height = 190, left = 56;
  const logs = points.map((step) => Math.log10(step.metrics.k3_mean));
  const low = Math.floor(Math.min(...logs)), high = Math.max(low + 1, Math.ceil(Math.max(...logs)));
  const first = points[0].step, last = points.at(-1).step;
  const x = (step) => left + ((step - first) / Math.max(last - first, 1)) * (width - left - 10);
  const y = (log) => height - 20 - ((log - low) / (high - low)) * (height - 35);
  const plot = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "rollout_train_kl by step, logarithmic" });
  for (let power = low; power <= high; power += 1) {
    plot.append(element("line", { class: "axis", x1: left, x2: width, y1: y(power), y2: y(power) }), element("text", { x: 4, y: y(power) + 4 }, `1e${power}`));
  }
  points.forEach((step, index) => plot.append(element("circle", { class: step.verdict, r: 3, cx: x(step.step), cy: y(logs[index]) },
    element("title", {}, `step ${step.step}: ${number(step.metrics.k3_mean)} ${step.verdict}`))));
  return plot;
}

async function showRun(run) {
  const { steps } = await get(`v1/runs/${encodeURIComponent(run)}/steps?limit=1000`);
  const rows = steps.toReversed().slice(0, 200).map((step) => [
    element("a", { href: `${runLink(run)}/steps/${step.step}` }, `step ${step.step}`), verdict(step.verdict ?? "unknown"), step.state,
    number(step.metrics?.k3_mean), number(step.metrics?.abs_mean), number(step.metrics?.rho_mean), cause(step)]);
  return [element("h2", {}, run), timeline(steps), table(["step", "verdict", "state", "rollout_train_kl", "mean |Δ|", "mean ρ", "likely cause"], rows)];
}

async function showStep(run, number_) {
  const step = await get(`v1/runs/${encodeURIComponent(run)}/steps/${number_}`);
  const causes = (step.diagnosis ?? []).map((entry) => [element("span", {}, entry.cause.replaceAll("_", " ")), number(entry.confidence), element("span", {}, entry.evidence), element("span", {}, entry.fix)]);
  const facts = (block) => Object.entries(block ?? {}).map(([name, value]) => [element("span", {}, name), typeof value === "number" ? number(value) : JSON.stringify(value)]);
  return [element("h2", {}, element("a", { href: runLink(run) }, run), ` step ${step.step} `, verdict(step.verdict ?? "unknown")),
    element("p", {}, (step.reasons ?? []).join("; ")),
    element("h3", {}, "Causes"), table(["cause", "confidence", "evidence", "what to do"], causes),
    element("h3", {}, "Metrics"), table(["metric", "value"], facts(step.metrics)),
    element("h3", {}, "Coverage"), table(["tokens", "count"], facts(step.coverage))];
}

async function show() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  try {
    const nodes = parts.length >= 4 ? await showStep(parts[1], parts[3]) : parts.length >= 2 ? await showRun(parts[1]) : await showRuns();
    view.replaceChildren(...nodes);
  } catch (error) {
    view.replaceChildren(element("p", { class: "error", role: "alert" }, `The service did not answer as expected: ${error.message}`));
  }
}

addEventListener("hashchange", show);
setInterval(() => document.hidden || show(), 5000);
show();
