// One measure of all heads as dots, layer by layer.

import { roleColour } from "../draw/colours.js";
import { byId, make, makeSvg, refill } from "../draw/elements.js";
import { say } from "../words/languages.js";

const HEIGHT = 104;
const SIDES = { left: 30, right: 8, top: 8, bottom: 16 };

/** @param {any} explorer @param {any[]} cells the cells of the atlas */
export function paintSpread(explorer, cells) {
  const box = byId("spread");
  const { state, group, dark } = explorer;
  const measure = ["layer", "role"].includes(state.sort) ? "entropy" : state.sort;
  const known = cells.filter(({ head }) => Number.isFinite(head[measure]));
  box.hidden = known.length < 2;
  if (box.hidden) return refill(box);
  const width = Math.max(120, box.clientWidth || 240);
  const values = known.map(({ head }) => head[measure]);
  const low = Math.min(0, ...values);
  const high = Math.max(...values, low + 1e-6);
  const layers = group.attentions;
  const room = (width - SIDES.left - SIDES.right) / layers.length;
  const y = (value) => SIDES.top + (1 - (value - low) / (high - low)) * (HEIGHT - SIDES.top - SIDES.bottom);
  const x = (cell) => {
    const heads = cell.attention.heads.length;
    return SIDES.left + room * (layers.indexOf(cell.attention) + 0.5 + (heads > 1 ? (cell.place / (heads - 1) - 0.5) * 0.66 : 0));
  };
  const svg = makeSvg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
  for (const value of [low, high]) {
    svg.append(makeSvg("line", { x1: SIDES.left - 4, x2: width - SIDES.right, y1: y(value), y2: y(value), class: "rule" }));
    svg.append(makeSvg("text", { x: SIDES.left - 8, y: y(value) + 3.5, "text-anchor": "end", class: "tick", text: value.toFixed(high - low < 0.15 ? 2 : high < 10 ? 1 : 0).replace("-", "−") }));
  }
  const every = Math.ceil(layers.length / 12);
  layers.forEach((attention, i) => {
    if (i % every === 0) svg.append(makeSvg("text", { x: SIDES.left + room * (i + 0.5), y: HEIGHT - 3, "text-anchor": "middle", class: "tick", text: String(attention.layer) }));
  });
  for (const cell of known) {
    const chosen = cell.attention.name === state.name && cell.head.number === state.head;
    const pale = state.role && state.role !== cell.head.role;
    const dot = makeSvg("circle", {
      cx: x(cell), cy: y(cell.head[measure]), r: chosen ? 4.5 : known.length > 60 ? 2.1 : 2.8, fill: roleColour(cell.head.role, dark), opacity: pale ? 0.15 : 0.85,
      class: chosen ? "dot-chosen" : "dot-head", on: { click: () => explorer.select(cell.attention.name, cell.head.number) },
    });
    svg.append(dot);
  }
  refill(box, make("div", { class: "soft", text: say("spread", { measure: say(measure) }) }), svg);
}
