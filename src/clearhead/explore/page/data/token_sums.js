// The weights of the selected tokens together: the mean of what they look at, or the sum of what looks at them.

import { TOP_SHOWN } from "./file_source.js";
import { isHidden } from "./number_format.js";
import { largest } from "./pooling.js";
import { LEAST_SCALE_END } from "./tiles.js";
import { evenWeight, seeingQueries, visibleKeys } from "./visible_counts.js";

/**
 * The answer to the selection: weights by place on the answering axis, and the largest of them.
 * `weights` count from the first position of the attention; positions in `top` and `sparse` are document positions.
 * `added`: how many weights make up one of these (1: a mean). `visible`: how many tokens of the answering axis the mask
 * leaves (null if not known). `even`: what each would get if all got the same.
 */
export async function combineLines(explorer, headId, direction, positions) {
  const lines = await Promise.all(
    positions.map((position) => explorer.weights.lineOf(direction, headId.name, headId.head, position)),
  );
  const attention = explorer.attentionOf(headId.name);
  const at = direction === "at";
  const [firstAsked, first] = at ? attention.first : [...attention.first].reverse();
  const counts = (at ? visibleKeys : seeingQueries)(attention, headId.head);
  const seen = counts && positions.map((position) => counts[position - firstAsked]);
  const parts = at ? Math.max(1, seen ? seen.filter((count) => count > 0).length : lines.length) : 1; // of a mean
  const norms = new Map(lines.flatMap((line) => line.top.map(([position, , norm]) => [position, norm ?? null])));
  const received = lines.reduce((sum, line) => sum + (line.received ?? 0), 0);
  const close = lines.some((line) => line.close); // whether `received` adds rounded weights
  const sparse = new Map();
  let weights = null;
  let top;
  if (lines.every((line) => line.weights)) {
    weights = new Float32Array(lines[0].weights.length).fill(-0); // hidden keys stay -0
    for (const line of lines) for (let i = 0; i < weights.length; i++) weights[i] += line.weights[i];
    for (let i = 0; i < weights.length; i++) weights[i] /= parts;
    top = largest(weights, TOP_SHOWN).map(([index, weight]) => [
      index + first,
      weight,
      norms.get(index + first) ?? null,
    ]);
  } else {
    for (const line of lines)
      for (const [position, weight] of line.top) sparse.set(position, (sparse.get(position) ?? 0) + weight / parts);
    top = [...sparse]
      .sort((pair, other) => other[1] - pair[1])
      .slice(0, TOP_SHOWN)
      .map(([position, weight]) => [position, weight, norms.get(position) ?? null]);
  }
  const even = (query) => evenWeight(attention, headId.head, query);
  return {
    weights,
    sparse,
    top,
    received,
    close,
    most: top[0]?.[1] ?? 0,
    added: at ? 1 : lines.length,
    odd: Boolean(weights?.some((weight) => !Number.isFinite(weight))),
    visible: countTogether(lines, seen, weights),
    even: at
      ? positions.reduce((sum, position) => sum + even(position - firstAsked), 0) / positions.length
      : lines.length * even(top.length ? top[0][0] - first : null),
  };
}

/** How many tokens at least one of the selected ones sees, or is seen by; null where that is not known. */
function countTogether(lines, seen, weights) {
  if (!seen || lines.length === 1) return seen?.[0] ?? null;
  const unhidden = (line) => line.reduce((sum, weight) => sum + (isHidden(weight) ? 0 : 1), 0);
  return weights && lines.every((line, i) => unhidden(line.weights) === seen[i]) ? unhidden(weights) : null;
}

/** The weight at a position of the answering axis; null where only the largest are known. */
export function weightAt({ attention, state }, answer, position) {
  if (!answer.weights) return answer.sparse.get(position) ?? null;
  return answer.weights[position - attention.first[state.direction === "at" ? 1 : 0]] ?? null;
}

/** The weight with the full colour and the full bar: the largest, or LEAST_SCALE_END times the even weight. */
export function fullOf(...answers) {
  return (
    Math.max(...answers.filter(Boolean).flatMap(({ most, even }) => [most, Math.min(1, LEAST_SCALE_END * even)])) || 1
  );
}

/** How strongly each position of the answering axis is shaded, between 0 and 1. */
export function shadeOf(explorer, answer) {
  if (!answer?.most) return null;
  const { answered, attention, state } = explorer;
  const first = attention.first[state.direction === "at" ? 1 : 0];
  const patches = Boolean(answered.grid);
  const root = !patches && Math.max(...attention.counts) > 64;
  const strength = patches ? patchStrength(answer.most / answer.even) : answer.most / fullOf(answer);
  return (position) => {
    const weight = answer.weights ? answer.weights[position - first] : answer.sparse.get(position);
    if (!weight) return 0;
    return root ? Math.sqrt((strength * weight) / answer.most) : (strength * weight) / answer.most;
  };
}

/** The shade of the patch with the largest weight, `times` the even weight: full from eight times on. */
export function patchStrength(times) {
  return Math.max(0.12, Math.min(1, times / 8));
}
