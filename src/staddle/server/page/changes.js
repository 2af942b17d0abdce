// Changes with their diffs: of the workspace, of a review, between two snapshots, or of a point of the history.

import { at, encoded, get, post } from "./api.js";
import { busy, button, bytes, confirmed, h, inside, put, tell } from "./dom.js";
import { commitPane } from "./commit.js";
import { diffTable } from "./diff.js";

const MARKS = { added: "A", modified: "M", deleted: "D", renamed: "R", mode: "P", type: "T", link: "L" };
const MOST_LISTED = 2000;

/** The path below the workspace, or the whole path. */
export const below = (path) => (path.startsWith("/workspace/") ? path.slice(11) : path);

/** A place for diffs. */
export const diffPane = () => h("div", { class: "pane", tabindex: "0", role: "region", "aria-label": "Diff" }, h("p", { class: "empty" }, "Choose a change to see its diff."));

/** A list of changes. The diff of the chosen one, from `diffOf(change)`, is shown in `place`. */
export function changeItems(changes, diffOf, place, beside = () => null) {
  const buttons = changes.slice(0, MOST_LISTED).map((change) => h("button", {
    type: "button", class: "item", "aria-pressed": "false", title: change.kind, onclick: (event) => choose(change, event.currentTarget),
  }, h("span", { class: `mark ${change.kind}`, "aria-label": change.kind }, MARKS[change.kind] ?? "?"),
    inside(below(change.path), { class: "path" }),
    change.old_path && h("span", { class: "hint" }, "from ", inside(below(change.old_path))),
    change.conflict && h("span", { class: "badge warn" }, "changed on the host too"),
    h("span", { class: "space" }),
    change.size !== null && h("span", { class: "hint" }, bytes(change.size))));

  async function choose(change, chosen) {
    place.chosen?.setAttribute("aria-pressed", "false");
    place.chosen = chosen;
    chosen.setAttribute("aria-pressed", "true");
    await busy(chosen, async () => {
      const text = await diffOf(change);
      put(place, h("h3", {}, inside(change.path)), diffTable(text));
      place.scrollTop = 0;
      if (matchMedia("(max-width: 720px)").matches) place.scrollIntoView({ block: "nearest" });
    });
    chosen.focus();
  }

  return h("ul", { class: "items", "aria-label": "Changes" }, buttons.map((each, index) => h("li", {}, beside(changes[index]), each)),
    changes.length > MOST_LISTED && h("li", { class: "hint" }, `${changes.length - MOST_LISTED} more are not listed`));
}

/** A list of changes beside the diff of the chosen one. */
export function changeList(changes, diffOf, empty) {
  if (!changes.length) return h("p", { class: "empty" }, empty);
  const place = diffPane();
  return h("div", { class: "split" }, changeItems(changes, diffOf, place), place);
}

/** The diff of one change, from a path of the API that lists changes. */
export async function oneDiff(path, change) {
  const found = await get(`${path}${path.includes("?") ? "&" : "?"}diff=1&path=${encoded(change.path)}`);
  return found.length ? found[0].diff : "It has changed back.\n";
}

/** The changes of a sandbox to its workspace, with review and commit. */
export function changesView(sandbox) {
  const bar = h("div", { class: "row bar" }), place = h("div", { class: "fill" });
  const element = h("div", { class: "fill" }, bar, place);
  const everything = h("input", { type: "checkbox", onchange: () => load().catch(tell) });
  let known = "", isReviewing = false;

  const path = () => at(sandbox.id, "changes", { everything: everything.checked ? 1 : undefined });

  async function load() {
    const changes = await get(path());
    const text = JSON.stringify(changes);
    if (text === known && !isReviewing) return;
    [known, isReviewing] = [text, false];
    const own = changes.filter((each) => !each.elsewhere);
    put(bar, h("span", { role: "status" }, changes.length === 1 ? "1 change" : `${changes.length} changes`),
      h("label", {}, everything, " home and /tmp too"), h("span", { class: "space" }),
      own.length > 0 && button("Discard…", () => discard(own), { class: "danger" }),
      own.length > 0 && button("Review and commit…", review, { class: "primary" }));
    put(place, changeList(changes, (change) => oneDiff(path(), change),
      "The workspace is as on the host. Changes appear here when a command ends."));
  }

  async function discard(changes) {
    if (!(await confirmed("Discard all changes?", `${changes.length} changes to the workspace are lost. Take a snapshot first to keep them.`, "Discard"))) return;
    await post(at(sandbox.id, "discard"));
    await load();
  }

  async function review() {
    const found = await post(at(sandbox.id, "review"));
    isReviewing = true;
    put(bar, button("Back", load), h("strong", {}, "Review"), h("span", { class: "space" }),
      h("span", { class: "hint" }, "digest ", h("code", {}, found.digest)));
    put(place, commitPane(sandbox, found, load));
  }

  return { element, show: load,
    heard: (event) => !isReviewing && ["result", "restored", "discarded", "committed", "stepped", "merged", "ended"].includes(event.kind) && load().catch(tell) };
}
