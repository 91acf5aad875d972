// One measure of all heads as dots, layer by layer.

import { roleColour } from "../draw/colours.js";
import { byId, make, refill, sharpen } from "../draw/elements.js";
import { say } from "../words/languages.js";

const HEIGHT = 104;
const NEAR = 8; // pixels between pointer and dot
const SIDES = { left: 30, right: 8, top: 8, bottom: 16 };

export function paintSpread(explorer, cells) {
  const box = byId("spread");
  const { state, group, look } = explorer;
  const measure = ["layer", "role"].includes(state.sort) ? "entropy" : state.sort;
  const measuredCells = cells.filter(({ head }) => Number.isFinite(head[measure]));
  box.hidden = measuredCells.length < 2;
  if (box.hidden) return refill(box);
  const width = Math.max(120, box.clientWidth || 240);
  const values = measuredCells.map(({ head }) => head[measure]);
  const low = Math.min(0, ...values);
  const high = Math.max(...values, low + 1e-6);
  const layers = new Map(group.attentions.map((attention, i) => [attention, i]));
  const room = (width - SIDES.left - SIDES.right) / layers.size;
  const y = (value) => SIDES.top + (1 - (value - low) / (high - low)) * (HEIGHT - SIDES.top - SIDES.bottom);
  const dots = measuredCells.map((cell) => {
    const heads = cell.attention.heads.length;
    const aside = heads > 1 ? (cell.headIndex / (heads - 1) - 0.5) * 0.66 : 0;
    const isChosen = cell.attention.name === state.name && cell.head.number === state.head;
    return {
      cell,
      isChosen,
      x: SIDES.left + room * (layers.get(cell.attention) + 0.5 + aside),
      y: y(cell.head[measure]),
    };
  });
  const canvas = make("canvas", {
    "aria-hidden": "true",
    on: { click: (event) => choose(event, explorer, dots), mousemove: (event) => point(event, dots) },
  });
  const context = sharpen(canvas, width, HEIGHT);
  drawScale(context, explorer, { layers, room, width, y, low, high });
  for (const { cell, x: left, y: top, isChosen } of [
    ...dots.filter((dot) => !dot.isChosen),
    ...dots.filter((dot) => dot.isChosen),
  ]) {
    context.globalAlpha = state.role && state.role !== cell.head.role ? 0.15 : 0.85;
    context.fillStyle = roleColour(cell.head.role, look.dark);
    context.beginPath();
    context.arc(left, top, isChosen ? 4.5 : measuredCells.length > 60 ? 2.1 : 2.8, 0, 2 * Math.PI);
    context.fill();
    if (!isChosen) continue;
    context.strokeStyle = look.ink;
    context.lineWidth = 1.5;
    context.stroke();
  }
  refill(box, make("div", { class: "soft", text: say("spread", { measure: say(measure) }) }), canvas);
}

/** The smallest and largest value, and the numbers of layers. */
function drawScale(context, explorer, { layers, room, width, y, low, high }) {
  const { line, soft, tinyFont } = explorer.look;
  context.font = tinyFont;
  for (const value of [low, high]) {
    context.fillStyle = line;
    context.fillRect(SIDES.left - 4, Math.round(y(value)), width - SIDES.right - SIDES.left + 4, 1);
    context.fillStyle = soft;
    context.textAlign = "right";
    context.fillText(
      value.toFixed(high - low < 0.15 ? 2 : high < 10 ? 1 : 0).replace("-", "−"),
      SIDES.left - 8,
      y(value) + 3.5,
    );
  }
  context.textAlign = "center";
  const every = Math.ceil(layers.size / 12);
  for (const [attention, i] of layers) {
    if (i % every === 0) context.fillText(String(attention.layer), SIDES.left + room * (i + 0.5), HEIGHT - 3);
  }
}

/** The dot at the pointer, if one is near. */
function nearest({ offsetX, offsetY }, dots) {
  const far = (dot) => Math.hypot(dot.x - offsetX, dot.y - offsetY);
  const nearest = dots.reduce((best, dot) => (far(dot) < far(best) ? dot : best));
  return far(nearest) <= NEAR ? nearest.cell : null;
}

function choose(event, explorer, dots) {
  const cell = nearest(event, dots);
  if (cell) explorer.select(cell.attention.name, cell.head.number);
}

function point(event, dots) {
  event.target.style.cursor = nearest(event, dots) ? "pointer" : "";
}
