// Lines between two rows of tokens: which weights have one, how thick it is, and its curve.

import { LEAST_SCALE_END } from "../data/tiles.js";
import { makeSvg } from "./elements.js";

export const MOST_TOKENS = 64; // a side
export const LEAST_WEIGHT = 0.02; // smaller ones have no line
const THICKEST = 11; // pixels
const NUMBER_ROOM = 15; // pixels at both ends of the lines

/** The mean of the weights of several heads; what the mask hides in all of them stays hidden. */
export function meanWeights(matrices) {
  const [{ rows, columns }] = matrices;
  const values = Float64Array.from(matrices[0].values);
  for (const { values: more } of matrices.slice(1)) for (let i = 0; i < values.length; i++) values[i] += more[i];
  for (let i = 0; i < values.length; i++) values[i] /= matrices.length;
  return { rows, columns, values, even: matrices.reduce((sum, { even }) => sum + even(), 0) / matrices.length };
}

/** The weights that have a line, the small ones first. */
export function listLines({ rows, columns, values }) {
  const lines = [];
  for (let q = 0; q < rows; q++) {
    for (let k = 0; k < columns; k++) {
      const weight = values[q * columns + k];
      if (weight >= LEAST_WEIGHT && weight < Infinity) lines.push({ q, k, weight });
    }
  }
  return lines.sort((line, other) => line.weight - other.weight);
}

/** The weight of the thickest line, as on the map: 1, or the largest, but at least four times the even weight. */
export function fullWeight(matrices) {
  let largest = 0;
  for (const { values } of matrices)
    for (const weight of values) if (weight > largest && weight < Infinity) largest = weight;
  return largest >= 0.5 ? 1 : Math.max(largest, ...matrices.map(({ even }) => Math.min(1, LEAST_SCALE_END * even)));
}

/** The thickness of the thickest line between tokens that are `pitch` pixels apart. */
export function thickestLine(pitch) {
  return Math.max(3, Math.min(THICKEST, pitch * 0.6));
}

/** The pixels between tokens and lines, where the numbers of these sets of heads stand. */
export function roomForNumbers(sets) {
  return NUMBER_ROOM + (sets - 1) * 12;
}

/**
 * The curve of a weight from its key above to its query below.
 * `above` and `below` are where tokens stand, `room` is for numbers, and `full` is the weight of the thickest line.
 */
export function makeCurve({ q, k, weight }, { above, below, height, room, thick, full }, colour) {
  const [from, to] = [above[k], below[q]].map((x) => Math.round(x * 10) / 10);
  const at = (part) => Math.round(room + (height - 2 * room) * part);
  const share = Math.min(1, weight / full);
  return makeSvg("path", {
    d: `M${from} ${at(0)}C${from} ${at(0.6)} ${to} ${at(0.4)} ${to} ${at(1)}`,
    fill: "none",
    stroke: colour,
    "stroke-width": Math.max(0.6, thick * share).toFixed(2),
    "stroke-opacity": (0.3 + 0.5 * share).toFixed(3),
    "data-q": q,
    "data-k": k,
    "data-weight": Number(weight.toPrecision(6)),
  });
}
