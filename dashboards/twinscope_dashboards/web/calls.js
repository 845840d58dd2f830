// The JSON API as the service describes itself: every call, what it does, its parameters.

import { api } from "./api.js";
import { fold, h, section, table } from "./dom.js";
import { prose, render } from "./markdown.js";

export async function showCalls() {
  const document_ = await api.openapi();
  const calls = Object.entries(document_.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, call]) => ({ path, method, call })));
  const groups = [...new Set(calls.map(({ call }) => call.tags?.[0] ?? "other"))];
  return { title: "API", nodes: [
    h("h1", {}, "API"),
    h("p", {}, "Errors are problem documents that name field, value and fix. With a token: ", h("code", {}, "Authorization: Bearer TOKEN"), ". The same as a file: ", h("a", { href: "openapi.json" }, "openapi.json"), "."),
    ...groups.map((group) => section(group, calls.filter(({ call }) => (call.tags?.[0] ?? "other") === group).map(one))),
  ] };
}

function one({ path, method, call }) {
  const parameters = (call.parameters ?? []).filter((parameter) => parameter.in === "query");
  return h("div", { class: "call" },
    h("h3", {}, h("code", { class: "method" }, method.toUpperCase()), " ", h("code", {}, path.replace(":path", "")), " ", h("span", { class: "quiet" }, prose(call.summary ?? ""))),
    call.description ? render(call.description) : null,
    parameters.length ? fold("Parameters", table(`Parameters of ${method} ${path}`, [
      { title: "name", get: (parameter) => h("code", {}, parameter.name) }, { title: "default", get: (parameter) => String(parameter.schema?.default ?? "—") }, { title: "meaning", get: (parameter) => h("span", {}, prose(parameter.description ?? parameter.schema?.description ?? "")) },
    ], parameters)) : null);
}
