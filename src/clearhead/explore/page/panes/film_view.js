// A picture with the words that were written about it: every word has a small picture of what it looks at.

import { clamp } from "../data/number_format.js";
import { patchStrength } from "../data/token_sums.js";
import { make, makeRoving, refill, shadeElement, sharpen } from "../draw/elements.js";
import { paintOverlay } from "../draw/picture_overlay.js";
import { say } from "../words/languages.js";
import { PictureFlow } from "./picture_flow.js";

const LARGE = 92; // pixels: the most that the longer side of a film has
const SMALL = 52; // pixels: the least, where many films share a row
const AROUND = 17; // pixels around a film
const MOST = 240; // words that get a picture

export class FilmView {
  constructor(axis, words, callbacks, wordCallbacks, options) {
    Object.assign(this, { axis, words, callbacks, wordCallbacks });
    this.picture = new PictureFlow(axis, callbacks, options);
    this.strip = make("div", { class: "films", role: "group", "aria-label": say("output") });
    this.stage = make("div", { class: "stage" }, this.picture.element);
    this.element = make("div", { class: "film-view" }, this.stage, this.strip);
    this.films = [];
    this.build();
    this.listen();
  }

  get canvas() {
    return this.picture.canvas;
  }

  /** One film for each word; a word may have several tokens. */
  build() {
    for (let position = 0; position < this.words.length && this.films.length < MOST; ) {
      const positions = this.words.wordAt(position);
      const text = positions
        .map((position) => this.words.label(position, 24))
        .join("")
        .replace(/^␣+(?=.)/u, "");
      const canvas = make("canvas", { "aria-hidden": "true" });
      const word = make("span", { class: "film-word", text, dir: "auto" });
      const classes = `film${this.words.special[position] ? " special" : ""}`;
      const button = make(
        "button",
        {
          type: "button",
          class: classes,
          tabindex: position ? "-1" : "0",
          "data-film": this.films.length,
          title: text,
        },
        canvas,
        word,
      );
      this.films.push({ positions, canvas, word, button });
      position = positions.at(-1) + 1;
    }
    refill(this.strip, ...this.films.map((film) => film.button));
  }

  listen() {
    const filmOf = (event) => this.films[event.target.closest?.(".film")?.dataset.film];
    const point = (film) => (film ? this.wordCallbacks.pointAtWord(film.positions) : this.wordCallbacks.point(null));
    this.strip.addEventListener(
      "click",
      (event) => filmOf(event) && this.wordCallbacks.pinWord(filmOf(event).positions),
    );
    this.strip.addEventListener("pointerover", (event) => event.pointerType !== "touch" && point(filmOf(event)));
    this.strip.addEventListener("pointerleave", () => this.wordCallbacks.point(null));
    this.strip.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && point(filmOf(event)));
    this.strip.addEventListener("focusout", () => this.wordCallbacks.point(null));
    makeRoving(this.strip);
  }

  /** `shown` is of the places, `words` of what was written; `matrix` has the weights of the head, or is null. */
  update(shown, words, matrix) {
    this.picture.update(shown);
    const scale = this.callbacks.look().scale;
    for (const film of this.films) {
      const { button, positions, word } = film;
      const has = (position) => positions.includes(position);
      const pinned = positions.every((position) => words.pinned.has(position));
      const shade = words.shade ? Math.max(...positions.map(words.shade)) : 0;
      shadeElement(word, shade, scale);
      button.classList.toggle("pinned", pinned);
      button.classList.toggle("current", has(words.current));
      button.classList.toggle("cursor", has(words.cursor));
      button.classList.toggle("faded", positions[0] >= words.fadedFrom);
      button.setAttribute("aria-pressed", String(pinned));
      this.paintFilm(film, matrix, scale, shown);
    }
    const now = words.current ?? [...words.pinned].at(-1) ?? null;
    if (now !== this.last) this.reveal(now);
    this.last = now;
  }

  paintFilm({ canvas, positions }, matrix, scale, shown) {
    const image = this.callbacks.pictures().get(this.axis.name);
    if (!image) return;
    const ratio = image.naturalWidth / image.naturalHeight || 1;
    const side = clamp(SMALL, (this.strip.clientWidth - 8) / this.films.length - AROUND, LARGE);
    const [width, height] = ratio > 1 ? [side, side / ratio] : [side * ratio, side];
    const context = sharpen(canvas, width, height);
    const shade = (matrix && shadeOfWord(matrix, positions)) ?? (() => 0);
    const marks = { shade, pinned: shown.shade ? new Set() : shown.pinned, current: null, cursor: null };
    paintOverlay(context, { image, axis: this.axis, width, height, scale, look: this.callbacks.look(), shown: marks });
  }

  /** Scrolls the strip alone until a word is visible. */
  reveal(position) {
    const button = this.films.find((film) => film.positions.includes(position))?.button;
    if (!button) return;
    const top = button.offsetTop - this.strip.offsetTop;
    if (top < this.strip.scrollTop || top + button.offsetHeight > this.strip.scrollTop + this.strip.clientHeight)
      this.strip.scrollTop = top - 8;
  }

  /** The picture and the words below it, for a saved figure. */
  toCanvas() {
    const { canvas } = this.picture;
    const [width, top] = [this.element.clientWidth, canvas.clientHeight + 14];
    const stripBox = this.strip.getBoundingClientRect();
    const height = top + this.strip.scrollHeight;
    const whole = make("canvas");
    const context = sharpen(whole, width, height);
    context.drawImage(canvas, (width - canvas.clientWidth) / 2, 0, canvas.clientWidth, canvas.clientHeight);
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const { canvas: film, word, button } of this.films) {
      const at = (element) => {
        const box = element.getBoundingClientRect();
        return [
          box.left - stripBox.left + (width - stripBox.width) / 2,
          box.top - stripBox.top + this.strip.scrollTop + top,
          box.width,
          box.height,
        ];
      };
      const faded = button.classList.contains("faded");
      context.globalAlpha = faded ? 0.34 : 1;
      context.drawImage(film, ...at(film));
      context.globalAlpha = 1;
      const [x, y, wide, high] = at(word);
      const look = this.callbacks.look();
      if (word.style.backgroundColor && !faded) {
        context.fillStyle = word.style.backgroundColor;
        context.fillRect(x, y, wide, high);
      }
      context.fillStyle = faded
        ? look.soft
        : word.style.color || (/pinned|current/.test(button.className) ? look.accent : look.ink);
      context.font = look.font;
      context.fillText(word.textContent, x + wide / 2, y + high / 2, wide);
    }
    return { canvas: whole, width, height };
  }
}

/** The shade of each patch for a word: the mean over its tokens; null if there are no weights. */
function shadeOfWord({ values, columns, blocks, even }, positions) {
  const sums = new Float32Array(columns);
  for (const position of positions) {
    const start = Math.floor(position / blocks[0]) * columns;
    for (let i = 0; i < columns; i++) sums[i] += values[start + i] / positions.length;
  }
  const most = sums.reduce((largest, other) => Math.max(largest, other), 0);
  if (!most) return null;
  const share = positions.reduce((sum, position) => sum + even(position), 0) / positions.length;
  const strength = patchStrength(most / blocks[1] / share);
  return (patch) => (strength * (sums[Math.floor(patch / blocks[1])] ?? 0)) / most;
}
