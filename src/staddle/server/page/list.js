// The list of sandboxes, with live state; forks below their origin.

import { post } from "./api.js";
import { asked, button, h, inside, put, tell } from "./dom.js";

const STATES = { running: "running", paused: "paused", ended: "ended" };

export function listView(element, choose) {
  function draw(sandboxes, chosen) {
    const rows = [];
    const add = (each, depth) => {
      rows.push(row(each, depth, chosen));
      sandboxes.filter((other) => other.parent === each.id).forEach((other) => add(other, depth + 1));
    };
    sandboxes.filter((each) => !sandboxes.some((other) => other.id === each.parent)).forEach((each) => add(each, 0));
    const hadFocus = element.contains(document.activeElement) ? document.activeElement.dataset.id : "";
    put(element, h("p", { class: "row" }, h("strong", {}, "Sandboxes"), h("span", { class: "hint" }, String(sandboxes.length)), h("span", { class: "space" }), button("New", begin)),
      h("ul", { class: "items" }, rows),
      !sandboxes.length ? h("p", { class: "empty" }, "None is open. Programs open them with staddle.connect().") : "");
    if (hadFocus) element.querySelector(`[data-id="${CSS.escape(hadFocus)}"]`)?.focus();
  }

  function row(each, depth, chosen) {
    const labels = Object.entries(each.labels);
    return h("li", { class: `depth${Math.min(depth, 4)}` }, h("button", { type: "button", class: "item", "data-id": each.id,
      "aria-current": each.id === chosen ? "true" : null, onclick: () => choose(each.id) },
    h("span", { class: `state ${STATES[each.state] ?? ""}`, role: "img", "aria-label": each.state }),
    h("span", { class: "name" }, inside(each.name || each.id.slice(0, 8)), depth ? h("span", { class: "hint" }, ` fork ${each.id.slice(0, 4)}`) : null,
      labels.length > 0 && h("span", { class: "labels" }, labels.slice(0, 6).map(([name, value]) => inside(`${name}=${value}`, { class: "label" })))),
    h("span", { class: "space" }),
    each.commands > 0 && h("span", { class: "badge live" }, `${each.commands} running`),
    each.questions > 0 && h("span", { class: "badge warn" }, each.questions === 1 ? "asks" : `asks ${each.questions}`)));
  }

  async function begin() {
    const field = (label, properties = {}) => {
      const input = h("input", { autocomplete: "off", spellcheck: "false", ...properties });
      return [input, h("label", { class: "field" }, label, input)];
    };
    const [workspace, one] = field("Workspace: a directory of the host", { placeholder: "/home/you/project (empty: none)" });
    const [name, two] = field("Name");
    const [ask, three] = field("Ask about hosts that the policy does not list", { type: "checkbox" });
    const [history, four] = field("Keep a history: a point for each command that changed files", { type: "checkbox" });
    if (!(await asked("New sandbox", [one, two, three, four], "Open"))) return;
    const body = { ask: ask.checked, history: history.checked };
    if (workspace.value) body.workspace = workspace.value;
    if (name.value) body.name = name.value;
    await post("/v1/sandboxes", body).then((made) => choose(made.id), tell);
  }

  return { draw };
}
