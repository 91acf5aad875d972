// How many keys each query sees, and how many queries see each key: what a mask leaves.

const expanded = new WeakMap(); // by attention: {visible, seen_by}, a list of counts for each head, or one for all

function expand(runs) {
  const counts = new Int32Array(runs.reduce((sum, [, , length]) => sum + length, 0));
  let index = 0;
  for (const [first, step, length] of runs) for (let i = 0; i < length; i++) counts[index++] = first + step * i;
  return counts;
}

function countsOf(attention, head, kind) {
  if (!attention[kind]) return null;
  if (!expanded.has(attention)) expanded.set(attention, {});
  const counts = expanded.get(attention);
  counts[kind] ??= attention[kind].map(expand);
  const lists = counts[kind];
  return lists[lists.length > 1 ? attention.heads.findIndex(({ number }) => number === head) : 0];
}

/** For each query of a head, by place, how many keys it sees; null where the record does not say. */
export function visibleKeys(attention, head) {
  return countsOf(attention, head, "visible");
}

/** For each key of a head, by place, how many queries see it; null where the record does not say. */
export function seeingQueries(attention, head) {
  return countsOf(attention, head, "seen_by");
}

/** The weight of each visible key if all get the same: of one query, or the mean over all that see anything. */
export function evenWeight(attention, head, query = null) {
  const counts = visibleKeys(attention, head);
  if (!counts) return 1 / attention.counts[1];
  if (query !== null) return 1 / Math.max(1, counts[query]);
  const seen = counts.filter((count) => count > 0);
  return seen.length ? seen.reduce((sum, count) => sum + 1 / count, 0) / seen.length : 1;
}

/** How many of some queries see anything; all of them where the record does not say. */
export function countSeeing(attention, head, start, end) {
  const counts = visibleKeys(attention, head);
  if (!counts) return end - start;
  return counts.subarray(start, end).filter((count) => count > 0).length;
}
