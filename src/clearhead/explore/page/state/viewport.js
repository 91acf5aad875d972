// The part of the map that is on the screen: converts between cells and pixels.

import { clamp } from "../data/number_format.js";

const LARGEST_CELL = 72;
const CLOSEST_CELL = 96;
const ROOMY_CELL = 22; // in which a number fits

/** Positions here count from the first query and key of the attention; sizes are CSS pixels. */
export class Viewport {
  constructor(queries, keys) {
    this.queries = queries;
    this.keys = keys;
    this.width = 1;
    this.height = 1;
    this.cell = [1, 1]; // pixels of one query (down) and one key (across)
    this.start = [0, 0]; // the query and key at the top left
    this.fitted = true;
    this.shown = null; // the window that was asked for, until somebody moves
  }

  /**
   * The size of cells at which everything is seen: square, unless one side is much longer,
   * or numbers would not fit and a little more width helps.
   */
  fitCellIn(width, height) {
    const down = Math.min(height / this.queries, LARGEST_CELL);
    const across = Math.min(width / this.keys, LARGEST_CELL);
    const ratio = Math.max(down / across, across / down);
    const least = Math.min(down, across);
    if (ratio > 4) return [down, across];
    if (least < ROOMY_CELL && Math.max(this.queries, this.keys) <= 64)
      return [Math.min(down, 2 * least), Math.min(across, 2 * least)];
    return [least, least];
  }

  get fitCell() {
    return this.fitCellIn(this.width, this.height);
  }

  /**
   * Takes its place. Cells stay where they are on the screen when labels take room from them; a window that was asked
   * for is shown whole, also where the page finds its final layout only later.
   */
  resize({ left, top, width, height }) {
    if (!this.fitted && this.left !== undefined) {
      this.start = [this.start[0] + (top - this.top) / this.cell[0], this.start[1] + (left - this.left) / this.cell[1]];
    }
    this.left = left;
    this.top = top;
    this.width = Math.max(width, 10);
    this.height = Math.max(height, 10);
    if (this.fitted) this.fit();
    else if (this.shown) this.show(this.shown);
    else this.settle();
  }

  fit() {
    this.cell = this.fitCell;
    this.start = [0, 0];
    this.fitted = true;
    this.settle();
  }

  get centre() {
    return [this.start[0] + this.height / this.cell[0] / 2, this.start[1] + this.width / this.cell[1] / 2];
  }

  centreOn(query, key) {
    this.start = [query - this.height / this.cell[0] / 2, key - this.width / this.cell[1] / 2];
    this.shown = null;
    this.settle();
  }

  /** Moves by pixels. */
  pan(across, down) {
    this.start = [this.start[0] - down / this.cell[0], this.start[1] - across / this.cell[1]];
    this.shown = null;
    this.settle();
  }

  /** Zooms by a factor around a point, in pixels of the plot. */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const fit = this.fitCell;
    const most = Math.max(CLOSEST_CELL, ...fit);
    const wanted = clamp(1, (this.cell[0] / fit[0]) * factor, Math.max(most / fit[0], most / fit[1]));
    const point = [this.start[0] + y / this.cell[0], this.start[1] + x / this.cell[1]];
    this.cell = fit.map((size) => Math.min(size * wanted, most));
    this.start = [point[0] - y / this.cell[0], point[1] - x / this.cell[1]];
    this.fitted = wanted <= 1.001;
    this.shown = null;
    if (this.fitted) this.fit();
    this.settle();
  }

  /** Shows these queries and keys, as large as they fit. */
  show(window) {
    const size = Math.min(this.height / (window.q1 - window.q0), this.width / (window.k1 - window.k0));
    const fit = this.fitCell;
    const factor = Math.max(1, fit[0] === fit[1] ? size / fit[0] : this.height / (window.q1 - window.q0) / fit[0]);
    this.cell = fit.map((cellSize) => Math.min(cellSize * factor, Math.max(CLOSEST_CELL, ...fit)));
    this.fitted = factor <= 1.001;
    this.centreOn((window.q0 + window.q1) / 2, (window.k0 + window.k1) / 2);
    this.shown = window;
  }

  /** Keeps the map on the screen; a smaller one is centred horizontally and aligned to the top. */
  settle() {
    const seen = [this.height / this.cell[0], this.width / this.cell[1]];
    const top = seen[0] >= this.queries ? 0 : clamp(0, this.start[0], this.queries - seen[0]);
    const left = seen[1] >= this.keys ? (this.keys - seen[1]) / 2 : clamp(0, this.start[1], this.keys - seen[1]);
    this.start = [top, left];
  }

  x(key) {
    return (key - this.start[1]) * this.cell[1];
  }

  y(query) {
    return (query - this.start[0]) * this.cell[0];
  }

  /** The cell under a point, or null beside the map. */
  at(x, y) {
    const query = Math.floor(this.start[0] + y / this.cell[0]);
    const key = Math.floor(this.start[1] + x / this.cell[1]);
    if (x < 0 || y < 0 || x > this.width || y > this.height) return null;
    if (query < 0 || key < 0 || query >= this.queries || key >= this.keys) return null;
    return { q: query, k: key };
  }

  /** The visible cells, half-open. */
  get window() {
    return {
      q0: Math.max(0, Math.floor(this.start[0])),
      q1: Math.min(this.queries, Math.ceil(this.start[0] + this.height / this.cell[0])),
      k0: Math.max(0, Math.floor(this.start[1])),
      k1: Math.min(this.keys, Math.ceil(this.start[1] + this.width / this.cell[1])),
    };
  }

  /** The visible part in fractions of cells, for the address of the page. */
  get exactWindow() {
    return {
      q0: this.start[0],
      q1: this.start[0] + this.height / this.cell[0],
      k0: this.start[1],
      k1: this.start[1] + this.width / this.cell[1],
    };
  }

  /** The part of the plot that the map covers, in pixels. */
  get extent() {
    return {
      left: Math.max(0, this.x(0)),
      top: Math.max(0, this.y(0)),
      right: Math.min(this.width, this.x(this.keys)),
      bottom: Math.min(this.height, this.y(this.queries)),
    };
  }
}
