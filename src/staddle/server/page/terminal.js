// Terminals of a sandbox. The program goes on while nobody is attached; each attachment continues at an offset.

import "./strict_styles.js";
import { FitAddon } from "./vendor/addon-fit.mjs";
import { Terminal } from "./vendor/xterm.mjs";
import { at, attached, get, post, remove, send } from "./api.js";
import { button, confirmed, h, put, tell } from "./dom.js";

// Bytes that xterm.js has not drawn yet. Above, the page detaches until they are drawn: the server keeps the newest.
const MOST_PENDING = 1 << 20;
const DARK = { background: "#12181b", foreground: "#d7dfe0", cursor: "#7fc8b4", selectionBackground: "#35585080" };
const LIGHT = { background: "#fcfcfa", foreground: "#1f2a2c", cursor: "#2a7a68", selectionBackground: "#9fd4c580",
  yellow: "#8a6100", brightYellow: "#8a6100", green: "#2e7d32", brightGreen: "#2e7d32", white: "#5c6668", brightWhite: "#3a4447" };

/** The terminals of a sandbox, one of them shown. */
export function terminalView(sandbox) {
  const bar = h("div", { class: "row bar" }), place = h("div", { class: "screen" });
  const element = h("div", { class: "fill" }, bar, place);
  let open = null, all = [], readsAloud = false;

  async function load() {
    all = await get(at(sandbox, "terminals"));
    if (!open && all.length) show(all.at(-1).id);
    draw();
  }

  function draw() {
    put(bar, ...all.map((each, index) => h("button", {
        type: "button", class: "choice", "aria-pressed": String(open?.id === each.id), onclick: () => show(each.id),
      }, `Terminal ${index + 1}${each.exit_code === null ? "" : ` (ended: ${each.exit_code})`}`)),
      button(all.length ? "New" : "Open a terminal", begin, { class: all.length ? "" : "primary" }),
      h("span", { class: "space" }),
      open && h("span", { class: "hint" }, "Shift+Esc leaves the terminal"),
      open && h("button", { type: "button", class: "choice", "aria-pressed": String(readsAloud), onclick: () => {
        readsAloud = !readsAloud;
        open.read(readsAloud);
        draw();
      } }, "Screen reader"),
      open && button("Close terminal", end),
    );
    if (!open) put(place, h("p", { class: "empty" }, "No terminal is open. Its program goes on while nobody watches."));
  }

  async function begin() {
    const made = await post(at(sandbox, "terminals"), size());
    all.push(made);
    show(made.id);
    draw();
    open.focus();
  }

  async function end() {
    const id = open.id;
    const facts = await get(at(sandbox, "terminals", id));
    if (facts.exit_code === null && !(await confirmed("Close this terminal?", "Its program is hung up.", "Close"))) return;
    await remove(at(sandbox, "terminals", id));
    leave();
    await load();
  }

  // Rows and columns that fit: a character is about 8 by 17 pixels. xterm.js measures again when it is there.
  const size = () => ({ rows: Math.max(8, Math.floor(place.clientHeight / 17)), cols: Math.max(20, Math.floor(place.clientWidth / 8)) });

  function show(id) {
    if (open?.id === id) return;
    leave();
    open = screen(sandbox, id, place, () => load().catch(tell));
    open.read(readsAloud);
    draw();
  }

  function leave() {
    open?.close();
    open = null;
  }

  return { element, show: () => load().then(() => open?.fit()), close: leave,
    heard: (event) => event.kind === "terminal" && load().catch(tell) };
}

/** One attached terminal. */
function screen(sandbox, id, place, ended) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const terminal = new Terminal({
    scrollback: 5000, cursorBlink: true, fontSize: 13,
    fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace",
    theme: dark.matches ? DARK : LIGHT, minimumContrastRatio: 4.5,
    linkHandler: { activate() {} }, // a link from inside is text
  });
  const fitting = new FitAddon(), encoder = new TextEncoder();
  let socket = null, offset = 0, pending = 0, isClosed = false, isOver = false, waits = 250;
  put(place);
  terminal.loadAddon(fitting);
  terminal.open(place);
  terminal.attachCustomKeyEventHandler((event) => {
    if (event.key !== "Escape" || !event.shiftKey) return true;
    document.querySelector("[role=tab][aria-selected=true]")?.focus();
    return false;
  });
  terminal.onData((text) => say(encoder.encode(text)));
  terminal.onBinary((text) => say(Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
  terminal.onResize(({ rows, cols }) => say(JSON.stringify({ rows, cols })));
  const colours = () => (terminal.options.theme = dark.matches ? DARK : LIGHT);
  dark.addEventListener("change", colours);
  const watch = new ResizeObserver(fit);
  watch.observe(place);

  function say(message) {
    if (socket?.readyState === WebSocket.OPEN) socket.send(message);
    // Detached from a program that prints faster than the page draws: its keys, as Ctrl-C, have to arrive.
    else if (typeof message !== "string") send("POST", at(sandbox, "terminals", id, "input"), message).catch(tell);
  }

  function fit() {
    if (place.clientHeight > 40 && place.clientWidth > 40) fitting.fit();
  }

  function attach() {
    if (isClosed) return;
    const mine = (socket = attached(sandbox, id, offset));
    mine.onopen = () => {
      waits = 250;
      fit();
      say(JSON.stringify({ rows: terminal.rows, cols: terminal.cols }));
    };
    mine.onmessage = ({ data }) => mine === socket && (typeof data === "string" ? facts(JSON.parse(data)) : draw(new Uint8Array(data)));
    mine.onclose = () => {
      if (mine !== socket || isClosed || isOver) return;
      socket = null;
      setTimeout(attach, (waits = Math.min(waits * 2, 8000)));
    };
  }

  function draw(data) {
    offset += data.length;
    pending += data.length;
    terminal.write(data, () => {
      pending -= data.length;
      if (!pending && !socket && !isOver) attach();
    });
    if (pending > MOST_PENDING && socket) {
      const slow = socket;
      socket = null;
      slow.close();
    }
  }

  function facts(told) {
    if (told.offset !== undefined) offset = told.offset;
    if (told.missed) {
      offset += told.missed;
      terminal.write(`\r\n\x1b[2m(${told.missed} bytes are not shown)\x1b[0m\r\n`);
    }
    if ("exit_code" in told) {
      isOver = true;
      terminal.write(`\r\n\x1b[2m(the program has ended: ${told.exit_code ?? "closed"})\x1b[0m\r\n`);
      ended();
    }
  }

  attach();
  return {
    id, fit, focus: () => terminal.focus(),
    read: (isOn) => (terminal.options.screenReaderMode = isOn),
    close() {
      isClosed = true;
      watch.disconnect();
      dark.removeEventListener("change", colours);
      socket?.close();
      terminal.dispose();
    },
  };
}
