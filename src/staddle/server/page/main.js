// The page: the list, the chosen sandbox, and the events that keep both up to date.

import { get, takeToken, useToken } from "./api.js";
import { h, put, tell } from "./dom.js";
import { listView } from "./list.js";
import { sandboxView } from "./sandbox.js";

const MOST_EVENTS = 1000; // kept of each sandbox
const main = document.getElementById("main"), connection = document.getElementById("connection");
const events = new Map();
let sandboxes = [], view = null, timer = 0;
const list = listView(document.getElementById("list"), (id) => choose(id).catch(tell));

// The address keeps what is shown: #/sandbox/tab
const [, shownId, shownTab] = location.hash.split("/");
let wanted = { id: shownId ?? "", tab: shownTab ?? "" };

function remember() {
  history.replaceState(null, "", wanted.id ? `#/${wanted.id}/${wanted.tab}` : location.pathname);
}

async function choose(id) {
  wanted = { ...wanted, id };
  remember();
  await refresh();
}

async function refresh() {
  sandboxes = await get("/v1/sandboxes");
  const found = sandboxes.find((each) => each.id === wanted.id);
  list.draw(sandboxes, found?.id);
  if (view && view.id !== found?.id) {
    view.close();
    view = null;
  }
  if (!found) {
    const text = wanted.id ? "This sandbox is closed." : sandboxes.length ? "Choose a sandbox." : "";
    put(main, h("p", { class: "empty" }, text));
  } else if (view) {
    view.update(found);
  } else {
    view = sandboxView(main, found, events.get(found.id) ?? [], wanted.tab, {
      opened: (id) => choose(id).catch(tell),
      tabbed: (tab) => {
        wanted = { ...wanted, tab };
        remember();
      },
    });
  }
  document.title = found ? `${found.name || found.id} – staddle` : "staddle";
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(() => refresh().catch(tell), 60);
}

// One request waits for events. It ends while the page is hidden: a browser has few connections to a server.
async function follow() {
  let last = 0, isLost = false;
  for (;;) {
    while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
    const controller = new AbortController();
    const hide = () => document.hidden && controller.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      const found = await get(`/v1/events?after=${last}&wait=${last ? 25 : 0}`, controller.signal);
      if (found.last < last) return location.reload(); // another server
      for (const event of found.events) {
        const kept = events.get(event.sandbox) ?? [];
        kept.push(event);
        if (kept.length > MOST_EVENTS) kept.shift();
        events.set(event.sandbox, kept);
        if (event.kind === "closed") events.delete(event.sandbox);
        if (view?.id === event.sandbox) view.heard(event);
      }
      if (found.events.length || !last || isLost) soon();
      if (!last) setInterval(() => document.hidden || soon(), 5000);
      last = Math.max(found.last, 1);
      isLost = false;
      connection.textContent = "live";
      connection.className = "live";
    } catch (error) {
      if (error.status === 401) return ask();
      if (error.name !== "AbortError") {
        isLost = true;
        connection.textContent = "The server does not answer";
        connection.className = "lost";
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
  }
}

/** Ask for the token: the page was opened without it, or the server is another one. */
function ask() {
  connection.textContent = "not connected";
  connection.className = "lost";
  const token = h("input", { type: "password", autocomplete: "off", "aria-label": "Token or address", required: true });
  put(main, h("form", { class: "ask", onsubmit: (event) => {
    event.preventDefault();
    useToken(decodeURIComponent(token.value.trim().replace(/^.*#token=/, "")));
    location.reload();
  } }, h("h2", {}, "Connect to the server"), h("p", {}, "The server wants its token. Paste it, or the whole address that ", h("code", {}, "staddle serve --page"), " prints."),
  h("p", { class: "row" }, token, h("button", { class: "primary" }, "Connect"))));
}

if (takeToken()) follow();
else ask();
