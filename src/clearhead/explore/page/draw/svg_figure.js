// The current view as an SVG figure: vectors for large cells, an embedded picture for small ones.

import { cutTo, labelFont, leaning, leaningRoom, rulerStep, upright } from "./axis_labels.js";
import { headFacts, headTitle } from "../words/captions.js";
import { captionOf } from "../panes/lines_view.js";
import { make, makeSvg } from "./elements.js";
import { say } from "../words/languages.js";
import { cellColours } from "./map_cells.js";
import { formatCount } from "../data/tokens.js";

const MOST_CELLS = 12_000;
const HEAD = 46;
const FOOT = 40;

/** @returns {SVGSVGElement} */
export function makeFigure(explorer, centre) {
  if (centre.lined) return makeLinesFigure(explorer, centre.lines);
  const chosen = centre.chosen;
  const drawn = centre.pictured ? centre.pictures.slice(0, chosen.length).map((one) => one.toCanvas()) : [];
  const widths = centre.pictured ? drawn.map((one) => one.width + 24) : centre.views.map((view) => view.element.clientWidth);
  const height = centre.pictured ? Math.max(...drawn.map((one) => one.height)) + 16 : Math.max(...centre.views.map(mapHeight));
  const width = Math.max(560, widths.slice(0, chosen.length).reduce((sum, wide) => sum + wide, 0));
  const { look } = explorer;
  const svg = makePaper(look, Math.ceil(width), Math.ceil(height + HEAD + FOOT));
  let left = 0;
  chosen.forEach((one, i) => {
    const group = makeSvg("g", { transform: `translate(${left} 0)` });
    group.append(...heading(explorer, one, centre.pictured));
    const body = makeSvg("g", { transform: `translate(0 ${HEAD})` });
    if (centre.pictured) body.append(embedImage(drawn[i].canvas, 12, 0, drawn[i].width, drawn[i].height));
    else body.append(...drawMap(centre.views[i], look));
    group.append(body);
    svg.append(group);
    left += widths[i];
  });
  svg.append(makeCaveat(explorer, height + HEAD + FOOT - 12));
  if (!centre.pictured) svg.append(...legend(centre.views[0], look, width, height + HEAD + FOOT - 12));
  return svg;
}

/** An SVG of one colour. */
function makePaper(look, width, height) {
  const svg = makeSvg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": look.family.replaceAll('"', "'"), "font-size": 13, fill: look.ink });
  svg.append(makeSvg("rect", { width: "100%", height: "100%", fill: look.paper }));
  return svg;
}

function makeCaveat({ look, scene }, y) {
  return makeSvg("text", { x: 12, y, "font-size": 11, fill: look.soft, text: `${say("caveat")} · clearhead · ${scene.title ?? ""}` });
}

/** The lines with their tokens, placed as on the page. */
function makeLinesFigure(explorer, lines) {
  const { look } = explorer;
  const { stage, svg: curves } = lines;
  const [width, height] = [Math.max(560, stage.scrollWidth), stage.offsetHeight];
  const end = Math.ceil(height + HEAD + FOOT + 16);
  const svg = makePaper(look, Math.ceil(width), end);
  const titles = lines.sets.map((heads) => captionOf(explorer, heads).map((part) => part.textContent));
  const compared = titles.length > 1;
  titles.forEach(([title, ...facts], i) => {
    const x = 12 + (i * width) / 2;
    svg.append(makeSvg("text", { x, y: 20, "font-weight": 600, fill: compared ? [look.accent, look.second][i] : look.ink, text: title }));
    svg.append(makeSvg("text", { x, y: 38, "font-size": 11, fill: look.soft, text: facts.join(" · ") }));
  });
  const dim = lines.all.classList.contains("dim");
  const [all, chosen, numbers] = [...curves.children].map((part) => part.cloneNode(true));
  if (dim) all.setAttribute("opacity", "0.13");
  const drawn = makeSvg("g", { transform: `translate(0 ${HEAD + lines.rows[0].offsetTop + lines.rows[0].offsetHeight})` }, all, chosen, numbers);
  const tokens = lines.rows.flatMap((row) => [...row.children].map((token) => lineToken(token, look, lines)));
  svg.append(makeSvg("g", { transform: `translate(${round((width - stage.scrollWidth) / 2)} 0)` }, drawn, ...tokens));
  svg.append(makeSvg("text", { x: 12, y: end - 28, "font-size": 11, fill: look.soft, text: lines.note }), makeCaveat(explorer, end - 12));
  return svg;
}

/** A token of a row, across or upright as on the page. */
function lineToken(token, look, { stage }) {
  const upright = stage.classList.contains("upright");
  const above = token.parentNode.classList.contains("above");
  const x = round(token.offsetLeft + token.offsetWidth / 2);
  const y = round(HEAD + token.offsetTop + (upright ? (above ? token.offsetHeight - 5 : 5) : token.offsetHeight / 2 + 5));
  const strong = token.classList.contains("pinned") ? 600 : 400;
  const fill = token.classList.contains("special") || token.classList.contains("faded") ? look.soft : look.ink;
  const anchor = !upright ? "middle" : above ? "end" : "start";
  return makeSvg("text", { x, y, "text-anchor": anchor, "font-size": upright ? 14 : 15, "font-weight": strong, fill, style: upright ? "writing-mode: vertical-rl" : null, text: token.textContent });
}

function mapHeight(view) {
  return view.top + view.viewport.extent.bottom + 12;
}

function heading(explorer, chosen, pictured) {
  const { asked, state, subject } = explorer;
  const token = subject.positions.map((position) => asked.label(position, 24)).slice(0, 4).join(", ");
  const sound = explorer.pictured?.kind === "audio";
  const whose = pictured ? [say(`${sound ? "sounded" : "pictured"}${state.direction === "at" ? "At" : "By"}`, { token, count: subject.positions.length })] : [];
  const facts = [...headFacts(explorer, chosen).map((fact) => fact.textContent), ...whose].join(" · ");
  return [
    makeSvg("text", { x: 12, y: 20, "font-weight": 600, text: headTitle(explorer, chosen) }),
    makeSvg("text", { x: 12, y: 38, "font-size": 11, fill: explorer.look.soft, text: facts }),
  ];
}

function embedImage(canvas, x, y, width, height) {
  return makeSvg("image", { x, y, width, height, href: canvas.toDataURL("image/png"), preserveAspectRatio: "none" });
}

/** The map of a view: cells, numbers and labels. */
function drawMap(view, look) {
  const { viewport, plot } = view;
  const { q0, q1, k0, k1 } = viewport.window;
  const clip = `clip-${Math.random().toString(36).slice(2)}`;
  const { left, top, right, bottom } = viewport.extent;
  const area = makeSvg("clipPath", { id: clip }, makeSvg("rect", { x: left, y: top, width: right - left, height: bottom - top }));
  const cells = makeSvg("g", { "clip-path": `url(#${clip})` });
  const vector = (q1 - q0) * (k1 - k0) <= MOST_CELLS && Math.min(...viewport.cell) >= 4;
  if (vector) cells.append(...drawCells(view));
  else cells.append(embedImage(cropCanvas(view), left, top, right - left, bottom - top));
  const labels = makeSvg("g", {}, ...keyLabels(view, look), ...queryLabels(view, look));
  return [makeSvg("g", { transform: `translate(${plot.left} ${plot.top})` }, makeSvg("defs", {}, area), cells, ...frames(view, look), labels)];
}

/** The edge of the map, and what is pinned. */
function frames(view, look) {
  const { viewport, plot } = view;
  const { left, top, right, bottom } = viewport.extent;
  const frame = (x, y, width, height, stroke, thick) => makeSvg("rect", {
    x: round(x), y: round(y), width: round(Math.max(width, 1)), height: round(Math.max(height, 1)), fill: "none", stroke, "stroke-width": thick,
  });
  const [high, wide] = viewport.cell;
  const inside = (low, size, end) => low >= -1 && low + size <= end + 1;
  return [
    ...(high < 12 ? [frame(left, top, right - left, bottom - top, look.line, 1)] : []),
    ...[...plot.marks.queries].filter((q) => inside(viewport.y(q), high, viewport.height)).map((q) => frame(left, viewport.y(q), right - left, high, look.accent, 1.5)),
    ...[...plot.marks.keys].filter((k) => inside(viewport.x(k), wide, viewport.width)).map((k) => frame(viewport.x(k), top, wide, bottom - top, look.accent, 1.5)),
  ];
}

/** The scale of colours with its ends. */
function legend(view, look, right, y) {
  const { scale, curve, resolution, tiles } = view.plot;
  const stops = Array.from({ length: 9 }, (_, i) => makeSvg("stop", { offset: i / 8, "stop-color": scale.hex(i / 8) }));
  const ends = tiles.ends(curve, resolution?.blocks ?? [1, 1]);
  const text = (x, anchor, words) => makeSvg("text", { x, y, "text-anchor": anchor, "font-size": 11, fill: look.soft, text: words });
  return [
    makeSvg("defs", {}, makeSvg("linearGradient", { id: "scale" }, ...stops)), text(right - 150, "end", curve === "linear" ? ends[0] : `${say(curve)}  ${ends[0]}`),
    makeSvg("rect", { x: right - 144, y: y - 8, width: 104, height: 9, fill: "url(#scale)", rx: 2 }), text(right - 34, "start", ends[1]),
  ];
}

function drawCells(view) {
  const { viewport, plot, tiles } = view;
  const { scale, curve, number } = plot;
  const { q0, q1, k0, k1 } = viewport.window;
  const [high, wide] = viewport.cell;
  const found = plot.resolution.hides ? [hatchPattern(plot.look)] : [];
  for (let q = q0; q < q1; q++) {
    for (let k = k0; k < k1; k++) {
      const cell = tiles.at(q, k);
      if (!cell) continue;
      const { fill, ink } = cellColours(scale, curve, cell.share, tiles.full(curve, [cell.rows, cell.columns]));
      const place = { x: round(viewport.x(k)), y: round(viewport.y(q)) };
      found.push(makeSvg("rect", { ...place, width: round(wide - 1), height: round(high - 1), fill: fill ?? "url(#hidden)" }));
      if (!number || !fill || !cell.exact || cell.rows * cell.columns > 1) continue;
      found.push(makeSvg("text", {
        x: round(place.x + wide / 2), y: round(place.y + high / 2 + number.size * 0.35), "text-anchor": "middle", "font-size": round(number.size),
        fill: cell.share < number.least ? plot.look.soft : ink, text: number.text(cell.share),
      }));
    }
  }
  return found;
}

/** The pattern of cells that the mask hides. */
function hatchPattern(look) {
  return makeSvg("defs", {}, makeSvg("pattern", { id: "hidden", width: 6, height: 6, patternUnits: "userSpaceOnUse" },
    makeSvg("rect", { width: 6, height: 6, fill: look.hidden }), makeSvg("path", { d: "M-1 1 1 -1M0 6 6 0M5 7 7 5", stroke: look.hatch, "stroke-width": 0.9 })));
}

/** The part of the canvas that the map covers, without its labels. */
function cropCanvas(view) {
  const { viewport, canvas, plot } = view;
  const ratio = canvas.width / view.element.clientWidth;
  const { left, top, right, bottom } = viewport.extent;
  const copy = make("canvas", { width: Math.max(1, Math.round((right - left) * ratio)), height: Math.max(1, Math.round((bottom - top) * ratio)) });
  copy.getContext("2d").drawImage(canvas, -(left + plot.left) * ratio, -(top + plot.top) * ratio);
  return copy;
}

function keyLabels(view, look) {
  const { viewport, plot, keys, attention } = view;
  const first = attention.first[1];
  const { k0, k1 } = viewport.window;
  const cell = viewport.cell[1];
  const base = viewport.extent.top - 7;
  if (!plot.labelled.keys) {
    return ruler(cell, k0, k1, first, (key) => ({ x: round(viewport.x(key)), y: round(base), "text-anchor": "middle" }), look);
  }
  plot.context.font = labelFont(look, cell);
  const size = parseFloat(plot.context.font);
  const flat = upright(plot.context, keys, first, viewport.window, cell);
  const labels = [];
  for (let key = k0; key < k1; key++) {
    const x = round(viewport.x(key + 0.5));
    const text = cutTo(plot.context, keys.label(first + key, 24), flat ? cell - 4 : leaningRoom(plot, cell, x));
    labels.push(makeSvg("text", { x, y: base, "font-size": size, text, ...(flat ? { "text-anchor": "middle" } : { transform: `rotate(${(leaning(cell) * 180) / Math.PI} ${x} ${base})` }) }));
  }
  return labels;
}

function queryLabels(view, look) {
  const { viewport, plot, queries, attention } = view;
  const first = attention.first[0];
  const { q0, q1 } = viewport.window;
  const x = round(viewport.extent.left - 9);
  if (!plot.labelled.queries) {
    return ruler(viewport.cell[0], q0, q1, first, (query) => ({ x, y: round(viewport.y(query) + 4), "text-anchor": "end" }), look);
  }
  plot.context.font = labelFont(look, viewport.cell[0]);
  const size = parseFloat(plot.context.font);
  const labels = [];
  for (let query = q0; query < q1; query++) {
    const text = cutTo(plot.context, queries.label(first + query, 24), plot.left - 14);
    labels.push(makeSvg("text", { x, y: round(viewport.y(query + 0.5) + size * 0.35), "text-anchor": "end", "font-size": size, text }));
  }
  return labels;
}

function ruler(cell, start, end, first, place, look) {
  const step = rulerStep(cell, 64);
  const labels = [];
  for (let position = Math.ceil((start + first) / step) * step; position < end + first; position += step) {
    labels.push(makeSvg("text", { ...place(position - first), "font-size": 11, fill: look.soft, text: formatCount(position) }));
  }
  return labels;
}

function round(value) {
  return Math.round(value * 100) / 100;
}
