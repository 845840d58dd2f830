// Building the document. Everything becomes text nodes and attributes, never markup: what a run is
// called or an event says cannot become a tag. Addresses may only be relative.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `on...` properties are listeners, null and false attributes are left out. */
export function h(tag, properties = {}, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "href" && !isLocal(value)) node.setAttribute("title", value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Fragments of this page and files of this service; nothing with a scheme or a host. */
export function isLocal(address) {
  return /^(#|[a-z0-9_][a-z0-9_./-]*($|[?#]))/i.test(address) && !/^[a-z][a-z0-9+.-]*:/i.test(address);
}

/**
 * A table. `columns`: {title, numeric, get(row)}; a row's cells may be nodes or text. `cards`: on a
 * phone a row stands as a card, each cell beside its title; "compact": two cells beside one another.
 */
export function table(label, columns, rows, { cards = false } = {}) {
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.numeric && "number" }, column.title)));
  const body = rows.map((row) => h("tr", {}, columns.map((column, index) => {
    const cell = column.get(row);
    return h(index === 0 ? "th" : "td", { class: [column.numeric && "number", (cell ?? "—") === "—" && "empty"].filter(Boolean).join(" ") || null, scope: index === 0 && "row", "data-title": cards && column.title }, cell ?? "—");
  })));
  return scroll(label, h("table", { class: cards && ["cards", cards === "compact" && "compact"].filter(Boolean).join(" ") }, h("thead", {}, head), h("tbody", {}, body)));
}

/** A box that scrolls sideways on narrow screens, reachable by keyboard. */
export function scroll(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, children);
}

export function section(title, ...children) {
  const id = `s-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return h("section", { "aria-labelledby": id }, h("h2", { id }, title), children);
}

export function fold(title, ...children) {
  return h("details", {}, h("summary", {}, title), children);
}

export const loading = (what) => h("p", { class: "state", role: "status" }, `Loading ${what} …`);
export const nothing = (...children) => h("div", { class: "state empty" }, children);

export function failure(error) {
  return h("div", { class: "state error", role: "alert" },
    h("strong", {}, error.kind === "no-such-run" ? "There is no run of this name here. " : error.status === 404 ? "There is no such thing here. " : "The service did not answer as expected. "), error.message,
    error.fix && !error.fix.startsWith("GET ") ? h("p", {}, `What to do: ${error.fix}`) : null);
}

/** Put what `build` gives into `box` in place of what is there; its failure, if it fails. */
export async function fill(box, build) {
  try {
    box.replaceChildren(...[await build()].flat(Infinity).filter(Boolean));
  } catch (error) {
    box.replaceChildren(failure(error));
  }
}

/** A row of buttons of which one is pressed. `choices`: [value, label]. */
export function choice(label, choices, chosen, pick) {
  const buttons = choices.map(([value, text]) => h("button", {
    type: "button", "aria-pressed": String(value === chosen),
    onclick: (event) => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      pick(value);
    },
  }, text));
  return h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}
