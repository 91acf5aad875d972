// FileSource: reads the numbers that are inside the HTML file.

import { largest, poolWeights } from "./pooling.js";
import { Blocks, complete, floatsOf, meaning } from "./tensor_decoding.js";

export const TOP_SHOWN = 10;
const FLOATS_KEPT = 4;
const SUM_ERROR = 0.005; // by which sums of rounded weights may be wrong and still count as known

export class FileSource {
  constructor(scene, blocks = new Blocks()) {
    this.live = false;
    this.blocks = blocks;
    this.keep(scene);
  }

  /** Later requests are about this scene. */
  keep(scene) {
    this.data = scene.data ?? {};
    this.without = scene.without ?? {};
    this.floats = new Map(); // weights with what is hidden or no number, by attention and head
    this.attentions = new Map(scene.attentions.map((attention) => [attention.name, attention]));
    return scene;
  }

  /** Another view that the file contains. */
  async scene(view) {
    return this.keep(JSON.parse((await complete(view ? `scene-${view}` : "scene")).textContent));
  }

  /** Whether the file contains every weight of this head. */
  exact(name, head) {
    return this.headIndexOf(name, head, "weights") >= 0;
  }

  async map(name, head) {
    const { counts, blocks } = this.attentions.get(name);
    const headIndex = this.headIndexOf(name, head, "map");
    if (headIndex < 0) {
      const weights = await this.weights(name, head);
      if (!weights) throw new Error(`the file holds nothing of ${name}, head ${head}`);
      return poolWeights(weights, 0, counts[0], 0, counts[1], blocks[0], blocks[1]);
    }
    const entry = this.data[name].map;
    const [rows, columns] = entry.shape.slice(1);
    return { rows, columns, values: this.part(await this.blocks.numbers(entry), entry, headIndex, rows * columns) };
  }

  /** By how much the rounded numbers of this head may be wrong: its weights, its map, or with `tops` its top keys. */
  precision(name, head, tops = false) {
    const kind = this.exact(name, head) ? "weights" : tops ? "top_weights" : "map";
    return 0.5 / (this.data[name]?.[kind]?.levels ?? Infinity);
  }

  /** A window in blocks of height × width; the whole map if the file lacks exact weights of this head. */
  async window(name, head, q0, q1, k0, k1, height, width) {
    const { first, blocks, estimated } = this.attentions.get(name);
    const area = [q0 - first[0], q1 - first[0], k0 - first[1], k1 - first[1]];
    const weights = await this.weights(name, head);
    if (!weights) return { ...(await this.map(name, head)), exact: !estimated, blocks };
    return { ...poolWeights(weights, ...area, height, width), exact: true, blocks: [height, width] };
  }

  async row(name, head, query) {
    const { counts, first } = this.attentions.get(name);
    const norms = await this.perKey(name, head, "norms");
    const normOf = (key) => (norms ? norms[key - first[1]] : null);
    const weights = await this.weights(name, head);
    if (!weights) {
      const tops = await this.tops(name, head);
      const topKeys = tops ? tops.of(query - first[0]) : [];
      return { weights: null, top: topKeys.map(([key, weight]) => [key, weight, normOf(key)]) };
    }
    const line = poolWeights(weights, query - first[0], query - first[0] + 1, 0, counts[1], 1, 1).values;
    const top = largest(line, TOP_SHOWN).map(([index, weight]) => [index + first[1], weight, normOf(index + first[1])]);
    return { weights: line, top };
  }

  async column(name, head, key) {
    const { counts, first } = this.attentions.get(name);
    const weights = await this.weights(name, head);
    if (weights) {
      const index = key - first[1];
      const line = poolWeights(weights, 0, counts[0], index, index + 1, 1, 1).values;
      const sums = await this.perKey(name, head, "sums");
      const received = sums ? sums[index] : line.reduce((sum, weight) => sum + weight, 0);
      const close = !sums && this.precision(name, head) * counts[0] > SUM_ERROR;
      return {
        close,
        weights: line,
        top: largest(line, TOP_SHOWN).map(([at, weight]) => [at + first[0], weight]),
        received,
      };
    }
    const tops = await this.tops(name, head);
    const received = await this.perKey(name, head, "received");
    return {
      weights: null,
      top: tops
        ? tops
            .on(key)
            .slice(0, TOP_SHOWN)
            .map(([at, weight]) => [at + first[0], weight])
        : [],
      received: received ? received[key - first[1]] : null,
    };
  }

  async thumbs(name) {
    const entry = this.data[name]?.thumbs;
    if (!entry) return null;
    return { size: entry.shape[1], values: await this.blocks.numbers(entry) };
  }

  /** The top keys of each query, if the file contains only those. */
  async tops(name, head) {
    const headIndex = this.headIndexOf(name, head, "top_keys");
    if (headIndex < 0) return null;
    const { top_keys: keyEntry, top_weights: weightEntry } = this.data[name];
    const [, queries, count] = keyEntry.shape;
    const keys = (await this.blocks.numbers(keyEntry)).subarray(
      headIndex * queries * count,
      (headIndex + 1) * queries * count,
    );
    const weights = this.part(await this.blocks.numbers(weightEntry), weightEntry, headIndex, queries * count);
    return new TopKeys(keys, weights, count);
  }

  /** The model's answer without one head, stored in the file. */
  async ablate([{ name, heads }]) {
    return this.without[name][heads[0]];
  }

  async look() {
    throw new Error("a file cannot run the model");
  }

  headIndexOf(name, head, kind) {
    const entry = this.data[name]?.[kind];
    if (!entry) return -1;
    return entry.heads
      ? entry.heads.indexOf(head)
      : this.attentions.get(name).heads.findIndex((candidate) => candidate.number === head);
  }

  part(numbers, entry, headIndex, length) {
    const mean = meaning(entry, headIndex);
    const values = new Float32Array(length);
    for (let i = 0; i < length; i++) values[i] = mean(numbers[headIndex * length + i]);
    return values;
  }

  async perKey(name, head, kind) {
    const headIndex = this.headIndexOf(name, head, kind);
    if (headIndex < 0) return null;
    const entry = this.data[name][kind];
    return (await this.blocks.numbers(entry)).subarray(headIndex * entry.shape[1], (headIndex + 1) * entry.shape[1]);
  }

  /** The exact weights of a head for poolWeights; null if the file has none. */
  async weights(name, head) {
    const headIndex = this.headIndexOf(name, head, "weights");
    if (headIndex < 0) return null;
    const entry = this.data[name].weights;
    const [, queries, keys] = entry.shape;
    const numbers = await this.blocks.numbers(entry);
    const unit = 1 / (entry.levels ?? 1);
    const mask = this.data[name].hidden;
    if (!mask && !entry.odd) return { numbers, unit, at: (q) => [(headIndex * queries + q) * keys, keys] };
    const key = `${name}/${head}`;
    if (!this.floats.has(key)) {
      if (this.floats.size >= FLOATS_KEPT) this.floats.clear();
      const size = queries * keys;
      const hidden = mask ? await this.blocks.numbers(mask) : null;
      const start = hidden && mask.shape[0] > 1 ? headIndex * size : 0;
      this.floats.set(
        key,
        floatsOf(
          numbers.subarray(headIndex * size, (headIndex + 1) * size),
          entry,
          hidden?.subarray(start, start + size),
        ),
      );
    }
    return { numbers: this.floats.get(key), unit, at: (q) => [q * keys, keys] };
  }
}

/** The largest weights of every query: keys are document positions plus one, 0 for none. */
class TopKeys {
  constructor(keys, weights, count) {
    this.keys = keys;
    this.weights = weights;
    this.count = count;
  }

  /** The top keys of the query with this index: [key position, weight], largest first. */
  of(index) {
    const topKeys = [];
    for (let i = index * this.count; i < (index + 1) * this.count; i++) {
      if (this.keys[i] > 0) topKeys.push([this.keys[i] - 1, this.weights[i]]);
    }
    return topKeys.sort((pair, other) => other[1] - pair[1]);
  }

  /** The queries that have this key among their top keys: [query place, weight], largest first. */
  on(key) {
    const queries = [];
    for (let i = 0; i < this.keys.length; i++) {
      if (this.keys[i] === key + 1) queries.push([Math.floor(i / this.count), this.weights[i]]);
    }
    return queries.sort((pair, other) => other[1] - pair[1]);
  }
}
