// The current view as an SVG figure: vectors for large cells, an embedded picture for small ones.

import { formatCount } from "../data/number_format.js";
import { cutTo, labelFont, leaning, leaningRoom, rulerStep, upright } from "../draw/axis_labels.js";
import { make, makeSvg } from "../draw/elements.js";
import { cellColours } from "../draw/map_cells.js";
import { say } from "../words/languages.js";
import { captionOf, headFacts, headTitle } from "./captions.js";

const MOST_CELLS = 12_000; // of more, the map is an embedded picture
const HEAD = 46; // pixels above the map, for the titles
const FOOT = 40; // pixels below it
const LEAST_WIDTH = 560; // pixels
const SMALL_TEXT = 11; // pixels

/** @returns {SVGSVGElement} */
export function makeFigure(explorer, centre) {
  if (centre.lined) return makeLinesFigure(explorer, centre.lines);
  const { look } = explorer;
  const bodies = centre.heads.map((_, i) =>
    centre.pictured ? drawPicture(centre.pictures[i]) : drawMap(centre.views[i], look),
  );
  const total = bodies.reduce((sum, { width }) => sum + width, 0);
  const width = Math.max(LEAST_WIDTH, total);
  const height = Math.max(...bodies.map((body) => body.height)) + HEAD + FOOT;
  const svg = makePaper(look, Math.ceil(width), Math.ceil(height));
  let left = 0;
  bodies.forEach((body, i) => {
    const shifted = makeSvg("g", { transform: `translate(0 ${HEAD})` }, ...body.elements);
    const titles = makeTitles(explorer, centre.heads[i], centre.pictured);
    svg.append(makeSvg("g", { transform: `translate(${left} 0)` }, ...titles, shifted));
    left += body.width;
  });
  svg.append(makeCaveat(explorer, height - 12));
  if (!centre.pictured) svg.append(...makeLegend(centre.views[0], look, width, height - 12));
  return svg;
}

/** An SVG of one colour. */
function makePaper(look, width, height) {
  const size = { width, height, viewBox: `0 0 ${width} ${height}` };
  const font = { "font-family": look.family.replaceAll('"', "'"), "font-size": 13, fill: look.ink };
  const svg = makeSvg("svg", { xmlns: "http://www.w3.org/2000/svg", ...size, ...font });
  svg.append(makeSvg("rect", { width: "100%", height: "100%", fill: look.paper }));
  return svg;
}

function makeText(x, y, text, options = {}) {
  return makeSvg("text", { x, y, ...options, text });
}

/** A small text in a soft colour. */
function makeSmallText(look, x, y, text, options = {}) {
  return makeText(x, y, text, { "font-size": SMALL_TEXT, fill: look.soft, ...options });
}

function makeCaveat({ look, scene }, y) {
  return makeSmallText(look, 12, y, `${say("caveat")} · clearhead · ${scene.title ?? ""}`);
}

/** The head, and below it its facts and what is shown of it. */
function makeTitles(explorer, head, pictured) {
  const { asked, look, state, subject } = explorer;
  const facts = headFacts(explorer, head).map((fact) => fact.textContent);
  if (pictured) {
    const kind = explorer.pictured.kind === "audio" ? "sounded" : "pictured";
    const tokens = subject.positions.slice(0, 4).map((position) => asked.label(position, 24));
    const blanks = { token: tokens.join(", "), count: subject.positions.length };
    facts.push(say(`${kind}${state.direction === "at" ? "At" : "By"}`, blanks));
  }
  const title = makeText(12, 20, headTitle(explorer, head), { "font-weight": 600 });
  return [title, makeSmallText(look, 12, 38, facts.join(" · "))];
}

/** The lines with their tokens, placed as on the page. */
function makeLinesFigure(explorer, lines) {
  const { look } = explorer;
  const { stage, svg: curves } = lines;
  const width = Math.max(LEAST_WIDTH, stage.scrollWidth);
  const end = Math.ceil(stage.offsetHeight + HEAD + FOOT + 16);
  const svg = makePaper(look, Math.ceil(width), end);
  const titles = lines.sets.map((heads) => captionOf(explorer, heads).map((part) => part.textContent));
  const colours = titles.length > 1 ? [look.accent, look.second] : [look.ink];
  titles.forEach(([title, ...facts], i) => {
    const x = 12 + (i * width) / 2;
    svg.append(makeText(x, 20, title, { "font-weight": 600, fill: colours[i] }));
    svg.append(makeSmallText(look, x, 38, facts.join(" · ")));
  });
  const [all, ...others] = [...curves.children].map((part) => part.cloneNode(true));
  if (lines.all.classList.contains("dim")) all.setAttribute("opacity", "0.13");
  const [above] = lines.rows;
  const down = HEAD + above.offsetTop + above.offsetHeight;
  const drawn = makeSvg("g", { transform: `translate(0 ${down})` }, all, ...others);
  const tokens = lines.rows.flatMap((row) => [...row.children].map((token) => makeToken(token, look, lines)));
  const across = round((width - stage.scrollWidth) / 2);
  svg.append(makeSvg("g", { transform: `translate(${across} 0)` }, drawn, ...tokens));
  svg.append(makeSmallText(look, 12, end - 28, lines.note), makeCaveat(explorer, end - 12));
  return svg;
}

/** A token of a row, across or upright as on the page. */
function makeToken(token, look, { stage }) {
  const has = (name) => token.classList.contains(name);
  const style = {
    "font-weight": has("pinned") ? 600 : 400,
    fill: has("special") || has("faded") ? look.soft : look.ink,
    "text-anchor": "middle",
    "font-size": 15,
  };
  const x = round(token.offsetLeft + token.offsetWidth / 2);
  const top = HEAD + token.offsetTop;
  if (!stage.classList.contains("upright")) {
    return makeText(x, round(top + token.offsetHeight / 2 + 5), token.textContent, style);
  }
  const above = token.parentNode.classList.contains("above");
  Object.assign(style, { "text-anchor": above ? "end" : "start", "font-size": 14, style: "writing-mode: vertical-rl" });
  return makeText(x, round(top + (above ? token.offsetHeight - 5 : 5)), token.textContent, style);
}

function embedImage(canvas, x, y, width, height) {
  const href = canvas.toDataURL("image/png");
  return makeSvg("image", { x, y, width, height, href, preserveAspectRatio: "none" });
}

/** A picture or sound as it is shown: {elements, width, height}. */
function drawPicture(picture) {
  const { canvas, width, height } = picture.toCanvas();
  return { elements: [embedImage(canvas, 12, 0, width, height)], width: width + 24, height: height + 16 };
}

/** The map of a view, cells, numbers and labels: {elements, width, height}. */
function drawMap(view, look) {
  const { viewport, plot } = view;
  const { q0, q1, k0, k1 } = viewport.window;
  const { left, top, right, bottom } = viewport.extent;
  const [width, height] = [right - left, bottom - top];
  const clip = `clip-${Math.random().toString(36).slice(2)}`;
  const area = makeSvg("clipPath", { id: clip }, makeSvg("rect", { x: left, y: top, width, height }));
  const vector = (q1 - q0) * (k1 - k0) <= MOST_CELLS && Math.min(...viewport.cell) >= 4;
  const drawn = vector ? drawCells(view) : [embedImage(cropCanvas(view), left, top, width, height)];
  const cells = makeSvg("g", { "clip-path": `url(#${clip})` }, ...drawn);
  const labels = makeSvg("g", {}, ...labelKeys(view, look), ...labelQueries(view, look));
  const parts = [makeSvg("defs", {}, area), cells, ...makeFrames(view, look), labels];
  const elements = [makeSvg("g", { transform: `translate(${plot.left} ${plot.top})` }, ...parts)];
  return { elements, width: view.element.clientWidth, height: view.top + bottom + 12 };
}

/** The edge of the map, and what is pinned. */
function makeFrames(view, look) {
  const { viewport, plot } = view;
  const { left, top, right, bottom } = viewport.extent;
  const [high, wide] = viewport.cell;
  const frame = (x, y, across, down, stroke, thick) => {
    const [width, height] = [across, down].map((size) => round(Math.max(size, 1)));
    return makeSvg("rect", { x: round(x), y: round(y), width, height, fill: "none", stroke, "stroke-width": thick });
  };
  const isInside = (low, size, end) => low >= -1 && low + size <= end + 1;
  const frames = high < 12 ? [frame(left, top, right - left, bottom - top, look.line, 1)] : [];
  for (const y of [...plot.marks.queries].map((query) => viewport.y(query))) {
    if (isInside(y, high, viewport.height)) frames.push(frame(left, y, right - left, high, look.accent, 1.5));
  }
  for (const x of [...plot.marks.keys].map((key) => viewport.x(key))) {
    if (isInside(x, wide, viewport.width)) frames.push(frame(x, top, wide, bottom - top, look.accent, 1.5));
  }
  return frames;
}

/** The scale of colours with its ends. */
function makeLegend(view, look, right, y) {
  const { scale, curve, resolution, tiles } = view.plot;
  const stops = Array.from({ length: 9 }, (_, i) => {
    return makeSvg("stop", { offset: i / 8, "stop-color": scale.hex(i / 8) });
  });
  const [low, high] = tiles.ends(curve, resolution?.blocks ?? [1, 1]);
  const first = curve === "linear" ? low : `${say(curve)}  ${low}`;
  return [
    makeSvg("defs", {}, makeSvg("linearGradient", { id: "scale" }, ...stops)),
    makeSmallText(look, right - 150, y, first, { "text-anchor": "end" }),
    makeSvg("rect", { x: right - 144, y: y - 8, width: 104, height: 9, fill: "url(#scale)", rx: 2 }),
    makeSmallText(look, right - 34, y, high),
  ];
}

function drawCells(view) {
  const { viewport, plot, tiles } = view;
  const { scale, curve, look, number } = plot;
  const { q0, q1, k0, k1 } = viewport.window;
  const [high, wide] = viewport.cell;
  const size = { width: round(wide - 1), height: round(high - 1) };
  const elements = plot.resolution.hides ? [makeHatching(look)] : [];
  for (let q = q0; q < q1; q++) {
    for (let k = k0; k < k1; k++) {
      const cell = tiles.at(q, k);
      if (!cell) continue;
      const { share, rows, columns } = cell;
      const { fill, ink } = cellColours(scale, curve, share, tiles.full(curve, [rows, columns]));
      const [x, y] = [round(viewport.x(k)), round(viewport.y(q))];
      elements.push(makeSvg("rect", { x, y, ...size, fill: fill ?? "url(#hidden)" }));
      if (!number || !fill || !cell.exact || rows * columns > 1) continue;
      const style = { "text-anchor": "middle", "font-size": round(number.size) };
      style.fill = share < number.least ? look.soft : ink;
      const middle = [round(x + wide / 2), round(y + high / 2 + number.size * 0.35)];
      elements.push(makeText(...middle, number.text(share), style));
    }
  }
  return elements;
}

/** The pattern of cells that the mask hides. */
function makeHatching(look) {
  const ground = makeSvg("rect", { width: 6, height: 6, fill: look.hidden });
  const lines = makeSvg("path", { d: "M-1 1 1 -1M0 6 6 0M5 7 7 5", stroke: look.hatch, "stroke-width": 0.9 });
  const size = { width: 6, height: 6, patternUnits: "userSpaceOnUse" };
  return makeSvg("defs", {}, makeSvg("pattern", { id: "hidden", ...size }, ground, lines));
}

/** The part of the canvas that the map covers, without its labels. */
function cropCanvas(view) {
  const { viewport, canvas, plot } = view;
  const ratio = canvas.width / view.element.clientWidth;
  const { left, top, right, bottom } = viewport.extent;
  const [width, height] = [right - left, bottom - top].map((size) => Math.max(1, Math.round(size * ratio)));
  const copy = make("canvas", { width, height });
  copy.getContext("2d").drawImage(canvas, -(left + plot.left) * ratio, -(top + plot.top) * ratio);
  return copy;
}

function labelKeys(view, look) {
  const { viewport, plot, keys, attention } = view;
  const first = attention.first[1];
  const { k0, k1 } = viewport.window;
  const cell = viewport.cell[1];
  const base = viewport.extent.top - 7;
  if (!plot.labelled.keys) {
    const pixelOf = (key) => [round(viewport.x(key)), round(base), { "text-anchor": "middle" }];
    return makeRuler(cell, k0, k1, first, pixelOf, look);
  }
  plot.context.font = labelFont(look, cell);
  const size = parseFloat(plot.context.font);
  const flat = upright(plot.context, keys, first, viewport.window, cell);
  const angle = (leaning(cell) * 180) / Math.PI;
  const labels = [];
  for (let key = k0; key < k1; key++) {
    const x = round(viewport.x(key + 0.5));
    const text = cutTo(plot.context, keys.label(first + key, 24), flat ? cell - 4 : leaningRoom(plot, cell, x));
    const turn = flat ? { "text-anchor": "middle" } : { transform: `rotate(${angle} ${x} ${base})` };
    labels.push(makeText(x, base, text, { "font-size": size, ...turn }));
  }
  return labels;
}

function labelQueries(view, look) {
  const { viewport, plot, queries, attention } = view;
  const first = attention.first[0];
  const { q0, q1 } = viewport.window;
  const x = round(viewport.extent.left - 9);
  const cell = viewport.cell[0];
  if (!plot.labelled.queries) {
    const pixelOf = (query) => [x, round(viewport.y(query) + 4), { "text-anchor": "end" }];
    return makeRuler(cell, q0, q1, first, pixelOf, look);
  }
  plot.context.font = labelFont(look, cell);
  const size = parseFloat(plot.context.font);
  const labels = [];
  for (let query = q0; query < q1; query++) {
    const text = cutTo(plot.context, queries.label(first + query, 24), plot.left - 14);
    const y = round(viewport.y(query + 0.5) + size * 0.35);
    labels.push(makeText(x, y, text, { "text-anchor": "end", "font-size": size }));
  }
  return labels;
}

function makeRuler(cell, start, end, first, pixelOf, look) {
  const step = rulerStep(cell, 64);
  const labels = [];
  for (let position = Math.ceil((start + first) / step) * step; position < end + first; position += step) {
    const [x, y, options] = pixelOf(position - first);
    labels.push(makeSmallText(look, x, y, formatCount(position), options));
  }
  return labels;
}

function round(value) {
  return Math.round(value * 100) / 100;
}
