// A review and its commit. What is held back, in conflict or would overwrite is chosen by itself; the commit names
// the review, so it writes what was seen here, or nothing.

import { at, post } from "./api.js";
import { button, h, inside, tell } from "./dom.js";
import { below, changeItems, diffPane, oneDiff } from "./changes.js";

/** What a commit of this review would do, with a choice for each change. `done` is called after it. */
export function commitPane(sandbox, review, done) {
  const held = new Map(review.held.map((each) => [each.path, each.why]));
  const conflicts = new Map(review.conflicts.map((each) => [each.path, each.why]));
  const refused = new Map(review.refused.map((each) => [each.path, each.why]));
  const chosen = new Set(review.changes.map((each) => below(each.path)).filter((path) => !held.has(path) && !conflicts.has(path) && !refused.has(path)));
  const files = review.changes.filter((each) => each.type !== "directory" || each.old_type);
  const commit = button("", write, { class: "primary" });
  const path = at(sandbox.id, "reviews", review.id, "changes"), place = diffPane();

  function section(title, why, changes) {
    if (!changes.length) return null;
    const boxes = new Map(changes.map((each) => [each, h("input", {
      type: "checkbox", checked: chosen.has(below(each.path)), disabled: refused.has(below(each.path)),
      "aria-label": `commit ${below(each.path)}`,
      onchange: (event) => {
        if (event.currentTarget.checked) chosen.add(below(each.path));
        else chosen.delete(below(each.path));
        count();
      },
    })]));
    return h("details", { open: true }, h("summary", {}, `${title} (${changes.length})`), h("p", { class: "hint" }, why),
      changeItems(changes, (change) => oneDiff(path, change), place, (change) => {
        const name = below(change.path), reason = held.get(name) ?? conflicts.get(name) ?? refused.get(name);
        return [boxes.get(change), reason && h("p", { class: "reason" }, inside(reason))];
      }));
  }

  function count() {
    const number = files.filter((each) => chosen.has(below(each.path))).length;
    commit.textContent = number === 1 ? "Commit 1 change" : `Commit ${number} changes`;
    commit.disabled = number === 0;
  }

  async function write() {
    const names = files.map((each) => below(each.path)).filter((name) => chosen.has(name));
    // Directories come with their files. All of the review is committed without a list of paths.
    const body = { review: review.id, allow: [...held.keys()].filter((name) => chosen.has(name)) };
    if (names.length < files.length) body.paths = names.map((name) => (name.startsWith("/") ? name : `/workspace/${name}`));
    if (names.some((name) => conflicts.has(name))) body.on_conflict = "overwrite";
    const found = await post(at(sandbox.id, "commit"), body);
    const told = found.changes.length === 1 ? "1 change was" : `${found.changes.length} changes were`;
    tell(`${told} committed to ${sandbox.workspace ?? "the workspace"}`, "done");
    await done();
  }

  const is = (each, where) => where.has(below(each.path));
  const clear = files.filter((each) => !is(each, held) && !is(each, conflicts) && !is(each, refused));
  count();
  return h("div", { class: "split" }, h("div", { class: "scroll" },
    section("Held back", "A program outside the sandbox may run these. They are committed only if you choose them.",
      files.filter((each) => is(each, held) && !is(each, refused))),
    section("Conflicts", "The host has changed these since the sandbox began. If you choose one, the host's version is overwritten.",
      files.filter((each) => is(each, conflicts) && !is(each, held) && !is(each, refused))),
    section("Refused", "staddle trusts these files itself. They are never committed.", files.filter((each) => is(each, refused))),
    section("Overwrites", "Files of the host that are replaced, renamed or deleted.", clear.filter((each) => each.old_type)),
    section("New", "Files that the host does not have.", clear.filter((each) => !each.old_type)),
    review.left_out.length > 0 && h("p", { class: "hint" }, "Not committed, because they are no files: ", inside(review.left_out.join(", "))),
    h("p", { class: "row end sticky" }, commit)), place);
}
