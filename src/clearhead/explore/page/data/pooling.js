// Sums of weights over blocks of tokens.

/** The number of blocks of size `block` that cover `tokens` tokens. */
function blocksIn(tokens, block) {
  return Math.ceil(tokens / block);
}

/**
 * The sums of a window of weights in blocks; -0 where the mask hides everything, for -0 + -0 is -0 and -0 + 0 is 0.
 * @param {{at: (row: number) => [start: number, length: number], numbers: ArrayLike<number>, unit: number}} weights
 *   where a row begins and how many keys it has, and what one raw number is worth
 */
export function poolWeights(weights, q0, q1, k0, k1, rowBlock, columnBlock) {
  const rows = blocksIn(q1 - q0, rowBlock);
  const columns = blocksIn(k1 - k0, columnBlock);
  const values = new Float32Array(rows * columns).fill(-0);
  const { numbers, unit } = weights;
  for (let q = q0; q < q1; q++) {
    const [start, length] = weights.at(q);
    const line = Math.floor((q - q0) / rowBlock) * columns;
    const end = Math.min(k1, length);
    if (columnBlock === 1) {
      for (let k = k0; k < end; k++) values[line + k - k0] += numbers[start + k];
    } else {
      for (let k = k0, column = line; k < end; column++) {
        const stop = Math.min(end, k + columnBlock);
        let sum = -0;
        for (; k < stop; k++) sum += numbers[start + k];
        values[column] += sum;
      }
    }
  }
  for (let i = 0; i < values.length; i++) values[i] *= unit;
  return { rows, columns, values };
}

/** The largest entries of a list, as [place, value], largest first; zeros are left out. */
export function largest(values, count) {
  const best = [];
  for (let index = 0; index < values.length; index++) {
    const value = values[index];
    if (!(value > 0) || value === Infinity || (best.length === count && value <= best[count - 1][1])) continue;
    let spot = best.length;
    while (spot > 0 && best[spot - 1][1] < value) spot--;
    best.splice(spot, 0, [index, value]);
    if (best.length > count) best.pop();
  }
  return best;
}
