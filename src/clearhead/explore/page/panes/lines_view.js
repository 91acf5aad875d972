// Lines: the tokens looked at above, those that look below, and between them lines as thick as the weights.

import { clamp, formatError, formatNumber, isExact, oddText } from "../data/number_format.js";
import { lineColours } from "../draw/colours.js";
import { byId, isOwnKey, make, makeButton, makeRoving, makeSvg, refill } from "../draw/elements.js";
import {
  fullWeight,
  LEAST_WEIGHT,
  listLines,
  MOST_TOKENS,
  makeCurve,
  meanWeights,
  roomForNumbers,
  thickestLine,
} from "../draw/line_curves.js";
import { say } from "../words/languages.js";
import { headName } from "./captions.js";
import { explainedToken, noteToken } from "./definitions.js";
import { hideTip, noteOf, showTip } from "./tips.js";

const LETTERS = 20; // of a token's label

/** The sets of heads that are drawn, each as the mean of its heads: one, or two that are compared. */
export function drawnHeads(explorer) {
  const { name, head, other, averaged } = explorer.state;
  const selected = { name, head };
  if (other) return [[selected], [other]];
  if (averaged === "layer") return [explorer.attention.heads.map((summary) => ({ name, head: summary.number }))];
  const { role } = explorer;
  if (averaged !== "role" || !role) return [[selected]];
  const shape = explorer.shapeOf(explorer.attention);
  const same = explorer.group.attentions.filter((attention) => explorer.shapeOf(attention) === shape);
  return [
    same.flatMap((attention) =>
      attention.heads.filter((each) => each.role === role).map((each) => ({ name: attention.name, head: each.number })),
    ),
  ];
}

export class LinesView {
  constructor(explorer, pin, arrived) {
    Object.assign(this, { explorer, pin, arrived });
    this.turn = 0;
    const makeRow = (side) => make("div", { class: `line-row ${side}`, role: "group" });
    this.rows = [makeRow("above"), makeRow("below")]; // keys, queries
    this.titles = ["above", "below"].map((side) => make("p", { class: `line-title ${side}` }));
    this.all = makeSvg("g", { class: "all-lines" });
    this.selected = makeSvg("g", { class: "chosen-lines" });
    this.numbers = makeSvg("g", { class: "line-numbers" });
    this.svg = makeSvg("svg", { class: "line-curves", "aria-hidden": "true" }, this.all, this.selected, this.numbers);
    this.stage = make(
      "div",
      { class: "line-stage" },
      this.titles[0],
      this.rows[0],
      this.svg,
      this.rows[1],
      this.titles[1],
    );
    this.message = make("div", { class: "line-message" });
    this.element = make("div", { class: "map-view lines-view" }, this.stage, this.message);
    this.listen();
  }

  /** Shows these sets of heads once their weights are there. */
  async show(sets) {
    const { explorer } = this;
    const { attention } = explorer;
    const turn = ++this.turn;
    const { weights } = explorer;
    this.axes = [attention.keys, attention.queries].map((name) => explorer.axes[name]);
    this.first = [attention.first[1], attention.first[0]];
    this.counts = [attention.counts[1], attention.counts[0]];
    this.sets = sets;
    this.data = null;
    if (Math.max(...attention.counts) > MOST_TOKENS)
      return this.fail(
        say("linesTooLong", { most: MOST_TOKENS, queries: attention.counts[0], keys: attention.counts[1] }),
      );
    this.say(say("loading"));
    try {
      const matrices = await Promise.all(
        sets.map((heads) => Promise.all(heads.map((headId) => explorer.weights.matrixOf(headId)))),
      );
      if (turn !== this.turn || weights !== explorer.weights) return;
      if (
        matrices
          .flat()
          .some(
            (matrix) =>
              matrix.rows !== attention.counts[0] || matrix.columns !== attention.counts[1] || matrix.exact === false,
          )
      )
        return this.fail(say("linesUnknown"));
      this.data = matrices.map(meanWeights);
      this.lines = this.data.map(listLines);
      this.full = fullWeight(this.data);
      this.odd = this.data.some(({ values }) => values.some((weight) => oddText(weight)));
      this.say("");
    } catch (problem) {
      if (turn === this.turn) this.fail(problem.message);
    }
    this.arrived();
  }

  /** Says why there are no lines, and offers the map. */
  fail(problem) {
    const showMap = () => this.explorer.store.set({ drawing: "map" });
    this.say(problem, makeButton(say("showMap"), showMap, { class: "small" }));
    this.problem = problem;
    this.arrived();
  }

  say(text, ...more) {
    this.problem = "";
    this.stage.hidden = Boolean(text);
    this.message.hidden = !text;
    refill(this.message, make("p", { text }), ...more);
  }

  /** Draws the lines, and those of the selected tokens alone in full. */
  paint(marks) {
    if (!this.data) return;
    this.buildRows();
    this.arrange();
    this.dress(marks);
    this.drawChosen(marks);
  }

  buildRows() {
    const { axes, counts, first } = this;
    const key = [...axes.map((axis) => axis.name), ...counts, ...first, document.documentElement.lang].join("/");
    if (this.built === key && this.builtAxes === axes[0].tokens) return;
    this.built = key;
    this.builtAxes = axes[0].tokens;
    this.arranged = "";
    this.rows.forEach((row, side) => {
      const axis = axes[side];
      const name = say(side ? "linesBelow" : "linesAbove");
      this.titles[side].textContent = name;
      row.dir = axis.direction;
      row.setAttribute("aria-label", name);
      refill(
        row,
        ...Array.from({ length: counts[side] }, (_, index) => this.makeToken(axis, index + first[side], index)),
      );
    });
  }

  makeToken(axis, position, index) {
    const special = axis.special[position] ? " special" : "";
    const token = make("button", {
      type: "button",
      class: `token${special}`,
      tabindex: index ? "-1" : "0",
      text: axis.label(position, LETTERS),
      "data-place": index,
      dir: "auto",
      ...explainedToken(axis, position),
    });
    noteToken(token, `${position}: ${axis.label(position, 60)}`);
    return token;
  }

  /** Places the lines where the tokens stand; labels are upright where they would not fit beside each other. */
  arrange() {
    const { element, explorer, rows, stage, svg } = this;
    const key = [element.clientWidth, element.clientHeight, explorer.look.paper, this.turn, explorer.step].join("/");
    if (this.arranged === key) return;
    this.arranged = key;
    stage.classList.remove("upright");
    stage.classList.toggle("upright", stage.scrollWidth > element.clientWidth + 1);
    const centres = rows.map((row) => Array.from(row.children, (token) => token.offsetLeft + token.offsetWidth / 2));
    const pitches = centres.map((places) =>
      places.length > 1 ? Math.abs(places.at(-1) - places[0]) / (places.length - 1) : Infinity,
    );
    this.places = {
      above: centres[0],
      below: centres[1],
      height: svg.clientHeight,
      room: roomForNumbers(this.sets.length),
      thick: thickestLine(Math.min(...pitches)),
      full: this.full,
    };
    const hidden = explorer.stepped ? explorer.step - this.first[1] : Infinity;
    this.drawn = this.lines.map((lines) => lines.filter(({ q }) => q < hidden));
    refill(
      this.all,
      ...this.drawn.flatMap((lines, set) =>
        lines.map((line) => makeCurve(line, this.places, this.colourOf(set, line))),
      ),
    );
  }

  /** Of one set of heads, a hue for each key; of two that are compared, the colours of first and second. */
  colourOf(set, { k }) {
    const { look } = this.explorer;
    if (this.sets.length > 1) return set ? look.second : look.accent;
    return lineColours(this.counts[0], look.dark)[k];
  }

  dress({ queries, keys, cursor, faded }) {
    this.rows.forEach((row, side) => {
      const [marked, under] = side ? [queries, cursor?.q] : [keys, cursor?.k];
      const pins = this.explorer.pinnedOn(this.axes[side]).map((position) => position - this.first[side]);
      const pinned = new Set(pins.filter((index) => marked.has(index)));
      for (const [index, token] of Array.from(row.children).entries()) {
        token.classList.toggle("pinned", pinned.has(index));
        token.classList.toggle("current", marked.has(index) && !pinned.has(index));
        token.classList.toggle("cursor", under === index);
        token.classList.toggle("faded", side === 1 && faded(index));
        token.setAttribute("aria-pressed", String(pinned.has(index)));
      }
    });
  }

  /** Whether a line belongs to what is pointed at, or else to what is pinned; null if nothing is. */
  chooser({ queries, keys, cursor }) {
    const [q, k] = [cursor?.q ?? null, cursor?.k ?? null];
    if (q !== null || k !== null) return (line) => (q === null || line.q === q) && (k === null || line.k === k);
    return queries.size || keys.size ? (line) => queries.has(line.q) || keys.has(line.k) : null;
  }

  drawChosen(marks) {
    const chooses = this.chooser(marks);
    this.all.classList.toggle("dim", Boolean(chooses));
    const selectedLines = chooses ? this.drawn.map((lines) => lines.filter(chooses)) : [];
    refill(
      this.selected,
      ...selectedLines.flatMap((lines, set) =>
        lines.map((line) => makeCurve(line, this.places, this.colourOf(set, line))),
      ),
    );
    refill(this.numbers, ...selectedLines.flatMap((lines, set) => this.numbersOf(lines, set, marks)));
  }

  /**
   * Numbers at the other ends of the chosen lines: the mean weights of several queries, or the sums over several keys.
   * With both sides selected, those of the queries.
   */
  numbersOf(lines, set, { queries, keys, cursor }) {
    const pointed = Number.isInteger(cursor?.q) || Number.isInteger(cursor?.k);
    const fromQueries = pointed ? Number.isInteger(cursor.q) : queries.size > 0 || !keys.size;
    const from = pointed ? [fromQueries ? cursor.q : cursor.k] : [...(fromQueries ? queries : keys)];
    const ends = new Set(
      lines.filter((line) => !fromQueries || from.includes(line.q)).map((line) => (fromQueries ? line.k : line.q)),
    );
    const { columns, values } = this.data[set];
    const weightOf = (end) =>
      from.reduce((sum, start) => sum + values[fromQueries ? start * columns + end : end * columns + start], 0) /
      (fromQueries ? from.length : 1);
    const { above, below, height } = this.places;
    const compared = this.sets.length > 1;
    return [...ends]
      .map((end) => [end, weightOf(end)])
      .map(([end, weight]) =>
        makeSvg("text", {
          x: Math.round((fromQueries ? above : below)[end] * 10) / 10,
          y: fromQueries ? 11 + set * 12 : height - 3 - (compared ? (1 - set) * 12 : 0),
          "text-anchor": "middle",
          "font-size": 10.5,
          fill: compared ? this.colourOf(set, { k: 0 }) : this.explorer.look.ink,
          text: formatNumber(weight, 2),
        }),
      );
  }

  listen() {
    const cellOf = (event) => {
      const token = event.target.closest?.(".token");
      if (!token) return null;
      const index = Number(token.dataset.place);
      return token.parentNode === this.rows[1] ? { q: index, k: null } : { q: null, k: index };
    };
    const point = (cursor) => this.explorer.store.set({ cursor });
    for (const row of this.rows) {
      row.addEventListener("click", (event) => cellOf(event) && this.pin(cellOf(event)));
      row.addEventListener("pointerover", (event) => point(cellOf(event)));
      row.addEventListener("pointerleave", () => point(null));
      row.addEventListener("focusout", () => point(null));
      makeRoving(row);
      row.addEventListener("keydown", (event) => this.changeRow(event, row));
      row.addEventListener("focusin", (event) => {
        if (!event.target.matches(":focus-visible")) return;
        point(cellOf(event));
        byId("live").textContent = this.describe(cellOf(event));
      });
    }
    this.svg.addEventListener("pointerover", (event) => this.tellLine(event));
    this.svg.addEventListener("pointerleave", () => {
      hideTip();
      point(null);
    });
  }

  /** The tip of the line under the pointer. */
  tellLine(event) {
    const path = event.target.closest?.("path");
    if (!path) return;
    const [q, k] = [Number(path.dataset.q), Number(path.dataset.k)];
    this.explorer.store.set({ cursor: { q, k } });
    const [key, query] = [this.axes[0].label(k + this.first[0], 32), this.axes[1].label(q + this.first[1], 32)];
    const notes = this.data.map(({ values, columns }) => noteOf(query, key, values[q * columns + k]));
    showTip(
      notes.map((note, set) => ({ ...note, head: headName(this.explorer, this.sets[set][0]) })),
      [event.clientX, event.clientY],
    );
  }

  /** The keys up and down go to the other row. */
  changeRow(event, row) {
    const other = { ArrowUp: this.rows[0], ArrowDown: this.rows[1] }[event.key];
    if (!other || !isOwnKey(event, row)) return;
    event.preventDefault();
    event.stopPropagation();
    const index = [...row.children].indexOf(document.activeElement);
    if (other !== row) other.children[clamp(0, index, other.children.length - 1)].focus();
  }

  /** The lines of a token in words, the largest weights first. */
  describe({ q, k }) {
    const lines = this.drawn[0].filter((line) => (q === null ? line.k === k : line.q === q)).reverse();
    const [near, far] = q === null ? [0, 1] : [1, 0];
    const label = (side, index) => this.axes[side].label(index + this.first[side], 24);
    const parts = lines
      .slice(0, 6)
      .map((line) => `${label(far, far ? line.q : line.k)} ${formatNumber(line.weight, 2)}`);
    const shown = parts.join(", ") || say("linesNone", { least: LEAST_WEIGHT });
    return `${label(near, q ?? k)} ${say(q === null ? "lookedAtBy" : "looksAt")}: ${shown}`;
  }

  /** What the foot of the page says about the lines. */
  get note() {
    if (!this.data) return "";
    const parts = [say(this.lines.some((lines) => lines.length) ? "linesLeast" : "linesNone", { least: LEAST_WEIGHT })];
    const error = Math.max(
      ...this.sets.flat().map((headId) => this.explorer.source.precision(headId.name, headId.head)),
    );
    parts.push(isExact(error, this.counts[0]) ? say("exact") : say("rounded", { error: formatError(error) }));
    if (this.odd) parts.push(say("oddNote"));
    return parts.join(" · ");
  }
}
