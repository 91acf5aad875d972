// WeightCache: tiles, rows, columns and whole matrices of weights that were requested before.

import { HeadTiles } from "./tiles.js";
import { evenWeight } from "./visible_counts.js";

const HEADS_KEPT = 4;
const LINES_KEPT = 64;
const MATRIX = 1024; // rows and columns of a head's weights that are held at once

export class WeightCache {
  /** `arrived` is called when there is something new. */
  constructor(source, attentionOf, arrived) {
    Object.assign(this, { source, attentionOf, arrived });
    this.tiles = new Map();
    this.lines = new Map();
    this.matrices = new Map();
  }

  /** The tiles of a head; the last few heads stay in memory. */
  tilesOf(name, head) {
    const key = `${name}/${head}`;
    const before = this.tiles.get(key);
    const tiles =
      before && (before.base || !before.problem)
        ? before
        : new HeadTiles(this.source, this.attentionOf(name), head, this.arrived);
    this.tiles.delete(key);
    this.tiles.set(key, tiles);
    for (const old of this.tiles.keys()) {
      if (this.tiles.size <= HEADS_KEPT) break;
      this.tiles.delete(old);
    }
    return tiles;
  }

  /** A row ("at") or a column ("by") of weights. */
  lineOf(direction, name, head, position) {
    const request = () =>
      direction === "at" ? this.source.row(name, head, position) : this.source.column(name, head, position);
    return keep(this.lines, `${direction}/${name}/${head}/${position}`, LINES_KEPT, request);
  }

  /** All weights of a head, at most MATRIX a side: {rows, columns, values, blocks, even}. */
  matrixOf({ name, head }) {
    const attention = this.attentionOf(name);
    const { counts, first } = attention;
    const ends = [first[0], first[0] + counts[0], first[1], first[1] + counts[1]];
    const even = (query = null) => evenWeight(attention, head, query);
    const request = async () => ({
      ...(await this.source.window(name, head, ...ends, ...counts.map((count) => Math.ceil(count / MATRIX)))),
      even,
    });
    return keep(this.matrices, `${name}/${head}`, HEADS_KEPT, request);
  }
}

/** The promise of this key, made once; what fails is requested again, and a full map is emptied. */
function keep(map, key, most, request) {
  if (!map.has(key)) {
    if (map.size > most) map.clear();
    const asked = request();
    asked.catch(() => map.delete(key));
    map.set(key, asked);
  }
  return map.get(key);
}
