// The centre pane: one map or two side by side, lines, or the picture; the cell under the pointer; the colour scale.

import { afterQuiet, byId, make, makeButton, oncePerFrame, refill } from "../draw/elements.js";
import { Viewport } from "../state/viewport.js";
import { say, sayRole } from "../words/languages.js";
import { captionOf, headTitle } from "./captions.js";
import { announce } from "./export_menu.js";
import { drawnHeads, LinesView } from "./lines_view.js";
import { drawLegend, drawLineLegend } from "./map_legend.js";
import { MapView } from "./map_view.js";
import { makePicture } from "./picture_panel.js";
import { cellNote, hideTip, resolutionNote, showTip, stateNote } from "./tips.js";

export class Centre {
  constructor(explorer) {
    this.explorer = explorer;
    this.views = [];
    this.picture = null;
    this.stale = true;
    this.repaint = oncePerFrame(() => this.paint());
    this.lines = new LinesView(
      explorer,
      (cell) => this.pin(this.views[0], cell),
      () => this.repaint(),
    );
    this.keepView = afterQuiet(120, () => this.rememberView());
    this.callbacks = {
      cursor: (view, cell, screenPoint, keyed) => this.placing || this.point(view, cell, screenPoint, keyed),
      pin: (view, cell) => this.pin(view, cell),
      moved: () => {
        this.unsaved = true;
        for (const view of this.views) view.tiles.failed.clear();
        this.repaint();
        this.keepView();
      },
    };
    new ResizeObserver(() => this.repaint()).observe(byId("maps"));
    byId("zoom-in").addEventListener("click", () => this.zoom(1.6));
    byId("zoom-out").addEventListener("click", () => this.zoom(1 / 1.6));
    byId("zoom-fit").addEventListener("click", () => this.fit());
  }

  renew() {
    this.stale = true;
    this.viewport = null;
    this.build();
  }

  /** Whether the centre shows the picture instead of the matrix. */
  get pictured() {
    const { pictured, state } = this.explorer;
    return Boolean(pictured) && state.drawing !== "map";
  }

  /** Whether the centre shows lines instead of the matrix. */
  get lined() {
    const { pictured, state } = this.explorer;
    return !pictured && state.drawing === "lines";
  }

  /** The drawing after the current one: matrix, then lines of texts, or a picture or sound. */
  get nextDrawing() {
    if (this.explorer.pictured) return this.pictured ? "map" : "picture";
    return this.lined ? "map" : "lines";
  }

  get heads() {
    const { name, head, other } = this.explorer.state;
    return other ? [{ name, head }, other] : [{ name, head }];
  }

  build() {
    const { explorer, heads } = this;
    const [attention] = heads.map((headId) => explorer.attentionOf(headId.name));
    const shape = explorer.shapeOf(attention);
    if (this.shape !== shape || !this.viewport) {
      this.shape = shape;
      this.viewport = new Viewport(...attention.counts);
      this.stale = true;
    }
    this.showDrawings();
    byId("map-foot").classList.toggle("long", Math.max(...attention.counts) > 64); // it says more, and must not jump
    const shown = new Set(heads.map((headId) => explorer.weights.tilesOf(headId.name, headId.head)));
    for (const tiles of explorer.weights.tiles.values()) if (!shown.has(tiles)) tiles.rest();
    while (this.views.length < heads.length) this.views.push(new MapView(explorer, this.callbacks));
    this.views.length = heads.length;
    byId("maps").classList.toggle("two", heads.length > 1 && !this.lined);
    this.place(heads);
    this.repaint();
  }

  /** The switch between matrix, lines and picture, and which heads lines are of. */
  showDrawings() {
    const { explorer, lined, pictured } = this;
    const shown = pictured ? "picture" : lined ? "lines" : "map";
    for (const button of byId("drawings").querySelectorAll("button")) {
      button.hidden = button.value === (explorer.pictured ? "lines" : "picture");
      button.setAttribute("aria-pressed", String(button.value === shown));
      if (button.value === "picture")
        button.textContent = say(explorer.pictured?.kind === "audio" ? "sound" : "picture");
    }
    byId("map-foot").classList.toggle("pictured", pictured);
    byId("map-foot").classList.toggle("lined", lined);
    const { role } = explorer;
    byId("averaged-label").hidden = !lined || Boolean(explorer.state.other);
    byId("averaged").value = explorer.state.averaged === "role" && !role ? "head" : explorer.state.averaged;
    byId("averaged-role").hidden = byId("averaged-role").disabled = !role;
    byId("averaged-role").textContent = role ? say("meanRole", { role: sayRole(role) }) : "";
  }

  /** Places the maps in the page, and keeps the keyboard focus. */
  place(heads) {
    const held = document.activeElement;
    this.placing = this.views.some((view) => view.canvas === held);
    const figures = heads.map((headId, i) => this.figure(headId, i));
    if (this.lined) this.placeLines();
    else refill(byId("maps"), ...figures);
    for (const view of this.views)
      view.tiles.beside = this.views.filter((neighbour) => neighbour !== view).map((neighbour) => neighbour.tiles);
    if (this.placing) held.focus({ preventScroll: true });
    this.placing = false;
  }

  figure(headId, i) {
    const { explorer, views, viewport } = this;
    const attention = explorer.attentionOf(headId.name);
    const other = explorer.shapeOf(attention) !== this.shape;
    views[i].show(headId, other ? new Viewport(...attention.counts) : viewport);
    views[i].canvas.setAttribute(
      "aria-label",
      say("mapLabel", { head: headTitle(explorer, headId), queries: attention.counts[0], keys: attention.counts[1] }),
    );
    const close = explorer.state.other && i === 1;
    const caption = make(
      "figcaption",
      {},
      make("span", { class: "caption" }, ...captionOf(explorer, [headId])),
      i === 0 && this.comparable ? this.compareButton() : null,
      close ? this.closeButton() : null,
    );
    let body = views[i].element;
    if (this.pictured) {
      this.pictures ??= [];
      this.pictures[i] = makePicture(explorer, headId);
      body = make("div", { class: "map-view picture-box" }, this.pictures[i].element);
    }
    return make("figure", { class: i ? "second" : "" }, caption, body);
  }

  /** The lines of the chosen heads, of two heads in two colours; placed once, so that focus and scrolling stay. */
  placeLines() {
    const { explorer, lines } = this;
    const sets = drawnHeads(explorer);
    const key = JSON.stringify([sets, document.documentElement.lang, explorer.state.rows]);
    if (this.lineKey !== key || this.lineWeights !== explorer.weights) lines.show(sets);
    Object.assign(this, { lineKey: key, lineWeights: explorer.weights });
    const compared = sets.length > 1;
    const titles = sets.map((heads, i) =>
      make("span", { class: `caption${compared ? ` line-head${i}` : ""}` }, ...captionOf(explorer, heads)),
    );
    if (sets[0].length > 1)
      titles.push(make("span", { class: "fact", text: say("meanBeside", { head: explorer.state.head }) }));
    this.lineFigure ??= make("figure", {}, make("figcaption"), lines.element);
    refill(
      this.lineFigure.firstChild,
      make("span", { class: "captions" }, ...titles),
      compared ? this.closeButton() : this.comparable && this.compareButton(),
    );
    if (byId("maps").firstChild !== this.lineFigure) refill(byId("maps"), this.lineFigure);
  }

  /** Whether a second head could be chosen. */
  get comparable() {
    const { group, state } = this.explorer;
    return !state.other && group.attentions.flatMap((each) => each.heads).length > 1;
  }

  closeButton() {
    const { store } = this.explorer;
    const options = { class: "small", "aria-label": say("stopCompare"), title: say("stopCompare") };
    return makeButton("×", () => store.set({ other: null }), options);
  }

  /** Chooses a second head with the next click on one, for those who have no Shift key. */
  compareButton() {
    const { explorer } = this;
    const { state, store } = explorer;
    const pick = () => store.set({ picking: !state.picking });
    const options = { class: "small compare", id: "compare", title: say("compareHint") };
    return makeButton(say("compare"), pick, { ...options, "aria-pressed": String(state.picking) });
  }

  /** Says whether the next click on a head chooses the second. */
  showPicking() {
    const { picking } = this.explorer.state;
    byId("compare")?.setAttribute("aria-pressed", String(picking));
    announce(picking ? say("pickSecond") : "");
  }

  paint() {
    const { explorer, views } = this;
    if (!byId("maps").firstChild) return;
    if (this.pictured) return this.paintPictures();
    const marks = this.marks();
    if (this.lined) return this.paintLines(marks);
    for (const [i, view] of views.entries()) {
      if (this.stale && i === 0) {
        view.layout(explorer.look);
        const { view: window } = explorer.state;
        if (window) view.viewport.show(this.relative(window, -1));
        this.stale = false;
      }
      view.paint(explorer.look, marks, explorer.pictures);
      view.note.textContent = stateNote(view);
      view.note.hidden = !view.note.textContent;
      view.note.classList.toggle("problem", Boolean(view.tiles.problem));
    }
    this.paintLegend(views[0]);
    byId("resolution").textContent = resolutionNote(views[0]);
    if (views[0].tiles.base) this.markReady();
    if (this.tipped) this.followTip();
  }

  /** Says once that something is painted. */
  markReady() {
    if (document.documentElement.dataset.ready) return;
    document.documentElement.dataset.ready = "map";
    performance.mark("clearhead:first-map");
    this.explorer.store.emit("painted");
  }

  paintLines(marks) {
    const { lines } = this;
    lines.paint(marks);
    byId("resolution").textContent = lines.note;
    this.legend = null;
    if (!lines.data) refill(byId("legend"));
    else drawLineLegend(lines.full, lines.places.thick);
    if (lines.data || lines.problem) this.markReady();
  }

  /** After the map has moved: the tip stays with a cell that keys chose, or says what is under the pointer now. */
  followTip() {
    const { view, cell, screenPoint, keyed } = this.tipped;
    if (!this.views.includes(view)) return this.point(view, null, null);
    if (keyed) return this.tell({ ...this.tipped, screenPoint: view.screenPlace(cell) });
    const now = view.under(...view.place({ clientX: screenPoint[0], clientY: screenPoint[1] }));
    if (now?.q !== cell.q || now?.k !== cell.k) return this.point(view, now, screenPoint);
    return this.tell(this.tipped);
  }

  async paintPictures() {
    const { heads, explorer } = this;
    const { pictured: axis, pictureWords: words } = explorer;
    for (const [i, picture] of this.pictures.slice(0, heads.length).entries()) {
      const shown = await explorer.shownOn(axis, heads[i]);
      const written = words && (await explorer.shownOn(words, heads[i]));
      const matrix = words && (await explorer.weights.matrixOf(heads[i]).catch(() => null));
      if (picture.axis === axis) picture.update(shown, written, matrix);
    }
    this.legend = null;
    const most = this.pictures[0].drawn?.most;
    if (most) drawLegend(explorer, explorer.curveOf(explorer.attention), ["0", most.toFixed(2)], true);
    else refill(byId("legend"));
    byId("resolution").textContent = "";
    this.markReady();
  }

  /** Queries and keys to mark, counted from the first of the attention. */
  marks() {
    const { explorer } = this;
    const { attention, state } = explorer;
    const placed = (axis, side) =>
      new Set(
        explorer
          .pinnedOn(explorer.axes[axis])
          .map((position) => position - attention.first[side])
          .filter((index) => index >= 0 && index < attention.counts[side]),
      );
    const self = explorer.isInward(attention);
    const at = state.direction === "at";
    const queries = self && !at ? new Set() : placed(attention.queries, 0);
    const keys = self && at ? new Set() : placed(attention.keys, 1);
    const steps = explorer.stepped && state.step !== null ? explorer.step - attention.first[0] : null;
    if (steps !== null && !queries.size && at) queries.add(steps - 1);
    return { queries, keys, cursor: state.cursor, steps, faded: (query) => steps !== null && query >= steps };
  }

  point(view, cell, screenPoint, keyed = false) {
    this.tipped = cell && cell.q !== null && cell.k !== null ? { view, cell, screenPoint, keyed } : null;
    this.explorer.store.set({ cursor: cell });
    if (this.tipped) this.tell(this.tipped);
    else hideTip();
  }

  tell({ view, cell, screenPoint }) {
    const notes = this.views.map((mapView) => cellNote(this.explorer, mapView, cell));
    showTip(notes, screenPoint);
    if (document.activeElement === view.canvas) byId("live").textContent = notes.map((note) => note.spoken).join("; ");
  }

  pin(view, { q, k }) {
    const { explorer } = this;
    const { attention, queries, keys } = view;
    const byKey = q === null || (k !== null && explorer.state.direction === "by");
    if (byKey) explorer.pin(keys.name, k + attention.first[1]);
    else explorer.pin(queries.name, q + attention.first[0]);
    if (q === null) explorer.store.set({ direction: "by" });
    if (k === null) explorer.store.set({ direction: "at" });
  }

  zoom(factor) {
    if (this.lined) return;
    const { cursor } = this.explorer.state;
    if (cursor && cursor.q !== null && cursor.k !== null) {
      this.viewport.zoom(factor, this.viewport.x(cursor.k + 0.5), this.viewport.y(cursor.q + 0.5));
    } else this.viewport.zoom(factor);
    this.callbacks.moved();
  }

  fit() {
    if (this.lined) return;
    this.viewport.fit();
    this.callbacks.moved();
  }

  pan(across, down) {
    if (this.lined) return;
    this.viewport.pan(across, down);
    this.callbacks.moved();
  }

  /** Centres a token, zoomed in enough to read it. */
  centreOn(axis, position) {
    const { attention } = this.explorer;
    const { viewport } = this;
    if (this.pictured || this.lined) return this.explorer.point(this.explorer.axes[axis], position);
    const [query, key] = viewport.centre;
    const fit = viewport.fitCell;
    if (Math.min(...viewport.cell) < 12 && Math.min(...fit) < 12) viewport.zoom(24 / Math.min(...viewport.cell));
    const q = axis === attention.queries ? position - attention.first[0] + 0.5 : query;
    const k = axis === attention.keys ? position - attention.first[1] + 0.5 : key;
    viewport.centreOn(q, k);
    this.callbacks.moved();
  }

  rememberView() {
    if (!this.unsaved) return;
    this.unsaved = false;
    const { viewport } = this;
    this.explorer.store.set({ view: viewport.fitted ? null : this.relative(viewport.exactWindow, 1) });
  }

  /** Converts document positions to places in the map. */
  relative({ q0, q1, k0, k1 }, sign) {
    const [query, key] = this.explorer.attention.first;
    return { q0: q0 + sign * query, q1: q1 + sign * query, k0: k0 + sign * key, k1: k1 + sign * key };
  }

  paintLegend(view) {
    const { explorer } = this;
    const legend = byId("legend");
    if (!view.tiles.base) {
      this.legend = null;
      return refill(legend);
    }
    const curve = explorer.curveOf(view.attention);
    const { blocks, exact, tops, hides, odd } = view.plot.resolution;
    const ends = view.tiles.ends(curve, blocks);
    const single = (exact || tops) && blocks[0] * blocks[1] === 1;
    const { lang } = document.documentElement;
    const key = [explorer.look.scale.key, curve, ends, single, hides, odd, lang].join("/");
    if (this.legend === key) return;
    this.legend = key;
    drawLegend(explorer, curve, ends, single, { hides, odd });
  }
}
