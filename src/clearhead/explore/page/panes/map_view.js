// One map on a canvas, and how pointer and keys move it.

import { LABEL_CELL, labelRoom, labelSize, leaning } from "../draw/axis_labels.js";
import { make, sharpen } from "../draw/elements.js";
import { paintPlot } from "../draw/map_cells.js";

const CLICK = 4; // pixels that a click may move

export class MapView {
  constructor(explorer, callbacks) {
    this.explorer = explorer;
    this.callbacks = callbacks;
    this.canvas = make("canvas", { class: "map-canvas", tabindex: "0", role: "application" });
    this.note = make("div", { class: "map-note" });
    this.element = make("div", { class: "map-view" }, this.canvas, this.note);
    this.pointers = new Map();
    this.listen();
  }

  /** Sets the head and the viewport, which two maps may share. */
  show(headId, viewport) {
    this.headId = headId;
    this.attention = this.explorer.attentionOf(headId.name);
    this.tiles = this.explorer.weights.tilesOf(headId.name, headId.head);
    this.viewport = viewport;
    this.queries = this.explorer.axes[this.attention.queries];
    this.keys = this.explorer.axes[this.attention.keys];
  }

  /** Labels get room where cells are large enough for them. */
  layout(look) {
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    const context = sharpen(this.canvas, width, height);
    context.font = look.font;
    const margins = this.margins(context, width, height);
    const { viewport } = this;
    const inside = ({ left, top, right }) => [width - left - right, height - top - 8];
    const rough = viewport.fitCellIn(width - 100, height - 90);
    const cell = viewport.fitted ? viewport.fitCellIn(...inside(margins(true, true, rough))) : viewport.cell;
    this.labelled = { queries: cell[0] >= LABEL_CELL, keys: cell[1] >= LABEL_CELL };
    const { left, top, right } = margins(this.labelled.queries, this.labelled.keys, viewport.fitted ? rough : cell);
    Object.assign(this, { left, top, right });
    this.canvas.style.touchAction = viewport.fitted ? "pan-y" : "none"; // the page moves where the map does not
    viewport.resize({ left, top, width: width - left - right, height: height - top - 8 });
    return context;
  }

  /** How much room labels or rulers take. */
  margins(context, width, height) {
    const { counts, first } = this.attention;
    const key = `${this.attention.name}/${this.queries.name}/${width}/${height}/${context.font}`;
    if (this.measured?.key !== key) {
      const wide = labelRoom(context, this.keys, first[1], counts[1]);
      const left = labelRoom(context, this.queries, first[0], counts[0]);
      const [, cell] = this.viewport.fitCellIn(width - left - 36, height - 42); // as it is where labels lie flat
      this.measured = { key, wide, left, flat: wide + 6 <= cell };
    }
    const { wide, left, flat } = this.measured;
    return (queries, keys, cell) => {
      const [tall, long] = cell.map((size) => labelSize(size) / 13);
      const steep = -Math.sin(leaning(cell[1]));
      return {
        left: queries ? Math.min(left * tall + 20, width * 0.3) : 54,
        top: !keys ? 30 : flat ? 34 : Math.min(wide * long * steep + 22, 116, height * 0.28),
        right: !keys || flat || steep === 1 ? 16 : Math.min(54, wide * 0.6),
      };
    };
  }

  paint(look, marks, pictures) {
    const context = this.layout(look);
    context.clearRect(0, 0, this.element.clientWidth, this.element.clientHeight);
    context.font = look.font;
    this.plot = {
      context,
      look,
      marks,
      pictures,
      labelled: this.labelled,
      viewport: this.viewport,
      left: this.left,
      top: this.top,
      right: this.right,
      tiles: this.tiles,
      scale: this.explorer.look.scale,
      curve: this.explorer.curveOf(this.attention),
      queries: this.queries,
      keys: this.keys,
      first: this.attention.first,
      resolution: null,
    };
    paintPlot(this.plot);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left - this.left, event.clientY - box.top - this.top];
  }

  /** The cell, or only the query or key whose label is under the pointer. */
  under(x, y) {
    const { viewport } = this;
    const cell = viewport.at(x, y);
    if (cell) return cell;
    const extent = viewport.extent;
    const q = Math.floor(viewport.start[0] + y / viewport.cell[0]);
    const k = Math.floor(viewport.start[1] + x / viewport.cell[1]);
    if (x < extent.left && y >= extent.top && y < extent.bottom && q < viewport.queries) return { q, k: null };
    if (y < extent.top && x >= extent.left && x < extent.right && k < viewport.keys) return { q: null, k };
    return null;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 0) return;
      if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
      this.travelled = 0;
    });
    canvas.addEventListener("pointermove", (event) => this.move(event));
    const up = (event) => {
      const held = this.pointers.delete(event.pointerId);
      canvas.classList.remove("dragging");
      if (!held || event.type !== "pointerup" || this.travelled > CLICK) return;
      const cell = this.under(...this.place(event));
      if (cell) this.callbacks.pin(this, cell);
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => this.pointers.size || this.callbacks.cursor(this, null, null));
    canvas.addEventListener("dblclick", (event) => {
      const [x, y] = this.place(event);
      const { viewport } = this;
      const point = [viewport.start[0] + y / viewport.cell[0], viewport.start[1] + x / viewport.cell[1]];
      viewport.zoom(event.shiftKey ? 0.5 : 2);
      viewport.centreOn(...point);
      this.callbacks.moved(this);
    });
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (this.viewport.fitted && event.deltaY > 0) return; // all is seen: the page may scroll on
        event.preventDefault();
        const lines = event.deltaMode === 1 ? 24 : 1;
        const speed = event.ctrlKey ? 0.01 : 0.0016;
        this.viewport.zoom(Math.exp(-event.deltaY * lines * speed), ...this.place(event));
        this.callbacks.moved(this);
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => this.walk(event));
    canvas.addEventListener("blur", () => this.callbacks.cursor(this, null, null));
  }

  move(event) {
    const held = this.pointers.get(event.pointerId);
    if (!held) {
      const cell = this.under(...this.place(event));
      return this.callbacks.cursor(this, cell, [event.clientX, event.clientY]);
    }
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
    const [across, down] = [event.clientX - held[0], event.clientY - held[1]];
    this.travelled += Math.hypot(across, down);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (others.length) this.pinch(held, [event.clientX, event.clientY], others[0][1]);
    else if (this.travelled > CLICK) this.viewport.pan(across, down);
    if (this.travelled > CLICK) this.canvas.classList.add("dragging");
    this.callbacks.cursor(this, null, null);
    this.callbacks.moved(this);
  }

  pinch(before, after, still) {
    const apart = (point) => Math.max(12, Math.hypot(point[0] - still[0], point[1] - still[1]));
    const box = this.canvas.getBoundingClientRect();
    const middle = [(after[0] + still[0]) / 2 - box.left - this.left, (after[1] + still[1]) / 2 - box.top - this.top];
    this.viewport.zoom(apart(after) / apart(before), ...middle);
  }

  /** Arrow keys, Home and End move from cell to cell, Enter and Space pin; with Shift, arrows move the map. */
  walk(event) {
    const way = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: "first",
      End: "last",
      Enter: "pin",
      " ": "pin",
    }[event.key];
    if (!way || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    const { viewport } = this;
    const now = this.explorer.state.cursor ?? {};
    if (way === "pin")
      return Number.isInteger(now.q) || Number.isInteger(now.k)
        ? this.callbacks.pin(this, { q: now.q ?? null, k: now.k ?? null })
        : undefined;
    if (way === "first") return this.goTo({ q: 0, k: 0 });
    if (way === "last") return this.goTo({ q: viewport.queries - 1, k: viewport.keys - 1 });
    if (event.shiftKey) {
      viewport.pan(-way[1] * 80, -way[0] * 80);
      return this.callbacks.moved(this);
    }
    const window = viewport.window;
    const start = { q: now.q ?? window.q0 - Math.max(way[0], 0), k: now.k ?? window.k0 - Math.max(way[1], 0) };
    const step = Math.max(1, Math.round(1 / Math.min(...viewport.cell)));
    const cell = {
      q: Math.max(0, Math.min(viewport.queries - 1, start.q + way[0] * step)),
      k: Math.max(0, Math.min(viewport.keys - 1, start.k + way[1] * step)),
    };
    this.goTo(cell);
  }

  /** Puts the cursor on a cell. */
  goTo(cell) {
    this.reveal(cell);
    this.callbacks.cursor(this, cell, this.screenPlace(cell), true);
  }

  /** Scrolls the map until a cell is visible. */
  reveal({ q, k }) {
    const { viewport } = this;
    const [x, y] = [viewport.x(k), viewport.y(q)];
    const [high, wide] = viewport.cell;
    const across = x < 0 ? -x : Math.min(0, viewport.width - x - wide);
    const down = y < 0 ? -y : Math.min(0, viewport.height - y - high);
    if (!across && !down) return;
    viewport.pan(across, down);
    this.callbacks.moved(this);
  }

  screenPlace({ q, k }) {
    const box = this.canvas.getBoundingClientRect();
    return [box.left + this.left + this.viewport.x(k + 0.5), box.top + this.top + this.viewport.y(q + 0.5)];
  }
}
