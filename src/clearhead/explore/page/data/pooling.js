// Sums of weights over blocks of tokens.

/** How many blocks of this size cover so many tokens. */
export function blocksIn(tokens, block) {
  return Math.ceil(tokens / block);
}

/**
 * The sums of a window of weights in blocks.
 * @param {{at: (row: number) => [start: number, length: number], numbers: ArrayLike<number>, unit: number}} weights
 *   where a row begins and how many keys it has, and what one raw number is worth
 */
export function poolWeights(weights, q0, q1, k0, k1, rowBlock, columnBlock) {
  const rows = blocksIn(q1 - q0, rowBlock);
  const columns = blocksIn(k1 - k0, columnBlock);
  const values = new Float32Array(rows * columns);
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
        let sum = 0;
        for (; k < stop; k++) sum += numbers[start + k];
        values[column] += sum;
      }
    }
  }
  for (let i = 0; i < values.length; i++) values[i] *= unit;
  return { rows, columns, values };
}

/** A window of a pooled map in other blocks; each sum is spread evenly over its block. */
export function resampleMap(map, blocks, counts, q0, q1, k0, k1, rowBlock, columnBlock) {
  const rows = blocksIn(q1 - q0, rowBlock);
  const columns = blocksIn(k1 - k0, columnBlock);
  const values = new Float32Array(rows * columns);
  const down = overlaps(blocks[0], counts[0], q0, q1, rowBlock);
  const across = overlaps(blocks[1], counts[1], k0, k1, columnBlock);
  for (const [row, from, share] of down) {
    for (const [column, source, part] of across) {
      values[row * columns + column] += map.values[from * map.columns + source] * share * part;
    }
  }
  return { rows, columns, values };
}

/** Triples (block of the window, block of the map, share of the map's block that lies in it). */
function overlaps(block, count, start, end, wanted) {
  const found = [];
  for (let from = Math.floor(start / block); from * block < end; from++) {
    const low = from * block;
    const high = Math.min(low + block, count);
    let position = Math.max(low, start);
    while (position < Math.min(high, end)) {
      const target = Math.floor((position - start) / wanted);
      const stop = Math.min(high, end, start + (target + 1) * wanted);
      found.push([target, from, (stop - position) / (high - low)]);
      position = stop;
    }
  }
  return found;
}

/** The largest entries of a list, as [place, value], largest first; zeros are left out. */
export function largest(values, count) {
  const best = [];
  for (let place = 0; place < values.length; place++) {
    const value = values[place];
    if (!(value > 0) || (best.length === count && value <= best[count - 1][1])) continue;
    let spot = best.length;
    while (spot > 0 && best[spot - 1][1] < value) spot--;
    best.splice(spot, 0, [place, value]);
    if (best.length > count) best.pop();
  }
  return best;
}
