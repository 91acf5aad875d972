// Sums of weights over the selected tokens: rows of what they look at, or columns of what looks at them.

import { EVEN } from "./tiles.js";
import { largest } from "./pooling.js";
import { TOP_SHOWN } from "./file_source.js";

/**
 * The answer to the selection: weights by place on the answering axis, and the largest of them.
 * @returns {Promise<{weights: Float32Array | null, sparse: Map<number, number>, top: any[], received: number, close: boolean, most: number, tokens: number}>}
 *   places in weights count from the first position of the attention; positions in top and sparse are document positions
 */
export async function sumLines(explorer, chosen, direction, positions) {
  const lines = await Promise.all(positions.map((one) => explorer.lineOf(direction, chosen.name, chosen.head, one)));
  const attention = explorer.attentionOf(chosen.name);
  const first = attention.first[direction === "at" ? 1 : 0];
  const full = lines.every((line) => line.weights);
  const norms = new Map(lines.flatMap((line) => line.top.map(([position, , norm]) => [position, norm ?? null])));
  const received = lines.reduce((sum, line) => sum + (line.received ?? 0), 0);
  const close = lines.some((line) => line.close); // whether `received` adds rounded weights
  if (full) {
    const weights = new Float32Array(lines[0].weights.length).fill(-0); // hidden keys stay -0
    for (const line of lines) for (let i = 0; i < weights.length; i++) weights[i] += line.weights[i];
    const top = largest(weights, TOP_SHOWN).map(([place, weight]) => [place + first, weight, norms.get(place + first) ?? null]);
    const odd = weights.some((weight) => !Number.isFinite(weight));
    return { weights, sparse: new Map(), top, received, close, most: top[0]?.[1] ?? 0, tokens: lines.length, odd };
  }
  const sparse = new Map();
  for (const line of lines) for (const [position, weight] of line.top) sparse.set(position, (sparse.get(position) ?? 0) + weight);
  const top = [...sparse].sort((one, other) => other[1] - one[1]).slice(0, TOP_SHOWN)
    .map(([position, weight]) => [position, weight, norms.get(position) ?? null]);
  return { weights: null, sparse, top, received, close, most: top[0]?.[1] ?? 0, tokens: lines.length };
}

/** The weight at a position of the answering axis; null where only the largest are known. */
export function weightAt({ attention, state }, answer, position) {
  if (!answer.weights) return answer.sparse.get(position) ?? null;
  return answer.weights[position - attention.first[state.direction === "at" ? 1 : 0]] ?? null;
}

/** The weight with the full colour, and the full bar: the largest, but at least four times the even weight, so that broad heads stay pale. */
export function fullOf({ attention }, answer, second = null) {
  const even = Math.min(1, EVEN / attention.counts[1]) * answer.tokens;
  return Math.max(answer.most, second?.most ?? 0, even) || 1;
}

/** How strongly each position of the answering axis is shaded, between 0 and 1. */
export function shadeOf(explorer, answer) {
  if (!answer || !answer.most) return null;
  const { answered, attention, state } = explorer;
  const first = attention.first[state.direction === "at" ? 1 : 0];
  const patches = Boolean(answered.grid);
  const root = !patches && Math.max(...attention.counts) > 64;
  const strength = patches ? patchStrength(answer.most / answer.tokens, answered.length) : answer.most / fullOf(explorer, answer);
  return (position) => {
    const weight = answer.weights ? answer.weights[position - first] : answer.sparse.get(position);
    if (!weight) return 0;
    return root ? Math.sqrt((strength * weight) / answer.most) : (strength * weight) / answer.most;
  };
}

/** The shade of the patch or frame with the largest weight: full from eight times the even weight on. */
export function patchStrength(most, patches) {
  return Math.max(0.12, Math.min(1, (most * patches) / 8));
}
