// A unified diff as a table: both sides beside each other, or below each other on a narrow screen.

import { h, shownBlock } from "./dom.js";

const MOST_ROWS = 4000;
const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/;

/** Parse a unified diff: lines before it, and rows {old, new} with [number, text, isUnended] or null; or {gap}. */
export function parsed(text) {
  const head = [], rows = [];
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  let position = 0;
  while (position < lines.length && !HUNK.test(lines[position])) {
    const line = lines[position++];
    if (!/^(---|\+\+\+) /.test(line)) head.push(line);
  }
  while (position < lines.length) {
    const found = HUNK.exec(lines[position++]);
    if (!found) break;
    let [old, now] = [Number(found[1]), Number(found[3])];
    // The counts end a hunk: a line of a file may look like the head of another one.
    let [oldLeft, newLeft] = [Number(found[2] ?? 1), Number(found[4] ?? 1)];
    let removed = [], added = [];
    const flush = () => {
      for (let n = 0; n < Math.max(removed.length, added.length); n++) rows.push({ old: removed[n] ?? null, new: added[n] ?? null });
      [removed, added] = [[], []];
    };
    rows.push({ gap: `line ${now || 1}` });
    let last = null;
    while (position < lines.length && (oldLeft > 0 || newLeft > 0 || lines[position][0] === "\\")) {
      const mark = lines[position][0], rest = lines[position++].slice(1);
      if (mark === "\\") {
        last?.forEach((side) => (side[2] = true));
      } else if (mark === "-") {
        removed.push((last = [[old++, rest, false]])[0]);
        oldLeft--;
      } else if (mark === "+") {
        added.push((last = [[now++, rest, false]])[0]);
        newLeft--;
      } else {
        flush();
        last = [[old++, rest, false], [now++, rest, false]];
        rows.push({ old: last[0], new: last[1], same: true });
        oldLeft--;
        newLeft--;
      }
    }
    flush();
  }
  return { head, rows };
}

/** A line with the part that differs from the line beside it marked. */
function content(side, other) {
  if (!side) return [];
  const text = side[1], end = side[2] ? [h("span", { class: "hint" }, " (no newline)")] : [];
  if (!other || text.length > 2000 || other[1].length > 2000 || text === other[1]) return [shownBlock(text), ...end];
  const most = Math.min(text.length, other[1].length);
  let first = 0, last = 0;
  while (first < most && text[first] === other[1][first]) first++;
  while (last < most - first && text.at(-1 - last) === other[1].at(-1 - last)) last++;
  const middle = text.slice(first, text.length - last);
  if (first + last < most / 3) return [shownBlock(text), ...end]; // another line, not a changed one
  return [shownBlock(text.slice(0, first)), middle && h("mark", {}, shownBlock(middle)),
    last ? shownBlock(text.slice(-last)) : "", ...end].filter(Boolean);
}

/** Draw a unified diff. */
export function diffTable(text) {
  const { head, rows } = parsed(text);
  const narrow = matchMedia("(max-width: 720px)").matches;
  const cell = (kind, children) => h("td", { class: kind }, children);
  const number = (side) => h("td", { class: "number" }, side ? String(side[0]) : "");
  const told = (row) => {
    if (row.gap) return [h("tr", { class: "gap" }, h("td", { colspan: narrow ? "2" : "4" }, row.gap))];
    const old = row.same ? "" : row.old ? "old" : "none", now = row.same ? "" : row.new ? "new" : "none";
    if (!narrow) return [h("tr", {}, number(row.old), cell(old, content(row.old, row.new)), number(row.new), cell(now, content(row.new, row.old)))];
    if (row.same) return [h("tr", {}, number(row.new), cell("", content(row.new)))];
    return [row.old && h("tr", {}, number(row.old), cell(old, content(row.old, row.new))),
      row.new && h("tr", {}, number(row.new), cell(now, content(row.new, row.old)))].filter(Boolean);
  };
  const drawn = rows.slice(0, MOST_ROWS);
  return h("div", { class: "diff" },
    head.map((line) => h("p", { class: "head" }, shownBlock(line))),
    rows.length > 0 && h("table", { "aria-label": narrow ? "Diff" : "Diff: before on the left, after on the right" },
      h("colgroup", {}, (narrow ? ["number", ""] : ["number", "", "number", ""]).map((kind) => h("col", { class: kind }))),
      h("tbody", {}, drawn.flatMap(told))),
    rows.length > MOST_ROWS && h("p", { class: "hint" }, `${rows.length - MOST_ROWS} more lines are not shown`),
    !rows.length && !head.length && h("p", { class: "hint" }, "No difference in content."));
}
