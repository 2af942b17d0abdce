// Destinations that programs inside asked for: questions that wait for an answer, and what was refused or allowed.

import { at, get, post } from "./api.js";
import { button, clock, h, inside, put, tell } from "./dom.js";

/** What waits for an answer, with approve and refuse. Shown above every tab. */
export function questionsView(sandbox) {
  const element = h("div", { class: "questions", role: "alert" });

  async function load() {
    const all = await get(at(sandbox, "questions"));
    put(element, ...all.map((each) => {
      const isRequest = each.event.what.includes(" ");     // METHOD HOST/PATH, not HOST:PORT
      const answer = (allow, always = false) => async () => {
        await post(at(sandbox, "questions", each.id), { allow, always });
        await load();
      };
      return h("p", { class: "row" }, h("span", {}, isRequest ? "A program asks to send " : "A program asks to connect to ", h("strong", {}, inside(each.event.what))),
        h("span", { class: "space" }),
        button("Refuse", answer(false), { "aria-label": `Refuse ${each.event.what}` }),
        isRequest && button("Always", answer(true, true), { "aria-label": `Always approve ${each.event.what}` }),
        button("Approve", answer(true), { class: "primary", "aria-label": `Approve ${each.event.what}` }));
    }));
  }

  return { element, show: load, heard: (event) => ["question", "answer"].includes(event.kind) && load().catch(tell) };
}

const COLOURS = { approved: "good", refused: "bad", asked: "warn", "not answered": "bad" };
const ANSWERS = new Map([[true, "approved"], [false, "refused"], [null, "not answered"]]);

/** The log of the network, from the events of a sandbox. */
export function networkView(events) {
  const rows = h("tbody");
  const empty = h("p", { class: "empty" }, "No program has asked for a destination that the policy does not list.");
  const element = h("div", { class: "scroll" }, h("table", { class: "log" },
    h("thead", {}, h("tr", {}, ["Time", "Destination", "", "Why"].map((text) => h("th", { scope: "col" }, text)))), rows), empty);
  const asked = new Map();

  function line(event, what, kind, why) {
    rows.prepend(h("tr", {}, h("td", { class: "hint" }, clock(event.at)), h("td", {}, inside(what)),
      h("td", {}, h("span", { class: `badge ${COLOURS[kind] ?? ""}` }, kind)), h("td", {}, inside(why))));
    while (rows.children.length > 1000) rows.lastChild.remove();
    empty.hidden = true;
  }

  function heard(event) {
    const facts = event.facts ?? {};
    if (event.kind === "question") {
      asked.set(event.question, event.event.what);
      line(event, event.event.what, "asked", event.event.rule);
    } else if (event.kind === "answer") {
      line(event, asked.get(event.question) ?? "", ANSWERS.get(event.allow), event.allow === null ? "nobody answered in time" : "you answered");
    } else if (event.kind === "refused") line(event, facts.host ?? "", "refused", facts.rule ?? "");
    else if (event.kind === "network" && facts.host) line(event, facts.host, facts.kind ?? "note", facts.rule ?? "");
    else if (event.kind === "network") line(event, facts.network ?? "", "changed", "the policy was replaced");
  }

  events.forEach(heard);
  return { element, heard };
}
