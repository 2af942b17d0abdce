// The snapshots as a graph, newest on top; restore, fork and compare. Below it the points of a history.

import { at, get, post, remove } from "./api.js";
import { button, clock, confirmed, h, inside, put, shown, svg, tell } from "./dom.js";
import { changeList, oneDiff } from "./changes.js";

const LANE = 18;

/** Place the snapshots, oldest first, in rows and lanes: the first child continues its parent's lane. */
export function placed(snapshots) {
  const lanes = new Map(), continued = new Set();
  let most = 0;
  for (const each of snapshots) {
    const isFirst = lanes.has(each.parent) && !continued.has(each.parent);
    lanes.set(each.id, isFirst ? lanes.get(each.parent) : most++);
    if (isFirst) continued.add(each.parent);
  }
  return { lanes, width: most };
}

export function treeView(sandbox, opened) {
  const label = h("input", { "aria-label": "Label of the snapshot", placeholder: "Label", autocomplete: "off" });
  const place = h("div", { class: "scroll" }), below = h("div", { class: "compared" });
  const element = h("div", { class: "fill" },
    h("form", { class: "row bar", onsubmit: (event) => {
      event.preventDefault();
      take().catch(tell);
    } }, label, h("button", { class: "primary" }, "Take a snapshot"), h("span", { class: "space" }),
      h("span", { class: "hint" }, "Compare: choose one, then another")), place, below);
  let marked = null;

  async function take() {
    await post(at(sandbox.id, "snapshots"), { label: label.value });
    label.value = "";
    await load();
  }

  async function load() {
    const [all, points] = await Promise.all([get(at(sandbox.id, "snapshots")), get(at(sandbox.id, "history")).catch(() => null)]);
    if (!all.some((each) => each.id === marked?.id)) marked = null;
    put(place, all.length ? graph(all) : h("p", { class: "empty" }, "No snapshots. A snapshot keeps all files and shells of a moment, at no cost."),
      points ? history(points) : "");
  }

  function graph(all) {
    const now = { id: "now", parent: all.find((each) => each.current)?.id ?? null, label: "now" };
    const tall = matchMedia("(max-width: 720px)").matches ? 80 : 40;
    const rows = [...all, now], { lanes, width } = placed(rows);
    const x = (id) => 14 + lanes.get(id) * LANE, y = (id) => (rows.length - 1 - rows.findIndex((each) => each.id === id)) * tall + tall / 2;
    const edges = rows.filter((each) => lanes.has(each.parent)).map((each) => svg("path", {
      class: "edge", d: `M${x(each.parent)} ${y(each.parent)} C${x(each.parent)} ${y(each.parent) - tall / 2} ${x(each.id)} ${y(each.id) + tall / 2} ${x(each.id)} ${y(each.id)}`,
    }));
    const dots = rows.map((each) => svg("circle", { class: each === now ? "dot now" : "dot", cx: x(each.id), cy: y(each.id), r: each === now ? 4 : 6,
      onclick: () => document.getElementById(`snapshot-${each.id}`)?.querySelector("button")?.focus() }));
    const size = width * LANE + 14;
    const lines = rows.toReversed().map((each) => (each === now ? present() : row(each, all)));
    for (const line of lines) line.style.height = `${tall}px`;
    return h("div", { class: "graph" },
      svg("svg", { width: size, height: rows.length * tall, "aria-hidden": "true" }, edges, dots),
      h("ol", { "aria-label": "Snapshots, newest first" }, lines));
  }

  const present = () => h("li", { class: "now" }, h("span", {}, "now"), h("span", { class: "space" }), button("Fork", () => fork()));

  function row(each, all) {
    const name = each.label || each.id, parent = all.find((other) => other.id === each.parent);
    return h("li", { id: `snapshot-${each.id}`, class: each.current ? "current" : "" },
      h("span", {}, inside(name), " ", h("span", { class: "hint" }, clock(each.created), parent ? ` from ${shown(parent.label || parent.id)}` : "")),
      h("span", { class: "space" }),
      button("Restore", () => restore(each), { "aria-label": `Restore ${shown(name)}` }),
      button("Fork", () => fork(each), { "aria-label": `Fork from ${shown(name)}` }),
      button(marked?.id === each.id ? "Compare with…" : "Compare", () => compare(each, all), { "aria-pressed": String(marked?.id === each.id), "aria-label": `Compare ${shown(name)}` }),
      button("Delete", () => forget(each), { class: "quiet", "aria-label": `Delete ${shown(name)}` }));
  }

  async function restore(each) {
    if (!(await confirmed(`Restore ${shown(each.label || each.id)}?`, "Files and shells go back to that moment. Later changes that are in no snapshot are lost; background processes and terminals end.", "Restore"))) return;
    await post(at(sandbox.id, "restore"), { snapshot: each.id });
    await load();
  }

  async function fork(each) {
    const [made] = await post(at(sandbox.id, "fork"), each ? { snapshot: each.id } : {});
    opened(made.id);
  }

  async function forget(each) {
    if (!(await confirmed(`Delete ${shown(each.label || each.id)}?`, "Nobody can restore it any more.", "Delete"))) return;
    await remove(at(sandbox.id, "snapshots", each.id));
    await load();
  }

  async function compare(each, all) {
    if (!marked || marked.id === each.id) {
      marked = marked ? null : each;
      await load();
      return document.getElementById(`snapshot-${each.id}`)?.querySelector("[aria-pressed]")?.focus();
    }
    const [old, now] = [marked, each].sort((one, other) => all.findIndex((item) => item.id === one.id) - all.findIndex((item) => item.id === other.id));
    const path = at(sandbox.id, "snapshots", now.id, "changes", { since: old.id });
    marked = null;
    await load();
    await show(`From ${shown(old.label || old.id)} to ${shown(now.label || now.id)}`, path);
  }

  async function show(title, path) {
    const found = await get(path);
    put(below, h("p", { class: "row bar" }, h("strong", {}, title), h("span", { class: "space" }), button("Close", () => put(below))),
      changeList(found, (change) => oneDiff(path, change), "Their files are the same."));
    below.scrollIntoView({ block: "nearest" });
  }

  function history(points) {
    const step = (name) => async () => {
      await post(at(sandbox.id, name));
      await load();
    };
    return h("section", { "aria-label": "History" },
      h("p", { class: "row bar" }, h("strong", {}, "History"), h("span", { class: "hint" }, "a point for each command that changed files"), h("span", { class: "space" }),
        button("Undo", step("undo"), { disabled: points.length < 2 }), button("Redo", step("redo"))),
      h("ol", { class: "items flat" }, points.toReversed().map((each) => h("li", {}, h("button", {
        type: "button", class: "item", disabled: !each.number,
        onclick: () => show(`Point ${each.number}`, at(sandbox.id, "history", String(each.number), "changes")).catch(tell),
      }, h("span", { class: "badge" }, String(each.number)), inside(each.command || each.cause, { class: "path" }), h("span", { class: "space" }),
        h("span", { class: "hint" }, each.changed === null ? "" : `${each.changed} changed · `, clock(each.time)))))));
  }

  return { element, show: load,
    heard: (event) => ["snapshot", "restored", "point", "stepped", "forked"].includes(event.kind) && load().catch(tell) };
}
