// One sandbox: its head, its questions, its usage, and a tab for each of the rest.

import { at, post, remove } from "./api.js";
import { button, confirmed, h, inside, put, shown, tell } from "./dom.js";
import { changesView } from "./changes.js";
import { commandsView } from "./commands.js";
import { networkView, questionsView } from "./network.js";
import { terminalView } from "./terminal.js";
import { treeView } from "./tree.js";
import { usageView } from "./usage.js";

const TABS = ["Terminal", "Commands", "Changes", "Snapshots", "Network"];

/** Show a sandbox in `place`. `events` are its events so far; `opened(id)` shows another one. */
export function sandboxView(place, sandbox, events, tab, { opened, tabbed }) {
  const made = {
    Terminal: () => terminalView(sandbox.id),
    Commands: () => commandsView(sandbox.id),
    Changes: () => changesView(sandbox),
    Snapshots: () => treeView(sandbox, opened),
    Network: () => networkView(events),
  };
  const head = h("div", { class: "head" }), panel = h("div", { class: "fill", role: "tabpanel", id: "panel" });
  const questions = questionsView(sandbox.id), usage = usageView(sandbox.id);
  const tabs = TABS.map((name) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", onclick: () => choose(name) }, name));
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": "Views of the sandbox", onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
    next.focus();
    next.click();
  } }, tabs);
  let current = null;

  function update(facts) {
    Object.assign(sandbox, facts);
    const isPaused = facts.state === "paused", path = at(facts.id);
    put(head, h("div", {}, h("h2", {}, inside(facts.name || facts.id)),
        h("p", { class: "hint" }, h("span", { role: "status" }, facts.state), ` · ${facts.id} · `, inside(facts.workspace ?? "no directory of the host"), ` · ${facts.mode}, ${facts.backend}`,
          facts.keep && [" · kept as ", inside(facts.keep)])),
      h("span", { class: "space" }),
      h("div", { class: "row" },
        facts.commands > 0 && button("Interrupt", () => post(`${path}/interrupt`)),
        button(isPaused ? "Resume" : "Pause", () => post(`${path}/${isPaused ? "resume" : "pause"}`)),
        button("Close…", close, { class: "danger" })),
      facts.gaps.length > 0 && h("ul", { class: "gaps", "aria-label": "Not enforced" }, facts.gaps.map((gap) => h("li", {}, shown(gap)))));
  }

  async function close() {
    const lost = sandbox.keep ? "Its programs end. Its changes stay on disk." : "Its programs end, and all changes that were not committed are lost.";
    if (await confirmed(`Close ${shown(sandbox.name || sandbox.id)}?`, lost, "Close")) await remove(at(sandbox.id));
  }

  function choose(name) {
    current?.close?.();
    for (const each of tabs) {
      const isChosen = each.id === `tab-${name}`;
      each.setAttribute("aria-selected", String(isChosen));
      each.tabIndex = isChosen ? 0 : -1;
    }
    current = made[name]();
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    put(panel, current.element);
    Promise.resolve(current.show?.()).catch(tell);
    tabbed(name);
  }

  update(sandbox);
  put(place, head, questions.element, usage.element, bar, panel);
  usage.show();
  questions.show().catch(tell);
  choose(TABS.includes(tab) ? tab : TABS[0]);
  return {
    id: sandbox.id, update,
    heard(event) {
      questions.heard(event);
      current.heard?.(event);
    },
    close() {
      usage.close();
      current.close?.();
    },
  };
}
