// The part of Markdown that runbooks use, as document nodes. Anything else stays text.

import { link } from "./api.js";
import { h, scroll } from "./dom.js";

const INLINE = /(`[^`]+`)|(\*\*[^*]+\*\*)|\[([^\]]+)\]\(([^)\s]+)\)/g;

/** `place`: {run, step} from which the page was opened, for links between the pages. */
export function prose(text, place = {}) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, match.index));
    end = match.index + match[0].length;
    if (match[1]) nodes.push(h("code", {}, match[1].slice(1, -1)));
    else if (match[2]) nodes.push(h("strong", {}, match[2].slice(2, -2)));
    else nodes.push(h("a", { href: target(match[4], place) }, match[3]));
  }
  return [...nodes, text.slice(end)];
}

/** Links between cause pages stay in this page; other relative links are shown as text. */
const target = (address, place) => (/^[a-z0-9_]+\.md$/.test(address) ? link.runbook(address.slice(0, -3), place) : null);

/** The first paragraph, as plain text. */
export function summary(text) {
  const paragraph = text.split(/\n\s*\n/).find((part) => part.trim() !== "" && !part.startsWith("#")) ?? "";
  return h("p", {}, prose(paragraph.replace(/\s+/g, " ").trim())).textContent;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

export function render(text, place = {}) {
  const said = (line) => prose(line, place);
  const nodes = [];
  const lines = text.split("\n");
  for (let i = 0; i < lines.length;) {
    const line = lines[i];
    if (line.trim() === "") { i += 1; continue; }
    const heading = /^(#{1,4})\s+(.*)$/.exec(line);
    if (heading) {
      nodes.push(h(`h${Math.min(6, heading[1].length + 2)}`, {}, said(heading[2])));
      i += 1;
      continue;
    }
    let end = i + 1;
    const block = (test) => { while (end < lines.length && test(lines[end])) end += 1; return lines.slice(i, end); };
    if (line.startsWith("```")) {
      while (end < lines.length && !lines[end].startsWith("```")) end += 1;
      nodes.push(h("pre", {}, lines.slice(i + 1, end).join("\n")));
      end += 1;
    } else if (line.startsWith("|")) {
      const rows = block((next) => next.startsWith("|")).map(cells);
      const titles = rows[0].map((cell) => h("span", {}, said(cell)).textContent);
      nodes.push(scroll("table", h("table", { class: "cards" },
        h("thead", {}, h("tr", {}, rows[0].map((cell) => h("th", { scope: "col" }, said(cell))))),
        h("tbody", {}, rows.slice(2).map((row) => h("tr", {}, row.map((cell, i) => h("td", { "data-title": titles[i] }, h("span", {}, said(cell))))))))));
    } else if (/^([-*]|\d+\.)\s/.test(line)) {
      const items = block((next) => next.trim() !== "" && !next.startsWith("#")).join("\n").split(/\n(?=[-*]\s|\d+\.\s)/);
      nodes.push(h(/^\d/.test(line) ? "ol" : "ul", {}, items.map((item) => h("li", {}, said(item.replace(/^([-*]|\d+\.)\s+/, "").replace(/\n\s*/g, " "))))));
    } else {
      nodes.push(h("p", {}, said(block((next) => next.trim() !== "" && !/^(#|\||```|[-*]\s)/.test(next)).join(" "))));
    }
    i = end;
  }
  return nodes;
}
