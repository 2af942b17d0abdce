// Usage of a sandbox, sampled each second while it is shown: a small plot for each of four figures.

import { at, get } from "./api.js";
import { bytes, h, svg } from "./dom.js";

const MOST = 120, WIDTH = 240, HEIGHT = 36;
const FIGURES = [
  { name: "CPU", of: (now, then) => (100 * (now.user + now.system - then.user - then.system)) / (now.wall - then.wall), told: (value) => `${value.toFixed(value < 10 ? 1 : 0)} %`, least: 10 },
  { name: "Memory", of: (now) => now.memory, told: bytes, least: 1 << 20 },
  { name: "Processes", of: (now) => now.processes, told: String, least: 4 },
  { name: "Disk", of: (now, then) => (now.read + now.written - then.read - then.written) / (now.wall - then.wall), told: (value) => `${bytes(value)}/s`, least: 1024 },
];

export function usageView(sandbox) {
  const plots = FIGURES.map((figure) => {
    const value = h("strong", {}, "–");
    const area = svg("polygon", { class: "area" }), line = svg("polyline", { class: "line" });
    const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
    return { figure, value, area, line, samples: [], element: h("div", { class: "plot" }, h("p", {}, figure.name, " ", value), drawn) };
  });
  const element = h("div", { class: "usage", role: "group", "aria-label": "Usage of the last two minutes" }, plots.map((each) => each.element));
  let then = null, timer = 0, isClosed = false;

  async function sample() {
    if (!document.hidden) {
      const now = await get(at(sandbox, "usage"));
      if (then && now.wall > then.wall) plots.forEach((each) => draw(each, Math.max(0, each.figure.of(now, then))));
      then = now;
    }
  }

  function draw({ figure, value, area, line, samples }, found) {
    samples.push(found);
    if (samples.length > MOST) samples.shift();
    value.textContent = figure.told(found);
    const most = Math.max(figure.least, ...samples) * 1.1, step = WIDTH / (MOST - 1), begin = WIDTH - (samples.length - 1) * step;
    const points = samples.map((each, index) => `${(begin + index * step).toFixed(1)},${(HEIGHT - (each / most) * (HEIGHT - 2)).toFixed(1)}`);
    line.setAttribute("points", points.join(" "));
    area.setAttribute("points", `${begin.toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  }

  async function run() {
    while (!isClosed) {
      await sample().catch(() => {}); // the list says that the server or the sandbox is gone
      await new Promise((resolve) => (timer = setTimeout(resolve, 1000)));
    }
  }

  return { element, show: () => void run(), close: () => {
    isClosed = true;
    clearTimeout(timer);
  } };
}
