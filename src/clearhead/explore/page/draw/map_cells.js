// The cells of a map: rectangles with numbers where they are large, pictures of tiles where they are small.

import { cellFormat, isHidden } from "../data/number_format.js";
import { HIDDEN_BITS } from "../data/tiles.js";
import { paintKeys, paintQueries } from "./axis_labels.js";
import { intensity } from "./colours.js";
import { makeBitmap } from "./elements.js";

const RECTANGLE = 6; // pixels from which on cells are drawn one by one
const SHARP = 3; // pixels from which on cells keep hard edges

/**
 * Everything a map shows, in one go.
 * @param {any} plot context, viewport, left, top, tiles, scale, curve, queries, keys, first, look, marks
 */
export function paintPlot(plot) {
  const { context, viewport, left, top, tiles } = plot;
  context.save();
  context.translate(left, top);
  if (tiles.base) {
    context.save();
    const { left: x0, top: y0, right: x1, bottom: y1 } = viewport.extent;
    context.beginPath();
    context.rect(x0, y0, x1 - x0, y1 - y0);
    context.clip();
    paintWeights(plot);
    paintFaded(plot);
    paintMarks(plot);
    context.restore();
  }
  paintFrame(plot);
  paintKeys(plot);
  paintQueries(plot);
  context.restore();
}

function paintWeights(plot) {
  const { viewport, tiles } = plot;
  const large = Math.min(...viewport.cell) >= RECTANGLE;
  const { blocks, under, tiles: shown, finest } = tiles.view(viewport);
  if (!finest && tiles.tops && viewport.cell[1] >= SHARP) {
    plot.resolution = { blocks: [1, 1], exact: false, tops: true, hides: false, odd: tiles.base.odd };
    return paintTops(plot, viewport.window);
  }
  const all = [...under, ...shown];
  plot.resolution = {
    blocks,
    exact: all.every((tile) => tile.exact),
    finest,
    hides: all.some((tile) => tile.hides),
    odd: all.some((tile) => tile.odd),
  };
  for (const tile of under) paintTile(plot, tile);
  const single = large && finest && blocks[0] === 1 && blocks[1] === 1;
  plot.number = single ? cellFormat(...viewport.cell, largestIn(shown, viewport.window), tiles.precision) : null;
  for (const tile of shown) single ? paintCells(plot, tile) : paintTile(plot, tile);
}

/** The largest weight in a window of single cells. */
function largestIn(tiles, { q0, q1, k0, k1 }) {
  let most = 0;
  for (const tile of tiles) {
    for (let q = Math.max(q0, tile.q0); q < Math.min(q1, tile.q1); q++) {
      const line = (q - tile.q0) * tile.columns - tile.k0;
      for (let k = Math.max(k0, tile.k0); k < Math.min(k1, tile.k1); k++) {
        const share = tile.shares[line + k];
        if (share > most && share < Infinity) most = share;
      }
    }
  }
  return most;
}

/** Cells of a tile as one picture. Its edges lie on whole pixels of the screen: two tiles meet without a seam. */
function paintTile(plot, tile) {
  const { context, viewport, scale, curve, tiles } = plot;
  const picture = bitmapOf(tile, scale, curve, tiles.full(curve, tile.blocks));
  context.imageSmoothingEnabled =
    Math.min(viewport.cell[0] * tile.blocks[0], viewport.cell[1] * tile.blocks[1]) < SHARP;
  context.imageSmoothingQuality = "high";
  const { x, y } = snapping(context);
  const left = x(viewport.x(tile.k0));
  const top = y(viewport.y(tile.q0));
  const right = x(viewport.x(tile.k1));
  const bottom = y(viewport.y(tile.q1));
  // The last block may reach beyond the text.
  const wide = x(viewport.x(tile.k0 + tile.columns * tile.blocks[1])) - left;
  const high = y(viewport.y(tile.q0 + tile.rows * tile.blocks[0])) - top;
  context.save();
  context.beginPath();
  context.rect(left, top, right - left, bottom - top);
  context.clip();
  context.fillStyle = tile.hides ? hatching(plot) : plot.look.paper;
  context.fillRect(left, top, right - left, bottom - top);
  context.drawImage(picture, left, top, wide, high);
  context.restore();
}

const bitmaps = new WeakMap(); // by tile: {key, bitmap}

/** The bitmap of a tile in these colours; what the mask hides stays transparent. */
function bitmapOf(tile, scale, curve, full) {
  const key = `${scale.key}/${curve}/${full}`;
  if (bitmaps.get(tile)?.key === key) return bitmaps.get(tile).bitmap;
  const steps = Uint32Array.from(
    { length: 4097 },
    (_, i) => scale.packed[Math.round(255 * intensity(curve, i / 4096, 1))],
  );
  const factor = 4096 / full;
  const { shares, bits } = tile;
  const colour = (share) => {
    if (curve === "log") return scale.packed[Math.round(255 * intensity(curve, share, full))];
    return steps[Math.min(4096, Math.ceil(share * factor))];
  };
  const bitmap = makeBitmap(tile.columns, tile.rows, (i) => {
    if (bits[i] === HIDDEN_BITS) return 0;
    return Number.isFinite(shares[i]) ? colour(Math.max(0, shares[i])) : scale.oddPacked;
  });
  bitmaps.set(tile, { key, bitmap });
  return bitmap;
}

/** Functions that move a coordinate of a canvas to the nearest pixel of the screen. */
function snapping(context) {
  const { a: ratio, e, f } = context.getTransform();
  const snap = (shift) => (value) => (Math.round(value * ratio + shift) - shift) / ratio;
  return { x: snap(e), y: snap(f) };
}

let hatched = { key: "", pattern: null };

/** The pattern of cells that the mask hides. */
function hatching({ context, look }) {
  const ratio = context.getTransform().a;
  const key = `${look.hatch}/${look.hidden}/${ratio}`;
  if (hatched.key === key) return hatched.pattern;
  const side = 6;
  const canvas = Object.assign(document.createElement("canvas"), { width: side * ratio, height: side * ratio });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = look.hidden;
  pen.fillRect(0, 0, side, side);
  pen.strokeStyle = look.hatch;
  pen.lineWidth = 0.9;
  for (const start of [-side, 0, side]) {
    pen.beginPath();
    pen.moveTo(start - 1, side + 1);
    pen.lineTo(start + side + 1, -1);
    pen.stroke();
  }
  const pattern = context.createPattern(canvas, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  hatched = { key, pattern };
  return pattern;
}

function paintCells(plot, tile) {
  const { context, viewport, scale, curve, tiles, look } = plot;
  const window = viewport.window;
  const [high, wide] = viewport.cell;
  const gap = Math.min(high, wide) >= 12 ? 1.5 : 0.5;
  const full = tiles.full(curve, tile.blocks);
  const { number } = plot;
  const hatch = tile.hides ? hatching(plot) : null;
  context.clearRect(viewport.x(tile.k0), viewport.y(tile.q0), (tile.k1 - tile.k0) * wide, (tile.q1 - tile.q0) * high);
  context.textAlign = "center";
  context.textBaseline = "middle";
  if (number) context.font = `${number.size}px ${look.family}`;
  for (let q = Math.max(window.q0, tile.q0); q < Math.min(window.q1, tile.q1); q++) {
    const y = viewport.y(q);
    for (let k = Math.max(window.k0, tile.k0); k < Math.min(window.k1, tile.k1); k++) {
      const share = tile.shares[(q - tile.q0) * tile.columns + k - tile.k0];
      const { fill, ink } = cellColours(scale, curve, share, full);
      const x = viewport.x(k);
      context.fillStyle = fill ?? hatch;
      context.fillRect(x + gap / 2, y + gap / 2, wide - gap, high - gap);
      if (!number || !fill) continue;
      context.fillStyle = share < number.least ? look.soft : ink;
      context.fillText(number.text(share), x + wide / 2, y + high / 2 + 0.5, wide - 2);
    }
  }
}

/** The colours of a cell and of the number in it; without a fill where the mask hides the key. */
export function cellColours(scale, curve, share, full) {
  if (isHidden(share)) return { fill: null, ink: null };
  if (!Number.isFinite(share)) return { fill: scale.odd, ink: scale.oddInk };
  const shade = intensity(curve, share, full);
  return { fill: scale.hex(shade), ink: scale.ink(shade) };
}

/** Draws the top keys of each query exactly, and the mean of the others in each block. */
function paintTops(plot, window) {
  const { context, viewport, scale, curve, tiles, first } = plot;
  const full = tiles.full(curve, [1, 1]);
  const [high, wide] = viewport.cell;
  const { left, top, right, bottom } = viewport.extent;
  context.clearRect(left, top, right - left, bottom - top);
  for (const { q, k, rows, columns, mean } of tiles.remainders(window)) {
    if (mean <= 0) continue;
    context.fillStyle = scale.css(intensity(curve, mean, full));
    context.fillRect(viewport.x(k), viewport.y(q), columns * wide + 0.3, rows * high + 0.3);
  }
  const number = cellFormat(high, wide, tiles.largestTop(window), tiles.precision);
  context.textAlign = "center";
  context.textBaseline = "middle";
  if (number) context.font = `${number.size}px ${plot.look.family}`;
  for (let q = window.q0; q < window.q1; q++) {
    for (const [key, weight] of tiles.tops.of(q)) {
      const k = key - first[1];
      if (k < window.k0 || k >= window.k1) continue;
      const shade = intensity(curve, weight, full);
      context.fillStyle = scale.css(shade);
      context.fillRect(viewport.x(k), viewport.y(q), wide - 0.5, high - 0.5);
      if (!number) continue;
      context.fillStyle = scale.ink(shade);
      context.fillText(number.text(weight), viewport.x(k + 0.5), viewport.y(q + 0.5), wide - 2);
    }
  }
}

/** Fades the rows after the current decoding step. */
function paintFaded(plot) {
  const { context, viewport, marks, look } = plot;
  if (marks.steps === null) return;
  const y = viewport.y(marks.steps);
  if (y >= viewport.height) return;
  context.globalAlpha = 0.78;
  context.fillStyle = look.paper;
  context.fillRect(0, Math.max(0, y), viewport.width, viewport.height);
  context.globalAlpha = 1;
}

function paintMarks(plot) {
  const { context, viewport, marks, look } = plot;
  const { left, right, top, bottom } = viewport.extent;
  const frame = (x, y, wide, high, colour, thick) => {
    context.strokeStyle = colour;
    context.lineWidth = thick;
    context.strokeRect(x + thick / 2, y + thick / 2, wide - thick, high - thick);
  };
  const [high, wide] = viewport.cell;
  for (const q of marks.queries) frame(left, viewport.y(q), right - left, Math.max(high, 2), look.accent, 1.5);
  for (const k of marks.keys) frame(viewport.x(k), top, Math.max(wide, 2), bottom - top, look.accent, 1.5);
  const cursor = marks.cursor;
  if (!cursor) return;
  context.fillStyle = look.beam;
  if (cursor.q !== null) context.fillRect(left, viewport.y(cursor.q), right - left, Math.max(high, 1));
  if (cursor.k !== null) context.fillRect(viewport.x(cursor.k), top, Math.max(wide, 1), bottom - top);
  if (cursor.q !== null && cursor.k !== null) {
    const side = [Math.max(wide, 5), Math.max(high, 5)];
    frame(viewport.x(cursor.k + 0.5) - side[0] / 2, viewport.y(cursor.q + 0.5) - side[1] / 2, ...side, look.ink, 1.5);
  }
}

function paintFrame(plot) {
  const { context, viewport, look } = plot;
  const { left, right, top, bottom } = viewport.extent;
  if (Math.min(...viewport.cell) >= 12) return;
  context.strokeStyle = look.line;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, right - left + 1, bottom - top + 1);
}
