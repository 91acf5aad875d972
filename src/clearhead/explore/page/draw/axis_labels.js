// Labels along both sides of a map: every token if there is room, else positions.

import { formatCount } from "../data/number_format.js";

export const LABEL_CELL = 6.8; // pixels from which on every token gets its label
const WIDEST = 132;
const SAMPLE = 400;
const HAN = /[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\u{20000}-\u{3ffff}]/u;

const LETTERS = /[\p{L}\p{N}]/u;

const widths = new Map();

/** The width of a text in the context's font. */
export function widthOf(context, text) {
  const key = `${context.font}|${text}`;
  if (!widths.has(key)) {
    if (widths.size > 20_000) widths.clear();
    widths.set(key, context.measureText(text).width);
  }
  return widths.get(key);
}

/** A text cut to a width, with an ellipsis. */
export function cutTo(context, text, width) {
  if (widthOf(context, text) <= width) return text;
  const letters = Array.from(text);
  let keep = Math.max(1, Math.floor((letters.length * width) / widthOf(context, text)));
  while (keep > 1 && widthOf(context, `${letters.slice(0, keep).join("")}…`) > width) keep--;
  return `${letters.slice(0, keep).join("")}…`;
}

/** The room for labels: the widest of the first few hundred, within limits. */
export function labelRoom(context, axis, first, count) {
  if (axis.kind === "image" || axis.kind === "audio") return 44;
  const step = Math.max(1, Math.floor(count / SAMPLE));
  let most = 24;
  for (let index = 0; index < count; index += step)
    most = Math.max(most, widthOf(context, axis.label(first + index, 24)));
  return Math.min(most, WIDEST);
}

/** Whether the labels of the keys fit horizontally above their cells. */
export function upright(context, axis, first, window, cell) {
  if (cell < 22) return false;
  for (let key = window.k0; key < window.k1; key++) {
    if (widthOf(context, axis.label(first + key, 24)) > cell - 6) return false;
  }
  return true;
}

/** Steps of a ruler: 1, 2 or 5 times a power of ten, at least `apart` pixels apart. */
export function rulerStep(cell, apart) {
  const least = apart / cell;
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= least) ?? 10 * power;
}

/** Labels are as large as their cells allow. */
export function labelSize(cell) {
  return Math.max(7, Math.min(13, cell < 11 ? cell : cell * 0.84));
}

export function labelFont(look, cell, strong) {
  return `${strong ? "600 " : ""}${labelSize(cell)}px ${look.family}`;
}

/** The angle of key labels that do not fit horizontally: steeper for narrower cells. */
export function leaning(cell) {
  return -Math.PI / (cell < 11.5 ? 2 : cell < 19 ? 3 : 4);
}

/** The length that a rotated label may have at this place. */
export function leaningRoom({ top, right, viewport }, cell, x) {
  const angle = -leaning(cell);
  return cell < 11.5
    ? top - 14
    : Math.min((top - 18) / Math.sin(angle), (viewport.width + right - x) / Math.cos(angle) - 8);
}

/** Labels of the keys above the map. */
export function paintKeys(plot) {
  const { context, viewport, keys, first, look, marks } = plot;
  const [, cell] = viewport.cell;
  const window = viewport.window;
  const drawn = plot.labelled.keys;
  context.font = labelFont(look, cell);
  const flat = drawn && upright(context, keys, first[1], window, cell);
  const base = viewport.extent.top - 7;
  const write = (key, colour, strong) => {
    const x = viewport.x(key + 0.5);
    if (x < -1 || x > viewport.width + 1) return;
    if (
      paintPatch(
        plot,
        keys,
        first[1] + key,
        x - Math.min(cell, 34) / 2,
        base - Math.min(cell, 34),
        Math.min(cell - 1, 34),
      )
    )
      return;
    context.fillStyle = colour;
    context.font = labelFont(look, cell, strong);
    const label = cutTo(context, keys.label(first[1] + key, 24), flat ? cell - 4 : leaningRoom(plot, cell, x));
    context.save();
    context.translate(x, base);
    if (!flat) context.rotate(leaning(cell));
    context.textAlign = flat ? "center" : "left";
    context.textBaseline = flat ? "bottom" : "middle";
    context.fillText(label, 0, 0);
    context.restore();
  };
  if (drawn) {
    for (let key = window.k0; key < window.k1; key++) {
      const strong = marks.keys.has(key) || marks.cursor?.k === key;
      write(key, strong && !beside(marks, marks.keys, key) ? look.accent : look.ink, strong);
    }
    paintWords(
      keys,
      first[1],
      window.k0,
      window.k1,
      (key) => viewport.x(key),
      (from, to) => line(context, from, base + 4, to, base + 4, look.word),
    );
    return;
  }
  const flags = named(marks.keys, marks.cursor?.k);
  paintRuler(plot, cell, window.k0, window.k1, first[1], (key, text) => {
    const x = viewport.x(key);
    if (
      flags.some((flag) => Math.abs(viewport.x(flag) - x) < 24 + widthOf(context, keys.label(first[1] + flag, 24)) / 2)
    )
      return;
    line(context, x, base + 1, x, base + 5, look.soft);
    context.fillStyle = look.soft;
    context.textAlign = "center";
    context.textBaseline = "bottom";
    context.fillText(text, x, base);
  });
  for (const key of flags) paintFlag(plot, keys, first[1] + key, viewport.x(key + 0.5), base, true);
}

/** Labels of the queries left of the map. */
export function paintQueries(plot) {
  const { context, viewport, queries, first, look, marks } = plot;
  const [cell] = viewport.cell;
  const window = viewport.window;
  const edge = viewport.extent.left - 9;
  context.textAlign = "right";
  context.textBaseline = "middle";
  if (plot.labelled.queries) {
    for (let query = window.q0; query < window.q1; query++) {
      const y = viewport.y(query + 0.5);
      if (y < -1 || y > viewport.height + 1) continue;
      const side = Math.min(cell - 1, 34);
      if (paintPatch(plot, queries, first[0] + query, edge - side, y - side / 2, side)) continue;
      const strong = marks.queries.has(query) || marks.cursor?.q === query;
      context.fillStyle =
        strong && !beside(marks, marks.queries, query) ? look.accent : marks.faded(query) ? look.soft : look.ink;
      context.font = labelFont(look, cell, strong);
      context.fillText(cutTo(context, queries.label(first[0] + query, 24), plot.left - 14), edge, y);
    }
    paintWords(
      queries,
      first[0],
      window.q0,
      window.q1,
      (query) => viewport.y(query),
      (from, to) => line(context, edge + 5, from, edge + 5, to, look.word),
    );
    return;
  }
  const flags = named(marks.queries, marks.cursor?.q);
  paintRuler(plot, cell, window.q0, window.q1, first[0], (query, text) => {
    const y = viewport.y(query);
    if (flags.some((flag) => Math.abs(viewport.y(flag) - y) < 15)) return;
    line(context, edge + 3, y, edge + 7, y, look.soft);
    context.fillStyle = look.soft;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(text, edge, y);
  });
  for (const query of flags) paintFlag(plot, queries, first[0] + query, edge, viewport.y(query + 0.5), false);
}

/** Whether a token is pointed at while the sentence and the table are about others, which are pinned. */
function beside({ cursor }, pinned, index) {
  const cell = Number.isInteger(cursor?.q) && Number.isInteger(cursor?.k);
  return pinned.size > 0 && !pinned.has(index) && !cell;
}

function named(set, cursor) {
  const all = [...set].slice(-12);
  return cursor === undefined || cursor === null ? all : [...all, cursor];
}

function paintRuler(plot, cell, start, end, first, draw) {
  const { context, look } = plot;
  context.font = look.smallFont;
  const step = rulerStep(cell, 64);
  for (let position = Math.ceil((start + first) / step) * step; position < end + first; position += step) {
    draw(position - first, formatCount(position));
  }
}

/** A label on its own, over the ruler. */
function paintFlag(plot, axis, position, x, y, above) {
  const { context, look, viewport } = plot;
  if (above ? x < 0 || x > viewport.width : y < 0 || y > viewport.height) return;
  context.font = look.strongFont;
  const text = cutTo(context, axis.label(position, 24), WIDEST);
  const wide = widthOf(context, text);
  const left = above
    ? Math.max(-plot.left + 2, Math.min(x - wide / 2, viewport.width - wide))
    : Math.max(-plot.left + 2, x - wide);
  const middle = above ? y - 7 : y;
  context.fillStyle = look.paper;
  context.fillRect(left - 4, middle - 9, wide + 8, 18);
  context.fillStyle = look.accent;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, left, middle);
}

/** Lines under the tokens of one word; Chinese, Japanese and Korean, which are written without spaces, need none. */
function paintWords(axis, first, start, end, pixelOf, draw) {
  for (let token = Math.max(start, 0); token < end; ) {
    let stop = token + 1;
    while (stop < end && continuesWord(axis, first + stop)) stop++;
    if (stop > token + 1) draw(pixelOf(token) + 3, pixelOf(stop) - 3);
    token = stop;
  }
}

function continuesWord(axis, position) {
  const label = axis.label(position, 24);
  return axis.glued(position) && LETTERS.test(label) && !HAN.test(label);
}

function line(context, x0, y0, x1, y1, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** Draws the patch as its own label; false if the token is no patch or its picture is not loaded. */
function paintPatch(plot, axis, position, x, y, side) {
  const picture = plot.pictures?.get(axis.name);
  const patch = position - axis.firstPatch;
  if (!picture || !axis.grid || patch < 0 || side < 8) return false;
  const [rows, columns] = axis.grid;
  const [wide, high] = [picture.naturalWidth / columns, picture.naturalHeight / rows];
  plot.context.drawImage(
    picture,
    (patch % columns) * wide,
    Math.floor(patch / columns) * high,
    wide,
    high,
    x,
    y,
    side,
    side,
  );
  return true;
}
