// Elements, and text from inside made harmless to read. Nothing here, or in any other module, parses markup.

/** Make an element: h("button", {class: "quiet", onclick: work}, "Text", another). */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Make an element of SVG. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...present(children));
  return element;
}

const present = (children) => children.flat().filter((child) => child !== null && child !== undefined && child !== false);

/** Replace the children of an element. Null and false are left out. */
export const put = (element, ...children) => element.replaceChildren(...present(children));

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const HIDDEN_IN_BLOCK = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;

function spelled(letter) {
  const code = letter.codePointAt(0);
  const isByte = code < 0x100 || (code >= 0xdc80 && code <= 0xdcff); // Python's form of bytes that are no UTF-8
  return isByte ? `\\x${(code & 0xff).toString(16).padStart(2, "0")}` : `\\u{${code.toString(16)}}`;
}

/** Text from inside in one line: what a reader cannot see, or what turns the direction, is spelled out. */
export const shown = (text) => String(text ?? "").replace(HIDDEN, spelled);

/** The same for text of several lines. */
export const shownBlock = (text) => String(text ?? "").replace(HIDDEN_IN_BLOCK, spelled);

/** Text from inside as an element of its own direction. */
export const inside = (text, properties = {}) => h("bdi", properties, shown(text));

export function bytes(count) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (count < 1000 || unit === "GiB") return `${count < 10 && unit !== "B" ? count.toFixed(1) : Math.round(count)} ${unit}`;
    count /= 1024;
  }
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** Run `work` for a button, which is disabled meanwhile. Errors are shown. */
export async function busy(button, work) {
  button.disabled = true;
  try {
    return await work();
  } catch (error) {
    tell(error);
  } finally {
    button.disabled = false;
  }
}

/** Make a button that does `work`. */
export function button(text, work, properties = {}) {
  const made = h("button", { type: "button", onclick: () => busy(made, work), ...properties }, text);
  return made;
}

/** Show a message, or an error of the server with its reason and what to do. */
export function tell(error, kind = "error") {
  if (error.name === "AbortError") return;
  const told = [error.what ?? error.message ?? error, error.why, error.fix].filter(Boolean);
  const made = h("div", { class: `message ${kind}` }, h("p", {}, h("strong", {}, shown(told[0]))),
    told.slice(1).map((line) => h("p", {}, shown(line))),
    h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => made.remove() }, "×"));
  const all = document.getElementById("messages");
  all.append(made);
  while (all.children.length > 4) all.firstChild.remove();
  if (kind !== "error") setTimeout(() => made.remove(), 6000);
}

/** Open a dialog with `content` and a button; resolve to whether it was pressed. */
export function asked(title, content, verb, { danger = false } = {}) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": title }, h("form", { method: "dialog", onsubmit: (event) => {
      event.preventDefault();
      dialog.close("yes");
    } }, h("h2", {}, title), content, h("p", { class: "row end" },
      h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
      h("button", { class: danger ? "danger" : "primary" }, verb))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const confirmed = (title, text, verb) => asked(title, h("p", {}, text), verb, { danger: true });
