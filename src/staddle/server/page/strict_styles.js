// xterm.js under a policy that allows no inline style. It makes <style> elements and sets style attributes, and the
// policy refuses both. So on this page a style element is a constructed style sheet, and a span sets its style
// attribute through the object model, which the policy allows. No module of ours makes either.

const make = document.createElement.bind(document);

document.createElement = (tag, options) => {
  if (tag === "style") return sheet();
  const made = make(tag, options);
  if (tag === "span") {
    made.setAttribute = (name, value) => {
      if (name === "style") made.style.cssText = value;
      else Element.prototype.setAttribute.call(made, name, value);
    };
  }
  return made;
};

function sheet() {
  const made = make("template"), styles = new CSSStyleSheet();
  let text = "";
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, styles];
  Object.defineProperty(made, "textContent", { get: () => text, set: (value) => styles.replaceSync((text = value)) });
  made.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((each) => each !== styles);
    Element.prototype.remove.call(made);
  };
  return made;
}
