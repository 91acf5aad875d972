// The head atlas: a thumbnail of every head in the colour of its role, by layer or sorted by a measure.

import { formatNumber } from "../data/number_format.js";
import { ROLE_COLOURS, roleColour, tint } from "../draw/colours.js";
import { byId, make, makeBitmap, oncePerFrame, refill, sharpen } from "../draw/elements.js";
import { SORTS } from "../state/store.js";
import { say, sayRole } from "../words/languages.js";
import { layerName, roleDot } from "./captions.js";
import { explained } from "./definitions.js";
import { paintSpread } from "./measure_dots.js";

const CAPTION = 13;
const MOST_ON_PAGE = 1000; // heads; more of them scroll, and only those near the visible ones are on the page
const BEYOND = 500; // pixels above and below the visible heads
const TARGET = 24; // pixels that a finger needs
const MARGIN = 4; // around the grid, for the frame of the chosen head
const GUTTER = 28; // left of the grid, for the layers' numbers
const PADDING = 28; // of the pane, left and right
const USUAL = 300; // pixels of the pane
const WIDEST = 364; // pixels of the pane

export class Atlas {
  constructor(explorer) {
    this.explorer = explorer;
    this.thumbs = new Map(); // attention name → {size, values} once loaded
    this.cells = [];
    this.shown = []; // the cells that are on the page
    this.span = [0, 0]; // from where to where they reach, in pixels
    this.buttons = new Map(); // head → {button, picture}, kept from order to order
    this.repaint = oncePerFrame(() => this.paint());
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.spacer = make("div", { role: "presentation" }); // as large as all heads together
    this.grid = byId("atlas-grid");
    this.grid.addEventListener("keydown", (event) => this.walk(event));
    this.grid.addEventListener("scroll", () => requestAnimationFrame(() => this.follow()), { passive: true });
    const resized = new ResizeObserver(() => {
      this.build();
      this.follow();
    });
    resized.observe(byId("atlas"));
  }

  renew() {
    this.thumbs.clear();
    this.buttons.clear();
    const most = Math.max(...this.explorer.scene.attentions.map((attention) => attention.heads.length));
    const wanted = PADDING + GUTTER + most * TARGET + MARGIN;
    const width = wanted > WIDEST ? USUAL : Math.max(USUAL, wanted); // wide enough for 12 heads
    document.documentElement.style.setProperty("--atlas", `${width}px`);
    this.rebuild();
  }

  /** Builds all anew, also where heads and their order are the same. */
  rebuild() {
    this.built = "";
    this.build();
  }

  build() {
    const { explorer } = this;
    const { group, state } = explorer;
    const width = byId("atlas").clientWidth - PADDING;
    const key = [group.key, state.sort, state.order, width, document.documentElement.lang].join("|");
    if (key === this.built) return this.mark();
    this.built = key;
    this.buildTabs();
    this.buildSorts();
    this.cells = state.sort === "layer" ? this.byLayer(width) : this.bySort(width);
    this.buildGrid(width);
    this.buildLegend();
    this.loadThumbs();
    this.mark();
    this.reveal(width);
  }

  /** Scrolls to the chosen head where there are more heads than fit. */
  reveal(width) {
    const { name, head } = this.explorer.state;
    const cell = this.cells.find((candidate) => candidate.attention.name === name && candidate.head.number === head);
    if (!cell) return;
    if (this.width > width) this.grid.scrollLeft = Math.max(0, cell.x - width / 2);
    if (this.cells.length > MOST_ON_PAGE)
      this.grid.scrollTop = this.explorer.state.sort === "layer" ? cell.y - this.grid.clientHeight / 2 : 0;
  }

  buildTabs() {
    const { explorer } = this;
    const tabs = explorer.groups.map((group) =>
      make("button", {
        type: "button",
        role: "tab",
        class: "tab",
        ...explained(groupTerm(group)),
        id: `tab-${group.key}`,
        text: groupName(group),
        "aria-controls": "atlas-grid",
        "aria-selected": String(group === explorer.group),
        tabindex: group === explorer.group ? "0" : "-1",
        on: { click: () => explorer.openGroup(group), keydown: (event) => this.walkTabs(event) },
      }),
    );
    byId("tabs").hidden = tabs.length < 2;
    refill(byId("tabs"), ...tabs);
  }

  walkTabs(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const { groups, group } = this.explorer;
    const next = groups[(groups.indexOf(group) + by + groups.length) % groups.length];
    this.explorer.openGroup(next);
    setTimeout(() => byId(`tab-${next.key}`)?.focus());
  }

  buildSorts() {
    const { explorer } = this;
    const heads = explorer.group.attentions.flatMap((attention) => attention.heads);
    const asked = (sort) => sort === "effect" && explorer.live && !explorer.noEffects;
    const isKnown = (sort) =>
      sort === "layer" || asked(sort) || heads.some((head) => head[sort] !== null && head[sort] !== undefined);
    const buttons = SORTS.filter(isKnown).map((sort) =>
      make("button", {
        type: "button",
        class: "word",
        ...explained(sort),
        text: `${say(sort)}${this.arrowOf(sort)}`,
        "aria-pressed": String(explorer.state.sort === sort),
        on: { click: () => this.sortBy(sort) },
      }),
    );
    refill(byId("sorts"), make("span", { class: "soft", text: say("sortBy") }), ...buttons);
  }

  sortBy(sort) {
    const { state, store } = this.explorer;
    store.set({ sort, order: state.sort === sort && state.order === "down" ? "up" : "down" });
  }

  /** The direction of the chosen order; clicking it again reverses it. */
  arrowOf(sort) {
    const { state } = this.explorer;
    if (state.sort !== sort) return "";
    return state.order === "up" ? " ↑" : sort === "layer" ? "" : " ↓";
  }

  byLayer(width) {
    const { group, state } = this.explorer;
    const attentions = state.order === "up" ? [...group.attentions].reverse() : group.attentions;
    const most = Math.max(...attentions.map((attention) => attention.heads.length));
    const step = Math.max(TARGET, Math.min(34, Math.floor((width - GUTTER) / most)));
    const size = step - (step > 20 ? 4 : 2);
    this.size = size;
    this.labels = [
      ...attentions.map((attention, row) => ({
        text: layerName(attention),
        x: GUTTER - 10,
        y: 18 + row * step + size / 2,
        end: true,
      })),
      ...Array.from({ length: most }, (_, column) => ({
        text: String(attentions[0].heads[column]?.number ?? column),
        x: GUTTER + column * step + size / 2,
        y: 7,
      })).filter((_, column) => step >= 18 || column % 4 === 0),
    ];
    return attentions.flatMap((attention, row) =>
      attention.heads.map((head, column) => ({
        attention,
        head,
        headIndex: column,
        row,
        x: GUTTER + column * step,
        y: 18 + row * step,
        caption: "",
      })),
    );
  }

  bySort(width) {
    const { sort } = this.explorer.state;
    const heads = this.explorer.group.attentions.flatMap((attention) =>
      attention.heads.map((head, column) => ({ attention, head, headIndex: column })),
    );
    const turned = this.explorer.state.order === "up" ? -1 : 1;
    heads.sort((cell, other) => turned * before(cell.head, other.head, sort));
    const columns = Math.max(3, Math.floor(width / 39));
    const step = Math.floor(width / columns);
    this.size = Math.min(step - 6, 34);
    this.labels = [];
    return heads.map((cell, i) => ({
      ...cell,
      row: Math.floor(i / columns),
      x: (i % columns) * step + (step - this.size) / 2,
      y: 2 + Math.floor(i / columns) * (this.size + CAPTION + 7),
      caption: sort === "role" ? `${layerName(cell.attention)}·${cell.head.number}` : measured(cell.head[sort], sort),
    }));
  }

  buildGrid(width) {
    const caption = this.cells[0]?.caption ? CAPTION + 4 : 4;
    this.height = this.cells.reduce((most, cell) => Math.max(most, cell.y), 0) + this.size + caption;
    this.width = this.cells.reduce((most, cell) => Math.max(most, cell.x + this.size + 4), width);
    this.spacer.style.cssText = `width:${this.width}px;height:${this.height + (this.width > width ? 12 : 0)}px`;
    this.grid.classList.toggle("many", this.cells.length > MOST_ON_PAGE);
    this.grid.setAttribute("aria-label", say("atlasLabel"));
    this.grid.setAttribute("aria-rowcount", String((this.cells.at(-1)?.row ?? -1) + 1));
    this.show();
  }

  /** From where to where the grid is scrolled. */
  visibleSpan() {
    if (this.cells.length <= MOST_ON_PAGE) return [0, this.height];
    const { scrollTop, clientHeight } = this.grid;
    return [scrollTop, scrollTop + clientHeight].map((y) => Math.min(this.height, Math.max(0, y - MARGIN)));
  }

  /** Shows other heads once those that are shown were left by scrolling. */
  follow() {
    const [top, bottom] = this.visibleSpan();
    if (top >= this.span[0] && bottom <= this.span[1]) return;
    this.show();
    this.mark();
  }

  /** Puts the heads in view, those near them, the chosen one and `wanted` on the page; up to MOST_ON_PAGE all. */
  show(wanted = null) {
    const [top, bottom] = this.visibleSpan();
    this.span = [Math.max(0, top - BEYOND), Math.min(this.height, bottom + BEYOND)];
    const { name, head } = this.explorer.state;
    this.shown = this.cells.filter(
      (cell) =>
        (cell.y + this.size >= this.span[0] && cell.y <= this.span[1]) ||
        cell === wanted ||
        (cell.attention.name === name && cell.head.number === head),
    );
    const focused = this.grid.contains(document.activeElement) ? document.activeElement : null;
    const rows = new Map();
    for (const cell of this.shown) {
      cell.cache = this.keep(cell);
      cell.button = cell.cache.button;
      const box = { left: cell.x + MARGIN, top: cell.y + MARGIN, width: this.size, height: this.size };
      for (const [side, pixels] of Object.entries(box)) cell.button.style[side] = `${pixels}px`;
      if (!rows.has(cell.row))
        rows.set(cell.row, make("div", { role: "row", class: "row", "aria-rowindex": cell.row + 1 }));
      rows.get(cell.row).append(cell.button);
    }
    refill(this.grid, this.spacer, this.canvas, ...rows.values());
    if (focused?.isConnected) focused.focus({ preventScroll: true });
  }

  /** The button and picture of a head, which are made once and moved when heads are sorted. */
  keep({ attention, head }) {
    const key = `${attention.name}/${head.number}/${document.documentElement.lang}`;
    if (!this.buttons.has(key)) {
      const about = this.describe({ attention, head });
      const button = make("button", {
        type: "button",
        class: "head",
        role: "gridcell",
        tabindex: "-1",
        "aria-label": about,
        title: about,
        "data-name": attention.name,
        "data-head": head.number,
        on: { click: (event) => this.choose({ attention, head }, event.shiftKey) },
      });
      this.buttons.set(key, { button, picture: null, pictured: "" });
    }
    return this.buttons.get(key);
  }

  describe({ attention, head }) {
    const score = head.score === null || head.score === undefined ? "" : ` ${formatNumber(head.score, 2)}`;
    return `${say("layer")} ${layerName(attention)}, ${say("head")} ${head.number}: ${sayRole(head.role)}${score}`;
  }

  choose({ attention, head }, shift) {
    const { state, store } = this.explorer;
    const second = shift || state.picking;
    store.set({ picking: false });
    if (second) this.explorer.compare(attention.name, head.number);
    else this.explorer.select(attention.name, head.number);
  }

  /** Arrow keys go to the nearest head in that direction. */
  walk(event) {
    const way = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    const here = this.shown.find((cell) => cell.button === document.activeElement);
    if (!here || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      event.stopPropagation();
      return this.choose(here, event.shiftKey);
    }
    if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    const ahead = this.cells
      .map((cell) => ({
        cell,
        along: (cell.x - here.x) * way[0] + (cell.y - here.y) * way[1],
        aside: Math.abs((cell.x - here.x) * way[1] + (cell.y - here.y) * way[0]),
      }))
      .filter(({ along }) => along > 1)
      .sort((cell, other) => cell.along + 4 * cell.aside - other.along - 4 * other.aside)[0]?.cell;
    if (!ahead) return;
    if (!this.shown.includes(ahead)) this.show(ahead);
    this.rove(ahead);
    ahead.button.focus();
    if (!event.shiftKey) this.choose(ahead, false);
  }

  rove(cell) {
    if (this.roving) this.roving.tabIndex = -1;
    this.roving = cell.button;
    this.roving.tabIndex = 0;
  }

  buildLegend() {
    const { explorer } = this;
    const counts = new Map();
    for (const { head } of this.cells) counts.set(head.role, (counts.get(head.role) ?? 0) + 1);
    const buttons = Object.keys(ROLE_COLOURS)
      .filter((role) => counts.has(role))
      .map((role) => {
        const choose = () => explorer.store.set({ role: explorer.state.role === role ? null : role });
        const options = { class: "role", ...explained(`role.${role}`), "data-role": role, on: { click: choose } };
        const label = [
          make("span", { text: sayRole(role) }),
          make("span", { class: "soft", text: String(counts.get(role)) }),
        ];
        return make("button", { type: "button", ...options }, roleDot(explorer, role), ...label);
      });
    refill(byId("roles"), ...buttons);
  }

  /** Loads thumbnails layer by layer, after the map. */
  async loadThumbs() {
    const { group } = this.explorer;
    if (!document.documentElement.dataset.ready) return; // the first map comes before
    for (const attention of group.attentions) {
      if (this.explorer.group !== group) return;
      if (this.thumbs.has(attention.name)) continue;
      try {
        this.thumbs.set(attention.name, await this.explorer.source.thumbs(attention.name));
      } catch {
        this.thumbs.set(attention.name, null); // the map itself will say what is wrong
      }
      this.repaint();
    }
  }

  /** Updates selection, filter and colours. */
  mark() {
    const { look, state } = this.explorer;
    for (const cell of this.shown) {
      const isChosen = cell.attention.name === state.name && cell.head.number === state.head;
      const second = state.other?.name === cell.attention.name && state.other?.head === cell.head.number;
      const dress = `head${isChosen ? " chosen" : ""}${second ? " second" : ""}`;
      if (cell.button.className !== dress) cell.button.className = dress;
      const selected = String(isChosen || second);
      if (cell.button.getAttribute("aria-selected") !== selected) cell.button.setAttribute("aria-selected", selected);
      if (isChosen) this.rove(cell);
    }
    for (const button of byId("roles").children) {
      button.setAttribute("aria-pressed", String(button.dataset.role === state.role));
      button.firstChild.style.backgroundColor = roleColour(button.dataset.role, look.dark);
    }
    this.paint();
    paintSpread(this.explorer, this.cells);
  }

  paint() {
    const { explorer, size } = this;
    const [top, bottom] = this.span;
    const context = sharpen(this.canvas, this.width, bottom - top);
    this.canvas.style.top = `${top + MARGIN}px`;
    context.clearRect(0, 0, this.width, bottom - top);
    context.translate(0, -top);
    for (const cell of this.shown) {
      context.globalAlpha = explorer.state.role && explorer.state.role !== cell.head.role ? 0.16 : 1;
      const picture = this.pictureOf(cell);
      context.imageSmoothingEnabled = true;
      if (picture) context.drawImage(picture, cell.x, cell.y, size, size);
      else {
        context.fillStyle = explorer.look.hidden;
        context.fillRect(cell.x, cell.y, size, size);
      }
      context.globalAlpha = 1;
      if (cell.caption) this.write(context, { text: cell.caption, x: cell.x + size / 2, y: cell.y + size + 9 });
    }
    for (const label of this.labels) this.write(context, label);
  }

  write(context, { text, x, y, end }) {
    context.font = this.explorer.look.tinyFont;
    context.fillStyle = this.explorer.look.soft;
    context.textAlign = end ? "right" : "center";
    context.textBaseline = "middle";
    context.fillText(text, x, y);
  }

  pictureOf(cell) {
    const thumbs = this.thumbs.get(cell.attention.name);
    if (!thumbs) return null;
    const key = `${this.explorer.look.dark}`;
    const { cache } = cell;
    if (cache.pictured === key) return cache.picture;
    const { size, values } = thumbs;
    const colours = tint(cell.head.role, this.explorer.look.dark);
    cache.picture = makeBitmap(size, size, (i) => colours[values[cell.headIndex * size * size + i]]);
    cache.pictured = key;
    return cache.picture;
  }
}

/** A measure under a small picture. */
function measured(value, sort) {
  if (!Number.isFinite(value)) return "–";
  return value.toFixed(sort === "distance" ? 1 : sort === "effect" ? 3 : 2).replace("-", "−");
}

function before(head, other, sort) {
  if (sort === "role")
    return String(head.role).localeCompare(String(other.role)) || (other.score ?? 0) - (head.score ?? 0);
  const value = (head) => head[sort] ?? -Infinity;
  return value(other) === value(head) ? 0 : value(other) - value(head);
}

/** The term that explains a tab. */
function groupTerm({ kind, part }) {
  return kind !== "cross" && ["encoder", "decoder"].includes(part) ? part : kind;
}

/** The name of a tab. */
function groupName(group) {
  if (group.kind === "cross") return say("cross");
  return group.part === "encoder" || group.part === "decoder" ? say(group.part) : group.part || say("self");
}
