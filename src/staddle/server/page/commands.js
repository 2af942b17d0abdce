// The commands of a sandbox, newest first, with their output as it comes.

import { at, get, post, send } from "./api.js";
import { button, clock, duration, h, inside, put, shown, shownBlock, tell } from "./dom.js";

const MOST_DRAWN = 400_000; // characters of one output
// Colours and titles of a terminal: left out here. Anything else that is no text is spelled out.
const SEQUENCES = /\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-B]|\r(?=\n)/g;

const textOf = (command) => (Array.isArray(command) ? command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : JSON.stringify(word))).join(" ") : command ?? "");

export function commandsView(sandbox) {
  const list = h("ul", { class: "items", "aria-label": "Commands, newest first" });
  const place = h("div", { class: "pane", tabindex: "0", role: "region", "aria-label": "Output" }, h("p", { class: "empty" }, "Choose a command to see its output."));
  const text = h("input", { "aria-label": "Command to run in the main session", placeholder: "Run a command in the main session", autocomplete: "off", spellcheck: "false" });
  const element = h("div", { class: "fill" },
    h("form", { class: "row bar", onsubmit: (event) => {
      event.preventDefault();
      run().catch(tell);
    } }, h("code", { "aria-hidden": "true" }, "$"), text, h("button", { class: "primary" }, "Run")),
    h("div", { class: "split" }, list, place));
  let chosen = null, watched = null, timer = 0;

  async function run() {
    if (!text.value.trim()) return;
    const made = await send("POST", `${at(sandbox, "commands")}?wait=0&text=0`, { command: text.value }).then((reply) => reply.json());
    text.value = "";
    await load();
    watch(made.id);
  }

  async function load() {
    const all = (await get(at(sandbox, "commands"))).reverse();
    if (!all.length) return put(list, h("li", { class: "empty" }, "No command has run."));
    const hadFocus = list.contains(document.activeElement) ? document.activeElement.dataset.id : "";
    put(list, ...all.map((each) => h("li", {}, h("button", {
      type: "button", class: "item", "data-id": each.id, "aria-pressed": String(each.id === chosen), onclick: () => watch(each.id),
    }, state(each), inside(textOf(each.command), { class: "path" }), h("span", { class: "space" }), h("span", { class: "hint" }, clock(each.began))))));
    if (hadFocus) list.querySelector(`[data-id="${CSS.escape(hadFocus)}"]`)?.focus();
    if (!chosen) watch(all[0].id);
  }

  function state(command) {
    if (command.state !== "ended") return h("span", { class: "badge live" }, command.state);
    const is = command.exit_code === 0 ? "good" : "bad";
    return h("span", { class: `badge ${is}`, "aria-label": `exit code ${command.exit_code}` }, String(command.exit_code ?? "–"));
  }

  async function watch(id) {
    watched?.abort();
    watched = new AbortController();
    chosen = id;
    for (const each of list.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each.dataset.id === id));
    const output = h("pre", { class: "output" }), facts = h("p", { class: "row hint" });
    try {
      await follow(id, output, facts, watched.signal);
    } catch (error) {
      tell(error);
    }
  }

  async function follow(id, output, facts, signal) {
    const path = at(sandbox, "commands", id);
    const command = await get(`${path}?text=0`, signal);
    const stop = button("Interrupt", () => post(`${path}/interrupt`), { class: "danger" });
    put(place, h("h3", {}, inside(textOf(command.command))), facts, output);
    put(facts, `${command.kind} in session `, inside(command.session), ...(command.state === "ended" ? [] : [stop]));
    const readers = { 1: new TextDecoder(), 2: new TextDecoder() };
    let offset = 0;
    for (;;) {
      const reply = await send("GET", `${path}/output?frames=1&wait=20&offset=${offset}`, undefined, signal);
      const data = new DataView(await reply.arrayBuffer());
      const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 30;
      for (let position = 0; position < data.byteLength; ) {
        const stream = data.getUint8(position), size = data.getUint32(position + 4);
        if (stream === 0) output.append(h("span", { class: "hint" }, `(${data.getBigUint64(position + 8)} bytes are gone)\n`));
        else {
          const piece = readers[stream].decode(new Uint8Array(data.buffer, position + 8, size), { stream: true });
          output.append(h("span", { class: stream === 2 ? "stderr" : "" }, shownBlock(piece.replace(SEQUENCES, ""))));
        }
        position += 8 + size;
      }
      while (output.textContent.length > MOST_DRAWN && output.children.length > 1) output.firstChild.remove();
      if (output.textContent.length > MOST_DRAWN) output.firstChild.textContent = output.textContent.slice(-MOST_DRAWN);
      if (isAtEnd) place.scrollTop = place.scrollHeight;
      offset = Number(reply.headers.get("Staddle-Next"));
      if (reply.headers.get("Staddle-End") === "1") break;
    }
    const ended = await get(`${path}?text=0`, signal);
    const used = ended.result?.duration;
    put(facts, `${ended.kind} in session `, inside(ended.session),
      ` · exit code ${ended.exit_code ?? "none"}`, used === undefined ? "" : ` · ${duration(used)}`,
      ended.result && ended.result.reason.text !== "exited" ? ` · ${shown(ended.result.reason.text)}` : "");
    if (ended.error) output.append(h("span", { class: "stderr" }, shownBlock(`${ended.error.what}\n${ended.error.why ?? ""}`)));
    if (!output.textContent) output.append(h("span", { class: "hint" }, "(no output)"));
  }

  return { element, show: load, close: () => watched?.abort(),
    heard: () => {
      clearTimeout(timer);
      timer = setTimeout(() => load().catch(tell), 100);
    } };
}
