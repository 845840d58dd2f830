// The shell: which view an address means, fresh data, keys, theme.
//
//   #/                                    runs
//   #/runs/RUN?from=A&to=B                one run, a stretch of its steps
//   #/runs/RUN/steps/STEP?sample=ID       one step
//   #/compare/RUN/RUN, /RUN/STEP/RUN/STEP two of them
//   #/runbooks/CAUSE?run=RUN&step=STEP, #/runbooks/alerts/KIND, #/health, #/api (also at /docs)

import { api, link } from "./api.js";
import { failure, h, loading } from "./dom.js";
import { showCalls } from "./calls.js";
import { showCompare } from "./compare.js";
import { showHealth } from "./health.js";
import { render } from "./markdown.js";
import { plotly } from "./plots.js";
import { runStamp, showRun } from "./run.js";
import { showRuns } from "./runs.js";
import { showStep, stepStamp } from "./step.js";
import { fiveMinutes, retell, words } from "./words.js";

const REFRESH_MS = 5000;
const view = document.getElementById("view");
const fresh = document.getElementById("fresh");
let shown = { keys: {} };
let shownAt = null; // the address that `shown` answers
const pressed = []; // keys that wait for the view they belong to
let turn = 0; // a view that arrives after another one was asked for is dropped

/**
 * From the address to {section, show(), stamp(), plots}; stamp tells cheaply whether anything is
 * new; `plots`: the view has some, so their library loads while its data are on the way.
 * show() gives {title, nodes, ready, up, keys, again}; `ready` settles when parts that came later are
 * there, `again` answers a link to the address that is shown already.
 */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const place = { run: parts[1], step: parts[3], query: new URLSearchParams(query), parts: parts.slice(1) };
  if (parts[0] === "runs" && parts[2] === "steps" && parts[3] !== undefined) {
    return { section: "runs", plots: true, show: () => showStep(place), stamp: () => stepStamp(place.run, place.step) };
  }
  if (parts[0] === "runs" && parts[1] !== undefined) return { section: "runs", plots: true, show: () => showRun(place), stamp: () => runStamp(place.run) };
  if (parts[0] === "compare") return { section: "compare", plots: place.parts.length > 0, show: () => showCompare(place), stamp: null };
  if (parts[0] === "runbooks") return { section: "runs", show: () => showRunbook(parts.slice(-2), place.query), stamp: null };
  if (parts[0] === "api") return { section: "api", show: showCalls, stamp: null };
  if (parts[0] === "health") return { section: "health", show: showHealth, stamp: async () => String(Date.now()) };
  return { section: "runs", show: showRuns, stamp: async () => JSON.stringify([fiveMinutes(), ...(await api.runs()).map((run) => [run.run, run.closed_steps, run.last_seen, run.active])]) };
}

/** A runbook, with the way back to the run and step from which it was opened. */
async function showRunbook([kind, name], query) {
  const folder = kind === "alerts" ? "alerts" : "causes";
  const [run, step] = [query.get("run"), query.get("step")];
  const place = { run, step };
  const back = [
    run === null ? null : [" › ", h("a", { href: link.run(run) }, run)],
    run === null || step === null ? null : [" › ", h("a", { href: link.step(run, step) }, `Step ${step}`)],
  ];
  const text = await api.runbook(`${folder}/${name}.md`);
  return {
    title: words(name), up: run === null ? "#/" : step === null ? link.run(run) : link.step(run, step),
    nodes: [h("p", { class: "crumbs" }, h("a", { href: "#/" }, "Runs"), back, " › runbook"), h("article", { class: "runbook" }, render(text, place))],
  };
}

/** Show what the address says. `quietly`: new data of the same view, so place and focus stay. */
async function show({ quietly = false } = {}) {
  const mine = (turn += 1);
  const address = location.hash;
  const { section, show: build, stamp, plots } = route();
  for (const link of document.querySelectorAll("[data-section]")) link.toggleAttribute("aria-current", link.dataset.section === section);
  if (!quietly) view.replaceChildren(loading("data"));
  view.setAttribute("aria-busy", "true");
  if (plots) plotly().catch(() => {}); // a figure says so, if it is missing
  try {
    const built = await build();
    if (quietly) await built.ready; // in one piece, so that nothing jumps under the reader's eyes
    if (mine !== turn) return;
    shown = { keys: {}, up: "#/", stamp: null, ...built };
    if (shown.stamp === null && stamp !== null) shown.stamp = await stamp();
    const top = scrollY;
    view.replaceChildren(...shown.nodes.flat(Infinity).filter(Boolean));
    performance.mark("text"); // what `make page-speed` reads
    document.title = `${shown.title} · TwinScope`;
    if (quietly) scrollTo(0, top);
    else { scrollTo(0, 0); view.focus({ preventScroll: true }); }
    fresh.textContent = `Data of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    if (mine !== turn) return;
    shown = { keys: {}, up: "#/", stamp: "failed" };
    view.replaceChildren(failure(error), h("p", {}, h("button", { type: "button", onclick: () => show() }, "Try again"), " ", h("a", { href: "#/" }, "All runs")));
  } finally {
    if (mine === turn) {
      view.removeAttribute("aria-busy");
      shownAt = address;
      pressKeys();
    }
  }
}

/** A key pressed while a view loads means that view, not the one before it. */
function pressKeys() {
  while (pressed.length && shownAt === location.hash) {
    const key = pressed.shift();
    (shown.keys?.[key] ?? KEYS[key])?.();
  }
}

/** Every few seconds: is there anything new? What a reader has opened or focused stays. */
async function refresh() {
  const { stamp } = route();
  if (document.hidden || stamp === null) return;
  const mine = turn;
  retell(view);
  try {
    const now = await stamp();
    if (mine !== turn) return;
    if (now !== shown.stamp && !busy()) await show({ quietly: true });
    fresh.classList.remove("error");
  } catch (error) {
    if (mine !== turn || (error.status === 404 && shown.stamp === "failed")) return; // the view says so itself
    fresh.textContent = `No fresh data: ${error.message}`;
    fresh.classList.add("error");
  }
}

const busy = () => view.querySelector("details[open]:not([data-opened])") !== null || (view.contains(document.activeElement) && document.activeElement.matches("input, select"));

const THEMES = ["system", "light", "dark"];
function setTheme(name) {
  if (name === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = name;
  try { localStorage.setItem("theme", name); } catch { /* a private window keeps nothing */ }
  document.getElementById("theme").textContent = `Theme: ${name}`;
  dispatchEvent(new Event("themechange"));
}
function storedTheme() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}
const nextTheme = () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % THEMES.length]);

const KEYS = { r: () => { location.hash = "#/"; }, u: () => { location.hash = shown.up ?? "#/"; }, t: nextTheme };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=checkbox]), select, textarea")) return;
  pressed.push(event.key);
  pressKeys();
});
addEventListener("hashchange", () => show());
addEventListener("click", (event) => {
  const address = event.target.closest?.("a[href^='#/']")?.hash;
  if (address && address === location.hash && shownAt === address) shown.again?.(); // no change of address will tell
});
addEventListener("readdressed", () => { shownAt = location.hash; });
document.getElementById("theme").addEventListener("click", nextTheme);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); view.focus(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
setTheme(THEMES.includes(storedTheme()) ? storedTheme() : "system");
if (location.pathname.endsWith("/docs")) history.replaceState(null, "", "./#/api");
setInterval(refresh, REFRESH_MS);
show();
