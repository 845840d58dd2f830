// Alerts: what they are about, which one says most, and how to have peace from them for a while.

import { ALERTS, api, link } from "./api.js";
import { failure, fold, h, section, table } from "./dom.js";
import { count, format, number, risen, series, times, until, words } from "./words.js";

/** The firing alert that says most: about k3 first, then the earliest; a level that fell is none. */
export function leading(alerts) {
  const rank = (alert) => [alert.series === "k3" ? 0 : 1, alert.onset_step ?? alert.step];
  return alerts.filter((alert) => alert.state === "firing" && !alert.came_down)
    .sort((a, b) => rank(a)[0] - rank(b)[0] || rank(a)[1] - rank(b)[1])[0] ?? null;
}

/** Beside a verdict of `ok`, which a firing rise does not leave as it is. */
export const rise = (verdict, lead) => (verdict === "ok" && lead && lead.kind !== "silence" ? risen(words(lead.kind)) : null);

/** As the service puts it: firing, fell, over ... */
function state(alert) {
  const fell = alert.standing === "fell";
  return h("span", { class: `alert ${fell ? "fell" : alert.kind === "spike" ? "resolved" : alert.state}`, title: fell && "a level that fell is no trouble by itself" }, alert.standing);
}

const LISTED = 200; // alerts that are over, in the document

/** `at(step)`: address of a step; `silenced`: a node that tells of open silences, too. */
export function alertList(run, alerts, at, { silenced = null } = {}) {
  const columns = [
    { title: "what", get: (alert) => h("span", {}, h("a", { href: link.runbook(`alerts/${alert.kind}`, { run }), title: "what it means, what to do" }, words(alert.kind)), ` of ${series(alert.series)}`) },
    { title: "state", get: state },
    { title: "since", get: (alert) => h("a", { href: at(alert.onset_step ?? alert.step) }, `step ${alert.onset_step ?? alert.step}`) },
    { title: "before", numeric: true, get: (alert) => number(alert.before) },
    { title: "after", numeric: true, get: (alert) => number(alert.after) },
    { title: "after / before", numeric: true, get: (alert) => times(alert.ratio) || "—" },
    { title: "likely cause", get: (alert) => alert.causes.map(words).join(", ") || "—" },
  ];
  const gravity = (alert) => (alert.came_down ? 2 : alert.series === "k3" ? 0 : 1);
  const open = alerts.filter((alert) => alert.state !== "resolved" && alert.kind !== "spike").sort((a, b) => gravity(a) - gravity(b));
  const over = alerts.filter((alert) => !open.includes(alert));
  const lone = over.filter((alert) => alert.kind === "spike").length;
  const title = [lone ? `${count(lone, "spike")}, each of one step` : null, over.length > lone ? `${over.length - lone} over` : null].filter(Boolean).join("; ");
  return section("Alerts", open.length ? table("Alerts", columns, open, { cards: true }) : h("p", { class: "quiet" }, "Nothing fires."),
    over.length ? fold(title, table("Alerts that are over", columns, over.slice(0, LISTED), { cards: true }), over.length > LISTED ? h("p", { class: "hint" }, `The newest ${LISTED} of these ${format(over.length)}.`) : null) : null,
    alerts.length >= ALERTS ? h("p", { class: "hint", "data-limit": "alerts" }, `Only the newest ${format(ALERTS)} alerts of a run are told here; this run has had more.`) : null,
    silences(run, open, silenced));
}

const LENGTHS = [[3600, "1 hour"], [4 * 3600, "4 hours"], [12 * 3600, "12 hours"], [86400, "1 day"], [3 * 86400, "3 days"], [7 * 86400, "1 week"]];

/** Does an open silence name this run, by its name or by a pattern of * and ?. */
export const names = (silence, run) => (silence.run === null ? matches([...silence.runs], [...run]) : silence.run === run);

/** No regular expression: a pattern of many stars would keep the page busy for ever. */
function matches(pattern, text) {
  let [p, t, star, resume] = [0, 0, -1, 0];
  while (t < text.length) {
    if (pattern[p] === "*") {
      [star, resume] = [p, t];
      p += 1;
    } else if (p < pattern.length && (pattern[p] === "?" || pattern[p] === text[t])) {
      p += 1;
      t += 1;
    } else if (star >= 0) {
      resume += 1; // let the last star take one more
      [p, t] = [star + 1, resume];
    } else return false;
  }
  return pattern.slice(p).every((rest) => rest === "*");
}

/** "silenced until 16:40", with what is, where it is not everything; "" if nothing is. */
export function silencedUntil(silences, run) {
  const found = silences.filter((silence) => names(silence, run));
  if (found.length === 0) return "";
  const last = found.reduce((a, b) => (b.end > a.end ? b : a));
  return `silenced${isWhole(last) ? "" : ` (${last.kinds.map(words).join(", ")})`} ${until(last.end)}`;
}

const isWhole = (silence) => silence.kinds.length >= 5;

/** A fold with the open silences of a run and a form for one more. */
function silences(run, open, silenced) {
  const listed = h("div", {});
  const said = h("p", { role: "status", class: "hint" });
  const title = h("summary", {}, "Tell nobody for a while");
  const attempt = async (work) => {
    try {
      said.textContent = await work();
      await list();
    } catch (error) {
      said.replaceChildren(failure(error));
    }
  };
  async function list() {
    const found = (await api.silences()).filter((silence) => names(silence, run));
    if (silenced) silenced.textContent = silencedUntil(found, run);
    title.textContent = found.length ? `Nobody is told ${until(found.reduce((a, b) => (b.end > a.end ? b : a)).end)}` : "Tell nobody for a while";
    listed.replaceChildren(...found.map((silence) => h("p", { class: "silence" }, described(silence), " ",
      h("button", { type: "button", onclick: () => attempt(async () => { await api.endSilence(silence.id); return "Over: what fires is told."; }) }, "end it"))));
  }
  list().catch(() => {}); // without it the form stands, and says what is wrong when it is used
  return h("details", {}, title, form(run, open, attempt), said, listed);
}

function described(silence) {
  const whose = silence.run === null ? ` in runs like ${silence.runs}` : "";
  const what = isWhole(silence) ? "All kinds" : silence.kinds.map(words).join(", ");
  return [`${what}${whose}${silence.series === "*" ? "" : ` of ${silence.series}`}: silent ${until(silence.end)}`, silence.reason ? [", because: ", h("q", {}, silence.reason)] : null, "."];
}

function form(run, open, attempt) {
  const choose = (label, choices) => h("select", { "aria-label": label }, choices.map(([value, text]) => h("option", { value }, text)));
  const length = choose("for how long", LENGTHS);
  const kinds = choose("which alerts", [["", "all alerts of this run"], ...[...new Set(open.map((alert) => alert.kind))].map((kind) => [kind, `only: ${words(kind)}`])]);
  const reason = h("input", { type: "text", "aria-label": "reason", placeholder: "reason, for the others", maxlength: 200 });
  const send = (event) => {
    event.preventDefault();
    const asked = { run, seconds: Number(length.value), ...(kinds.value ? { kinds: [kinds.value] } : {}), ...(reason.value.trim() ? { reason: reason.value.trim() } : {}) };
    return attempt(async () => { const done = await api.silence(asked); reason.value = ""; return `Silent ${until(done.end)}.`; });
  };
  return h("form", { class: "silence-form", onsubmit: send },
    h("p", { class: "hint" }, "Alerts go on being raised and shown here. What still fires when the silence is over is told then; that a trouble is over is told at once."),
    h("div", { class: "fields" }, length, kinds, reason, h("button", { type: "submit" }, "Silence")));
}
