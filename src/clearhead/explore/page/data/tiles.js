// The tiles of one head: first the coarse map of everything, then tiles in the resolution of the screen.

import { poolWeights } from "./pooling.js";
import { countSeeing, evenWeight } from "./visible_counts.js";

const TILE = 512; // pixels
const MOST_WEIGHTS = 8192 ** 2; // of a tile: the server computes no more at once
const NEAR = 8000; // the square root of the weights on the screen up to which they are worth their computation
const TILES_KEPT = 40;
// Times the even weight, which every visible key gets if all get the same. Broad heads are drawn pale.
export const LEAST_SCALE_END = 4;
const AT_ONCE = 4; // requests under way: while one is computed the next travel
export const HIDDEN_BITS = -(2 ** 31); // the bits of -0, the weight of what the mask hides

/** The tiles of one head at all resolutions. */
export class HeadTiles {
  /**
   * @param {any} source @param {any} attention @param {number} head its number
   * @param {() => void} arrived called when there is something new to paint
   */
  constructor(source, attention, head, arrived) {
    Object.assign(this, { source, attention, head, arrived });
    this.info = attention.heads.find((candidate) => candidate.number === head);
    this.beside = []; // those that are shown next to it
    this.base = null;
    this.tops = null;
    this.tiles = new Map();
    this.wanted = [];
    this.running = new Map();
    this.failed = new Set(); // not asked for again until the map moves
    this.problem = null;
    this.whole = attention.blocks[0] === 1 && attention.blocks[1] === 1;
    this.finer = !this.whole && source.exact(attention.name, head); // whether every weight can be had
    this.pixel = source.live && !attention.estimated ? attention.pixel : null; // of the recorded map
    this.shown = attention.blocks; // the blocks on the screen
    this.loaded = this.load();
  }

  async load() {
    try {
      const { name, counts, blocks } = this.attention;
      const map = await this.source.map(name, this.head);
      this.base = this.makeTile(
        { q0: 0, q1: counts[0], k0: 0, k1: counts[1] },
        { ...map, blocks, exact: !this.attention.estimated },
      );
      this.largest = largestOf(this.base);
      this.typical = typicalOf(this.base);
      if (!this.whole && !this.finer) this.tops = await this.source.tops(name, this.head);
    } catch (problem) {
      this.problem = problem;
    }
    this.arrived();
  }

  makeTile(area, sums) {
    return new Tile(area, sums, (start, end) => countSeeing(this.attention, this.head, start, end));
  }

  /**
   * What the screen shows: tiles of one resolution, over coarser ones as long as some of them are missing.
   * @returns {{blocks: number[], under: Iterable<Tile>, tiles: Tile[], finest: boolean}}
   */
  view(viewport) {
    const { window } = viewport;
    const wanted = viewport.cell.map((size) => 2 ** Math.max(0, Math.floor(Math.log2(1 / size) + 0.3)));
    if (this.whole) return this.showing({ blocks: wanted, under: [], tiles: [this.pooled(wanted)], finest: true });
    const blocks = this.blocksFor(window, wanted);
    if (!blocks) {
      this.rest();
      return this.showing({ blocks: this.base.blocks, under: [], tiles: [this.base], finest: false });
    }
    const { tiles, complete } = this.covering(window, blocks);
    if (!tiles.length)
      return this.showing({
        blocks: this.base.blocks,
        under: [this.base, ...this.coarser(window, blocks)],
        tiles: [],
        finest: false,
      });
    return this.showing({
      blocks,
      under: complete ? [] : [this.base, ...this.coarser(window, blocks)],
      tiles: tiles,
      finest: true,
    });
  }

  showing(view) {
    this.shown = view.blocks;
    return view;
  }

  /**
   * The blocks for a window: sums of exact weights, or where those are too many, whole pixels of the recorded map. Null
   * if nothing is finer than the first map.
   */
  blocksFor({ q0, q1, k0, k1 }, wanted) {
    const near = (q1 - q0) * (k1 - k0) <= NEAR ** 2;
    const doubled = (pixel, block) => pixel * 2 ** Math.max(0, Math.floor(Math.log2(block / pixel) + 0.3));
    const blocks = this.finer && near ? wanted : this.pixel?.map((pixel, side) => doubled(pixel, wanted[side]));
    return blocks?.some((block, side) => block < this.attention.blocks[side]) ? blocks : null;
  }

  /** Queries and keys of a tile: whole blocks, of few enough weights where they are not pixels of the recorded map. */
  spansOf(blocks) {
    const cells = [TILE, TILE];
    if (this.pixel && blocks.every((block, side) => block % this.pixel[side] === 0))
      return cells.map((count, side) => count * blocks[side]);
    const size = (side) => Math.min(cells[side] * blocks[side], this.attention.counts[side]);
    while (size(0) * size(1) > MOST_WEIGHTS && Math.max(...cells) > 1) cells[size(0) >= size(1) ? 0 : 1] /= 2;
    return cells.map((count, side) => count * blocks[side]);
  }

  /** The tiles in these blocks that intersect a window; missing ones are requested, the middle first. */
  covering(window, blocks) {
    const spans = this.spansOf(blocks);
    const tiles = [];
    const missing = [];
    for (let row = Math.floor(window.q0 / spans[0]); row * spans[0] < window.q1; row++) {
      for (let column = Math.floor(window.k0 / spans[1]); column * spans[1] < window.k1; column++) {
        const key = `${blocks}/${row}/${column}`;
        const tile = this.tiles.get(key);
        if (tile) {
          this.tiles.delete(key); // the newest stay longest
          this.tiles.set(key, tile);
          tiles.push(tile);
        } else missing.push({ key, blocks, row, column, spans });
      }
    }
    this.needed = tiles.length + missing.length;
    this.ask(missing, window);
    return { tiles, complete: !missing.length };
  }

  /** The whole map in these blocks, summed here from exact weights. */
  pooled(blocks) {
    const key = `whole/${blocks}`;
    if (blocks[0] === 1 && blocks[1] === 1) return this.base;
    if (!this.tiles.has(key)) {
      const { rows, columns, shares } = this.base;
      const unit = { numbers: shares, unit: 1, at: (q) => [q * columns, columns] };
      const sums = poolWeights(unit, 0, rows, 0, columns, ...blocks);
      this.tiles.set(key, this.makeTile({ q0: 0, q1: rows, k0: 0, k1: columns }, { ...sums, blocks, exact: true }));
    }
    return this.tiles.get(key);
  }

  /** Coarser tiles that are loaded, to show until finer ones arrive; the coarsest first. */
  coarser(window, blocks) {
    const rougher = (tile) => tile.blocks[0] > blocks[0] || tile.blocks[1] > blocks[1];
    const meets = (tile) => tile.q0 < window.q1 && tile.q1 > window.q0 && tile.k0 < window.k1 && tile.k1 > window.k0;
    return [...this.tiles.values()]
      .filter((tile) => rougher(tile) && meets(tile))
      .sort((tile, other) => other.grain - tile.grain);
  }

  ask(missing, window) {
    const middle = [(window.q0 + window.q1) / 2, (window.k0 + window.k1) / 2];
    const apart = (tile) =>
      Math.hypot((tile.row + 0.5) * tile.spans[0] - middle[0], (tile.column + 0.5) * tile.spans[1] - middle[1]);
    const keys = new Set(missing.map((tile) => tile.key));
    this.wanted = missing
      .filter(({ key }) => !this.running.has(key) && !this.failed.has(key))
      .sort((tile, other) => apart(tile) - apart(other));
    for (const [key, stop] of this.running) if (!keys.has(key)) stop.abort();
    this.advance();
  }

  /** Cancels all requests: the head is no longer shown. */
  rest() {
    this.wanted = [];
    for (const stop of this.running.values()) stop.abort();
  }

  get waiting() {
    return this.wanted.length > 0 || this.running.size > 0;
  }

  advance() {
    while (this.running.size < AT_ONCE && this.wanted.length) this.fetch(this.wanted.shift());
  }

  async fetch({ key, blocks, row, column, spans }) {
    const stop = new AbortController();
    this.running.set(key, stop);
    const { name, counts, first } = this.attention;
    const area = {
      q0: row * spans[0],
      q1: Math.min(counts[0], (row + 1) * spans[0]),
      k0: column * spans[1],
      k1: Math.min(counts[1], (column + 1) * spans[1]),
    };
    try {
      await new Promise((resolve) => setTimeout(resolve)); // a frame may be painted in between
      const corners = [area.q0 + first[0], area.q1 + first[0], area.k0 + first[1], area.k1 + first[1]];
      const sums = await this.source.window(name, this.head, ...corners, ...blocks, stop.signal);
      this.tiles.set(key, this.makeTile(area, sums));
      this.problem = null;
      for (const old of this.tiles.keys()) {
        if (this.tiles.size <= Math.max(TILES_KEPT, 2 * this.needed)) break;
        this.tiles.delete(old);
      }
    } catch (problem) {
      if (problem.name !== "AbortError") {
        this.problem = problem;
        this.failed.add(key);
      }
    }
    this.running.delete(key);
    this.arrived();
    this.advance();
  }

  /** The largest weight among the top keys of a window. */
  largestTop({ q0, q1, k0, k1 }) {
    const first = this.attention.first[1];
    let most = 0;
    for (let q = q0; q < q1; q++) {
      for (const [key, weight] of this.tops.of(q))
        if (key - first >= k0 && key - first < k1 && weight > most) most = weight;
    }
    return most;
  }

  /** For each block, the mean over its cells without the top keys. */
  *remainders({ q0, q1, k0, k1 }) {
    const [tall, long] = this.base.blocks;
    const first = this.attention.first[1];
    for (let q = q0 - (q0 % tall); q < q1; q += tall) {
      const taken = new Map(); // by column of the map: [weight, cells]
      for (let query = q; query < Math.min(q + tall, this.base.q1); query++) {
        for (const [key, weight] of this.tops.of(query)) {
          const column = Math.floor((key - first) / long);
          const [sum, cells] = taken.get(column) ?? [0, 0];
          taken.set(column, [sum + weight, cells + 1]);
        }
      }
      for (let k = k0 - (k0 % long); k < k1; k += long) {
        const { rows, columns, sum } = this.base.cell(q, k);
        const [exactSum, cells] = taken.get(k / long) ?? [0, 0];
        yield { q, k, rows, columns, mean: Math.max(0, sum - exactSum) / Math.max(1, rows * columns - cells) };
      }
    }
  }

  /** The value of one cell, as it is drawn: from the finest tile that covers it, but no finer than what is shown. */
  at(q, k) {
    let best = this.base;
    const fits = (tile) => tile.blocks[0] >= this.shown[0] && tile.blocks[1] >= this.shown[1];
    for (const tile of this.tiles.values()) {
      const covers = q >= tile.q0 && q < tile.q1 && k >= tile.k0 && k < tile.k1;
      if (covers && fits(tile) && (!best || !fits(best) || tile.grain < best.grain)) best = tile;
    }
    if (!best) return null;
    const cell = best.cell(q, k);
    if (cell.rows === 1 && cell.columns === 1) return cell;
    const top = this.tops?.of(q).find(([key]) => key === k + this.attention.first[1]);
    return top ? { q0: q, k0: k, rows: 1, columns: 1, sum: top[1], share: top[1], exact: true } : cell;
  }

  /** By how much a number of this head may be wrong, as the file rounds it. */
  get precision() {
    return this.source.precision(this.attention.name, this.head);
  }

  /** The share of attention with the full colour, for blocks of cells; heads side by side share a scale. */
  full(curve, blocks) {
    return Math.max(
      ...[this, ...this.beside].filter((tiles) => tiles.base).map((tiles) => tiles.fullAlone(curve, blocks)),
    );
  }

  fullAlone(curve, blocks) {
    if (curve === "log") return 1;
    const even = Math.min(1, LEAST_SCALE_END * blocks[1] * evenWeight(this.attention, this.head));
    if (this.whole && Math.max(...this.attention.counts) <= 64)
      return this.largest >= 0.5 ? 1 : Math.max(this.largest, even);
    if (curve === "linear") return 1;
    const coarse = Math.max(this.typical ?? 1, 1e-4);
    const fine = Math.max(this.whole ? coarse : Math.min(this.info.peak ?? coarse, coarse), 1e-4);
    const span = Math.log2(Math.max(2, this.attention.blocks[1]));
    const part = this.whole ? 1 : Math.min(1, Math.log2(Math.max(1, blocks[1])) / span);
    return Math.min(1, Math.max(even, fine ** (1 - part) * coarse ** part));
  }

  /** The labels of both ends of the scale; "≥" if some weights are larger than the full colour. */
  ends(curve, blocks) {
    if (curve === "log") return ["≤0.0001", "1"];
    const full = this.full(curve, blocks);
    const more = [this, ...this.beside].some((tiles) => (tiles.whole ? tiles.largest : 1) > full * 1.005);
    return ["0", full === 1 ? "1" : `${more ? "≥" : ""}${full.toFixed(full < 0.01 ? 4 : full < 0.1 ? 3 : 2)}`];
  }
}

/**
 * A rectangle of block sums. Values are shares: the sum over keys, as the mean over the queries that see
 * anything, which `countSeeing` counts.
 */
class Tile {
  constructor(area, sums, countSeeing) {
    Object.assign(this, area);
    this.rows = sums.rows;
    this.columns = sums.columns;
    this.blocks = sums.blocks;
    this.exact = sums.exact;
    this.grain = sums.blocks[0] * sums.blocks[1];
    this.shares = sums.values;
    this.seeing = new Int32Array(this.rows).fill(1); // queries of each row that see anything
    if (this.blocks[0] > 1) {
      for (let row = 0; row < this.rows; row++) {
        const start = this.q0 + row * this.blocks[0];
        this.seeing[row] = Math.max(1, countSeeing(start, Math.min(start + this.blocks[0], this.q1)));
        for (let i = row * this.columns; i < (row + 1) * this.columns; i++) this.shares[i] /= this.seeing[row];
      }
    }
    this.bits = new Int32Array(this.shares.buffer, this.shares.byteOffset, this.shares.length);
    this.hides = this.bits.includes(HIDDEN_BITS);
    this.odd = this.shares.some((share) => !Number.isFinite(share));
  }

  cell(q, k) {
    const row = Math.floor((q - this.q0) / this.blocks[0]);
    const column = Math.floor((k - this.k0) / this.blocks[1]);
    const q0 = this.q0 + row * this.blocks[0];
    const k0 = this.k0 + column * this.blocks[1];
    const share = this.shares[row * this.columns + column];
    const rows = Math.min(this.blocks[0], this.q1 - q0);
    return {
      q0,
      k0,
      rows,
      columns: Math.min(this.blocks[1], this.k1 - k0),
      share,
      sum: share * this.seeing[row],
      exact: this.exact,
    };
  }
}

function largestOf(tile) {
  let most = 0;
  for (const share of tile.shares) if (share > most && share < Infinity) most = share;
  return most;
}

/** The mean over rows of their largest share; empty rows excepted. */
function typicalOf(tile) {
  let sum = 0;
  let rows = 0;
  for (let row = 0; row < tile.rows; row++) {
    let most = 0;
    for (let i = row * tile.columns; i < (row + 1) * tile.columns; i++)
      if (tile.shares[i] > most && tile.shares[i] < Infinity) most = tile.shares[i];
    if (most > 0) rows++;
    sum += most;
  }
  return rows ? sum / rows : 1;
}
