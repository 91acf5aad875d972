// Explorer: the scene, the selection, and what is derived from both; panes read it and change it.

import { combineLines, shadeOf } from "../data/token_sums.js";
import { Axis } from "../data/tokens.js";
import { WeightCache } from "../data/weight_cache.js";
import { Ablation } from "./ablation.js";

const NO_ROLES = ["none of these", "no numbers"];

export class Explorer {
  constructor(scene, source, store) {
    this.source = source;
    this.store = store;
    this.look = null; // colours, scale and fonts of the theme
    this.ablation = new Ablation(this);
    this.renew(scene);
  }

  /** Sets the scene: at the start, and after another text. */
  renew(scene) {
    this.scene = scene;
    this.axes = Object.fromEntries(Object.entries(scene.axes).map(([name, axis]) => [name, new Axis(name, axis)]));
    const attentionOf = (name) => this.attentionOf(name);
    this.weights = new WeightCache(this.source, attentionOf, () => this.store.emit("weights"));
    this.effects = null;
    this.noEffects = false;
    this.continued = null; // the answer that goes on from another token
    this.ablation.request = null;
    this.groups = groupAttentions(scene.attentions);
    this.nameRows();
    this.loadPictures();
  }

  loadPictures() {
    this.pictures = new Map(); // by axis, once loaded
    const { pictures } = this;
    for (const axis of Object.values(this.axes).filter(({ pictured }) => pictured)) {
      const image = new Image();
      image.onload = () => {
        pictures.set(axis.name, image);
        this.store.emit("pictures");
      };
      image.src = axis.picture;
    }
  }

  /** Shows another scene, once this promise brings it. */
  open(coming) {
    this.coming = coming;
    this.store.emit("coming");
  }

  get state() {
    return this.store.values;
  }

  get live() {
    return Boolean(this.scene.live && this.source.live);
  }

  /** Whether the chosen heads can be switched off: by the model, or from answers in the file. */
  get switchable() {
    const { name, head, other } = this.state;
    return this.live || Boolean(!other && this.scene.without?.[name]?.[head]);
  }

  attentionOf(name) {
    return this.scene.attentions.find((attention) => attention.name === name);
  }

  get attention() {
    return this.attentionOf(this.state.name);
  }

  /** Whether queries and keys of an attention are the same text. */
  isInward(attention) {
    return this.axes[attention.queries].reads === this.axes[attention.keys].reads;
  }

  /** What two maps must share to stand side by side. */
  shapeOf(attention) {
    return `${this.axes[attention.queries].reads}/${attention.keys}/${attention.counts}`;
  }

  headOf({ name, head }) {
    return this.attentionOf(name).heads.find((candidate) => candidate.number === head);
  }

  /** The role of the chosen head; null if it has none. */
  get role() {
    const { role } = this.headOf(this.state);
    return NO_ROLES.includes(role) ? null : role;
  }

  get group() {
    return this.groups.find((group) => group.attentions.includes(this.attention));
  }

  /** Linear for small maps, a square root for large ones, unless chosen. */
  curveOf(attention) {
    if (this.state.curve !== "auto") return this.state.curve;
    return Math.max(...attention.counts) <= 64 ? "linear" : "root";
  }

  /** The picture or sound on either side of the attention, the answering side first; null if there is none. */
  get pictured() {
    return [this.answered, this.asked].find(({ pictured }) => pictured) ?? null;
  }

  /** The words on the other side of a picture or sound; null where it looks at itself. */
  get pictureWords() {
    const { attention, axes, pictured } = this;
    const other =
      pictured && [attention.queries, attention.keys].map((name) => axes[name]).find((axis) => axis !== pictured);
    return other && !other.pictured ? other : null;
  }

  /** Requests the effect of each head of this scene on the loss once, and stores it in the heads. */
  async findEffects() {
    const { scene } = this;
    const heads = scene.attentions.flatMap((attention) => attention.heads);
    if (!this.live || heads.some((head) => Number.isFinite(head.effect))) return;
    this.effects ??= this.source.effects();
    const effects = await this.effects;
    for (const attention of scene.attentions) {
      for (const head of attention.heads) head.effect = effects?.[attention.name]?.[head.number] ?? null;
    }
    if (!effects && scene === this.scene) this.noEffects = true;
  }

  // The names of a decoder's rows: at each place it has read one token and writes the next; rows show one of them

  /** The axes of the tokens "written" and "read" at the queries of an attention; null where there is no choice. */
  rowAxes(attention) {
    const { reads } = this.axes[attention.queries];
    const written = Object.values(this.axes).find((axis) => axis.reads === reads && axis.name !== reads);
    return written && this.axes[reads] ? { written: written.name, read: reads } : null;
  }

  /** Names rows as chosen; by default by tokens written in cross-attention, else by tokens read. */
  nameRows() {
    for (const attention of this.scene.attentions) {
      attention.usual ??= attention.queries;
      attention.queries = this.rowAxes(attention)?.[this.state.rows] ?? attention.usual;
    }
  }

  /** The current naming of rows, "written" or "read"; null if there is no choice. */
  get rows() {
    const names = Object.entries(this.rowAxes(this.attention) ?? {});
    return names.find(([, axis]) => axis === this.attention.queries)?.[0] ?? null;
  }

  // Choosing heads

  select(name, head) {
    const before = this.attention;
    const after = this.attentionOf(name);
    const same = before && this.shapeOf(before) === this.shapeOf(after);
    const { other } = this.state;
    this.store.set({ name, head, view: same ? this.state.view : null, cursor: null });
    if (other && (!same || (other.name === name && other.head === head))) this.store.set({ other: null });
  }

  compare(name, head) {
    const { other } = this.state;
    const again = other && other.name === name && other.head === head;
    const itself = this.state.name === name && this.state.head === head;
    this.store.set({ other: again || itself ? null : { name, head } });
  }

  moveHead(by) {
    const heads = this.attention.heads;
    const index = heads.findIndex((candidate) => candidate.number === this.state.head);
    this.select(this.state.name, heads[(index + by + heads.length) % heads.length].number);
  }

  moveLayer(by) {
    const { attentions } = this.group;
    const next = attentions[(attentions.indexOf(this.attention) + by + attentions.length) % attentions.length];
    const index = this.attention.heads.findIndex((candidate) => candidate.number === this.state.head);
    this.select(next.name, next.heads[Math.min(index, next.heads.length - 1)].number);
  }

  openGroup(group) {
    if (!group || group === this.group) return;
    const layer = group.attentions.find((attention) => attention.layer === this.attention.layer) ?? group.attentions[0];
    const head = layer.heads.find((candidate) => candidate.number === this.state.head) ?? layer.heads[0];
    this.select(layer.name, head.number);
  }

  compareNext() {
    if (this.state.other) return this.store.set({ other: null });
    const heads = this.attention.heads;
    const index = heads.findIndex((candidate) => candidate.number === this.state.head);
    if (heads.length > 1) this.compare(this.state.name, heads[(index + 1) % heads.length].number);
  }

  // Pinning tokens

  /** Pins or unpins a token. In cross-attention its side sets the direction. */
  pin(axis, position) {
    const { pins } = this.state;
    const real = this.axes[axis].reads;
    const left = pins.filter((pin) => pin.axis !== real || pin.position !== position);
    const { queries, keys } = this.attention;
    const patch = { pins: left.length < pins.length ? left : [...pins, { axis: real, position }] };
    if (queries !== keys && axis === queries) patch.direction = "at";
    if (queries !== keys && axis === keys) patch.direction = "by";
    this.store.set(patch);
  }

  /** Pins all pieces of a word, or unpins them if all are pinned. */
  pinWord(axis, positions) {
    const pinned = new Set(this.pinnedOn(this.axes[axis]));
    const all = positions.every((position) => pinned.has(position));
    for (const position of positions) if (pinned.has(position) === all) this.pin(axis, position);
  }

  unpin() {
    this.store.set({ pins: [] });
  }

  /** The pinned positions of an axis; tokens that a decoder writes and reads at one place count as one. */
  pinnedOn(axis) {
    return this.state.pins.filter((pin) => pin.axis === axis.reads).map((pin) => pin.position);
  }

  /** The axis of the selected tokens, and below the axis of their weights. */
  get asked() {
    return this.axes[this.state.direction === "at" ? this.attention.queries : this.attention.keys];
  }

  get answered() {
    return this.axes[this.state.direction === "at" ? this.attention.keys : this.attention.queries];
  }

  /** The tokens that the token pane is about: pinned ones, else the one under the cursor, else that of the step. */
  get subject() {
    const { direction, cursor } = this.state;
    const side = direction === "at" ? 0 : 1;
    const first = this.attention.first[side];
    const end = first + this.attention.counts[side];
    const here = (position) => position >= first && position < end;
    const pinned = this.pinnedOn(this.asked).filter(here);
    if (pinned.length) return { positions: pinned, pinned: true };
    const under = side === 0 ? cursor?.q : cursor?.k;
    if (under !== null && under !== undefined)
      return { positions: cursor.word?.filter(here) ?? [under + first], pinned: false };
    if (side === 0 && this.stepped && this.state.step !== null)
      return { positions: [Math.min(end - 1, Math.max(first, this.step - 1))], pinned: false };
    const summed = this.asked.kind === "image" && this.asked.firstPatch > first; // by [CLS]
    if (summed) return { positions: [first], pinned: false };
    const last = this.lastWord(this.asked, first, end);
    const whole = this.asked === this.pictureWords && this.pictured.kind === "image";
    return { positions: whole ? this.asked.wordAt(last).filter(here) : [last], pinned: false };
  }

  /** The weights of the selection in one head; by default the first chosen. */
  answer(headId = this.state) {
    return combineLines(this, { name: headId.name, head: headId.head }, this.state.direction, this.subject.positions);
  }

  /**
   * Shades, pins and cursor of the text of an axis.
   * @param {any} headId a head, or null for the first
   * @param {"asked" | "answered"} follow which side scrolls into view
   */
  async shownOn(axis, headId = null, follow = "answered") {
    const { state, subject } = this;
    const answer = axis === this.answered ? await this.answer(headId ?? state).catch(() => null) : null;
    const other = axis !== this.asked && axis.reads === this.asked.reads; // the same places, seen from the other side
    const pinned = new Set(other ? [] : this.pinnedOn(axis));
    const decoded = this.decodes(axis);
    const asks = axis === this.asked && (axis !== this.answered || follow === "asked");
    return {
      shade: shadeOf(this, answer),
      pinned,
      cursor: this.cursorOn(axis),
      current:
        decoded && state.step !== null
          ? this.step - 1
          : axis === this.asked && !subject.pinned
            ? subject.positions.at(-1)
            : null,
      fadedFrom: decoded ? this.step : Infinity,
      focus: asks ? subject.positions.at(-1) : (answer?.top[0]?.[0] ?? null),
    };
  }

  /** The callbacks of a text. */
  callbacksOf(axis) {
    return {
      look: () => this.look,
      pictures: () => this.pictures,
      pin: (position) => position !== null && this.pin(axis.name, position),
      point: (position) => this.point(axis, position),
      cursor: () => this.cursorOn(axis),
      pinWord: (positions) => this.pinWord(axis.name, positions),
      pointAtWord: (positions) => this.point(axis, positions.at(-1), positions),
    };
  }

  /** The position under the cursor; null if it is elsewhere. */
  cursorOn(axis) {
    const { attention, state } = this;
    if (axis.name === attention.queries && Number.isInteger(state.cursor?.q))
      return state.cursor.q + attention.first[0];
    if (axis.name === attention.keys && Number.isInteger(state.cursor?.k)) return state.cursor.k + attention.first[1];
    return null;
  }

  /** Puts the cursor on a token, or on all tokens of a word or of what was found. */
  point(axis, position, word = null) {
    if (position === null) return this.store.set({ cursor: null });
    const { attention, state } = this;
    const both = attention.queries === attention.keys;
    const asQuery = axis.name === attention.queries && (!both || state.direction === "at");
    const side = asQuery ? 0 : 1;
    const index = position - attention.first[side];
    if (!asQuery && axis.name !== attention.keys) return;
    if (index < 0 || index >= attention.counts[side]) return;
    this.store.set({ cursor: asQuery ? { q: index, k: null, word } : { q: null, k: index, word } });
  }

  /** The last token with letters or digits, not an end of text or a full stop. */
  lastWord(axis, first, end) {
    for (let position = end - 1; position >= Math.max(first, end - 40); position--) {
      if (!axis.special[position] && /[\p{L}\p{N}]/u.test(axis.label(position, 24))) return position;
    }
    return end - 1;
  }

  // Decoding

  /** Whether an axis has the tokens that were decoded, or read while decoding. */
  decodes(axis) {
    const written = this.axes[this.scene.output?.axis];
    return Boolean(written) && axis.reads === written.reads;
  }

  /** Whether the queries of this attention are the tokens that were decoded. */
  get stepped() {
    return this.decodes(this.axes[this.attention.queries]);
  }

  get steps() {
    return this.scene.output?.axis ? this.axes[this.scene.output.axis].length : 0;
  }

  get step() {
    return Math.min(this.state.step ?? this.steps, this.steps);
  }

  moveStep(by) {
    if (this.steps) this.goToStep(Math.max(1, Math.min(this.steps, this.step + by)));
  }

  /** Decodes up to this step. Over a picture or sound, what the word of the step looks at is shown instead of pins. */
  goToStep(step) {
    const follow =
      this.pictured && this.stepped
        ? { pins: this.state.pins.filter((pin) => pin.axis === this.pictured.reads), direction: "at" }
        : {};
    this.store.set({ ...follow, step: step >= this.steps ? null : step });
  }
}

/** Attentions of one kind, layer by layer: the tabs of the atlas. */
function groupAttentions(attentions) {
  const groups = new Map();
  for (const attention of attentions) {
    const key = `${attention.part}.${attention.kind}`;
    if (!groups.has(key)) groups.set(key, { key, part: attention.part, kind: attention.kind, attentions: [] });
    groups.get(key).attentions.push(attention);
  }
  return [...groups.values()];
}
