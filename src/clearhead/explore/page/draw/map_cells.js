// The cells of a map: rectangles with numbers where they are large, pictures of tiles where they are small.

import { intensity } from "./colours.js";
import { paintKeys, paintQueries } from "./axis_labels.js";

const RECTANGLE = 6; // pixels from which on cells are drawn one by one
const NEAR = 8000; // tokens on the screen up to which weights are worth their computation
const AFAR = 5; // the level of tiles that are too large for it
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

/** The level of tiles that the screen needs: a power of two for each side. */
export function levelsOf(viewport) {
  const { q0, q1, k0, k1 } = viewport.window;
  const spans = [q1 - q0, k1 - k0];
  const far = spans[0] * spans[1] > NEAR * NEAR;
  return viewport.cell.map((size, side) => Math.max(far && spans[side] > NEAR / 2 ? AFAR : 0, Math.floor(Math.log2(1 / size) + 0.3)));
}

function paintWeights(plot) {
  const { viewport, tiles } = plot;
  const levels = levelsOf(viewport);
  const window = viewport.window;
  const large = Math.min(...viewport.cell) >= RECTANGLE;
  if (tiles.whole) {
    if (large) paintCells(plot, tiles.base);
    else paintTile(plot, tiles.pooled(levels));
    plot.resolution = { blocks: levels.map((level) => 2 ** level), exact: true };
    return;
  }
  paintTile(plot, tiles.base);
  plot.resolution = { blocks: tiles.attention.blocks, exact: tiles.base.exact };
  const finer = levels.some((level, side) => 2 ** level < tiles.attention.blocks[side]);
  if (tiles.finer && finer) {
    for (const tile of tiles.coarser(window, levels)) paintTile(plot, tile);
    const found = tiles.covering(window, levels);
    for (const tile of found) large ? paintCells(plot, tile) : paintTile(plot, tile);
    if (found.length) plot.resolution = { blocks: found[0].blocks, exact: found.every((tile) => tile.exact) };
  } else if (tiles.tops && viewport.cell[1] >= SHARP) {
    paintTops(plot, window);
    plot.resolution = { blocks: [1, 1], exact: false, tops: true };
  }
}

function paintTile(plot, tile) {
  const { context, viewport, scale, curve, tiles } = plot;
  const picture = tile.paint(scale, curve, tiles.full(curve, tile.blocks));
  context.imageSmoothingEnabled = Math.min(viewport.cell[0] * tile.blocks[0], viewport.cell[1] * tile.blocks[1]) < SHARP || !tile.exact;
  context.imageSmoothingQuality = "high";
  const wide = tile.columns * tile.blocks[1] * viewport.cell[1];
  const high = tile.rows * tile.blocks[0] * viewport.cell[0];
  const [x, y] = [viewport.x(tile.k0), viewport.y(tile.q0)];
  context.clearRect(x, y, (tile.k1 - tile.k0) * viewport.cell[1], (tile.q1 - tile.q0) * viewport.cell[0]);
  context.drawImage(picture, x, y, wide, high);
}

function paintCells(plot, tile) {
  const { context, viewport, scale, curve, tiles, look } = plot;
  const window = viewport.window;
  const [high, wide] = viewport.cell;
  const gap = Math.min(high, wide) >= 12 ? 1.5 : 0.5;
  const full = tiles.full(curve, tile.blocks);
  const number = numberIn(high, wide);
  context.clearRect(viewport.x(tile.k0), viewport.y(tile.q0), (tile.k1 - tile.k0) * wide, (tile.q1 - tile.q0) * high);
  context.textAlign = "center";
  context.textBaseline = "middle";
  if (number) context.font = `${number.size}px ${look.family}`;
  for (let q = Math.max(window.q0, tile.q0); q < Math.min(window.q1, tile.q1); q++) {
    const y = viewport.y(q);
    for (let k = Math.max(window.k0, tile.k0); k < Math.min(window.k1, tile.k1); k++) {
      const share = tile.shares[(q - tile.q0) * tile.columns + k - tile.k0];
      const shade = intensity(curve, share, full);
      const x = viewport.x(k);
      context.fillStyle = share > 0 ? scale.texts[Math.max(1, Math.round(shade * 255))] : look.hidden;
      context.fillRect(x + gap / 2, y + gap / 2, wide - gap, high - gap);
      if (!number || share < number.least) continue;
      context.fillStyle = shade > 0.02 ? scale.ink(shade) : look.soft;
      context.globalAlpha = share < 0.005 ? 0.36 : share < 0.05 ? 0.66 : 1;
      context.fillText(number.text(share), x + wide / 2, y + high / 2 + 0.5, wide - 2);
      context.globalAlpha = 1;
    }
  }
}

/** The format of a weight in a cell of this size; null if it does not fit. */
export function numberIn(high, wide) {
  if (wide >= 31 && high >= 14) return { size: Math.min(13, wide * 0.3, high * 0.7), text: (share) => share.toFixed(2), least: 0.000001 };
  if (wide >= 19 && high >= 11) {
    return { size: Math.min(11, wide * 0.44, high * 0.7), text: (share) => (share >= 0.995 ? "1" : share.toFixed(2).slice(1)), least: 0.005 };
  }
  if (wide >= 8 && high >= 6.8) return { size: Math.min(wide * 0.66, high * 0.84), text: (share) => String(Math.round(share * 100)), least: 0.015 };
  return null;
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
  const number = numberIn(high, wide);
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
      if (!number || weight < number.least) continue;
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
