// A sound over time: its spectrogram, CTC's spikes, and below them what every written letter looks at.

import { clamp } from "../data/number_format.js";
import { LEAST_SCALE_END } from "../data/tiles.js";
import { makeLegible } from "../data/tokens.js";
import { cutTo, rulerStep, widthOf } from "../draw/axis_labels.js";
import { intensity } from "../draw/colours.js";
import { make, makeBitmap, sharpen } from "../draw/elements.js";
import { soundFilter } from "../draw/picture_overlay.js";

const RULER = 20; // pixels of the time
const LANE = 44; // of CTC's spikes
const GAP = 7;
const RIGHT = 10;
const CROWDED = 24; // rows from which on the sound leaves them more room
const LABEL = 11; // pixels of a row from which on each has its label

/** The text of spikes without the marks of its tokenizer; of spaces alone, their sign. */
function legible(text) {
  const plain = text.replaceAll("▁", " ");
  return makeLegible(plain.trim() || " ", 16);
}

export class SoundView {
  constructor(axis, words, callbacks, options) {
    Object.assign(this, { axis, words, callbacks });
    this.canvas = make("canvas", {
      class: "picture sound",
      role: "application",
      tabindex: "0",
      "aria-label": options.label,
    });
    this.element = make("div", { class: "sound-view" }, this.canvas);
    this.listen();
  }

  // Places

  /** The seconds that the view covers: of the spectrogram or of the tokens, whichever is longer. */
  get seconds() {
    return Math.max(this.axis.seconds ?? 0, this.step * this.axis.length);
  }

  get step() {
    return this.axis.step ?? 1;
  }

  layout(width, height) {
    const context = sharpen(this.canvas, width, height);
    const { look } = this;
    context.font = look.font;
    const count = this.words ? this.words.length : 0;
    let widest = this.axis.spikes.length ? widthOf(context, "CTC") : 0;
    for (let i = 0; i < Math.min(count, 300); i++) widest = Math.max(widest, widthOf(context, this.words.label(i, 16)));
    const left = Math.min(Math.max(widest + 14, 30), width * 0.22);
    const lane = this.axis.spikes.length ? LANE : 0;
    const free = height - RULER - lane - 3 * GAP;
    const loud = count
      ? clamp(60, free * (count > CROWDED ? 0.32 : 0.42), 240)
      : Math.min(free, Math.max(90, width / 3));
    const row = count ? Math.min(26, (free - loud) / count) : 0;
    this.plot = {
      context,
      width,
      height,
      left,
      wide: width - left - RIGHT,
      loud,
      lane,
      row,
      top: RULER + loud + GAP + (lane ? lane + GAP : 0),
      count,
    };
  }

  x(seconds) {
    return this.plot.left + (seconds / this.seconds) * this.plot.wide;
  }

  /** The token of the sound under a place of the canvas, and the row of a letter; null outside. */
  under(x, y) {
    const { left, wide, top, row, count, loud } = this.plot;
    const k = Math.floor(((x - left) / wide) * (this.seconds / this.step));
    const q = count && y >= top && y < top + row * count ? Math.floor((y - top) / row) : null;
    const inside = x >= left && k >= 0 && k < this.axis.length;
    if (y < RULER || (q === null && y > (this.plot.lane ? top : RULER + loud))) return null;
    return inside ? { q, k } : q === null ? null : { q, k: null };
  }

  // Events

  listen() {
    const at = (event) => this.plot && this.under(event.offsetX, event.offsetY);
    this.canvas.addEventListener("pointermove", (event) =>
      this.callbacks.point(at(event) || null, [event.clientX, event.clientY]),
    );
    this.canvas.addEventListener("pointerleave", () => this.callbacks.point(null));
    this.canvas.addEventListener("blur", () => this.callbacks.point(null));
    this.canvas.addEventListener("click", (event) => this.pin(at(event)));
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
  }

  /** A click in a row pins its letter, one above the rows the moment. */
  pin(cell) {
    if (!cell) return;
    if (cell.q !== null) this.callbacks.pinWord(cell.q);
    else this.callbacks.pin(cell.k);
  }

  /** Left and right move in time, up and down from letter to letter; above the first letter is the sound itself. */
  walk(event) {
    const way = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const now = { q: this.callbacks.wordCursor(), k: this.callbacks.cursor() };
    if (way && !event.altKey && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      event.stopPropagation();
      const q = way[0] ? (now.q ?? -1) + way[0] : now.q;
      const k = way[1] ? clamp(0, (now.k ?? -1) + way[1], this.axis.length - 1) : now.k;
      this.callbacks.point({
        q: q === null || q < 0 || !this.plot.count ? null : Math.min(q, this.plot.count - 1),
        k: k ?? 0,
      });
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.pin(now);
    }
  }

  // Painting

  /** `shown` is of the places, `words` of what was written; `matrix` has the weights of the head, or is null. */
  update(shown, words, matrix) {
    this.shown = shown;
    this.shownWords = words;
    this.look = this.callbacks.look();
    const box = this.element.parentElement ?? this.element;
    const image = this.callbacks.pictures().get(this.axis.name);
    if (!image || !box.clientWidth) return;
    this.layout(box.clientWidth, Math.max(160, box.clientHeight - 4));
    const { context, width, height } = this.plot;
    context.clearRect(0, 0, width, height);
    this.paintSound(image);
    this.paintTime();
    if (this.plot.lane) this.paintSpikes();
    if (this.plot.count) this.paintRows(matrix);
    this.paintMarks();
  }

  paintSound(image) {
    const { context, left, wide, loud } = this.plot;
    const { axis, shown } = this;
    const { look } = this;
    const end = this.x(axis.seconds ?? this.seconds);
    context.save();
    context.beginPath();
    context.roundRect(left, RULER, wide, loud, 4);
    context.clip();
    context.fillStyle = look.hidden;
    context.fillRect(left, RULER, wide, loud);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.filter = soundFilter(look);
    context.globalCompositeOperation = look.dark ? "lighten" : "darken"; // silence is the background
    context.drawImage(image, left, RULER, end - left, loud);
    context.globalCompositeOperation = "source-over";
    context.filter = "none";
    if (shown.shade) {
      context.fillStyle = look.paper;
      context.globalAlpha = 0.25;
      context.fillRect(left, RULER, wide, loud);
      for (let position = axis.firstPatch; position < axis.length; position++) {
        const shade = shown.shade(position);
        if (shade <= 0.01) continue;
        const x = this.x(position * this.step);
        context.globalAlpha = 0.72 * Math.sqrt(shade);
        context.fillStyle = look.scale.css(0.3 + 0.65 * shade);
        context.fillRect(x, RULER, this.x((position + 1) * this.step) - x + 0.4, loud);
      }
    }
    context.restore();
  }

  paintTime() {
    const { context, left, wide } = this.plot;
    const { look } = this;
    const step = rulerStep(wide / this.seconds / 100, 52) / 100; // hundredths of seconds are the finest
    context.font = look.smallFont;
    context.textAlign = "center";
    context.textBaseline = "bottom";
    context.fillStyle = look.soft;
    context.strokeStyle = look.soft;
    context.lineWidth = 1;
    const { start } = this.axis;
    const first = Math.ceil(start / step - 1e-9);
    for (let tick = first; tick * step <= start + this.seconds + 1e-9; tick++) {
      const x = this.x(tick * step - start);
      context.beginPath();
      context.moveTo(x, RULER - 4);
      context.lineTo(x, RULER - 1);
      context.stroke();
      const text = `${(tick * step).toFixed(step < 0.1 ? 2 : step < 1 ? 1 : 0)}${tick === first ? " s" : ""}`;
      if (x - left < wide - 6) context.fillText(text, Math.max(x, left + 6), RULER - 5);
    }
  }

  /** A stem for every spike of CTC, as high as its probability, with its letter. */
  paintSpikes() {
    const { context, left, wide, loud, lane } = this.plot;
    const { look } = this;
    const base = RULER + loud + GAP + lane - 1;
    const high = lane - 17;
    context.font = look.smallFont;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = look.soft;
    context.fillText("CTC", left - 9, base - high / 2);
    context.fillStyle = look.line;
    context.fillRect(left, base, wide, 1);
    context.fillStyle = look.second;
    for (const [position, , chance] of this.axis.spikes) {
      const tip = base - Math.max(2, high * chance);
      context.fillRect(this.x((position + 0.5) * this.step) - 1, tip, 2, base - tip);
    }
    context.font = look.font;
    context.textAlign = "center";
    context.fillStyle = look.ink;
    for (const { text, x, chance } of this.spikeLabels(context))
      context.fillText(text, x, base - Math.max(2, high * chance) - 8);
  }

  /** The labels of the spikes: letters that would overlap are joined, and repeated ones are written once. */
  spikeLabels(context) {
    const labels = [];
    let before = null;
    for (const [position, text, chance] of this.axis.spikes) {
      const x = this.x((position + 0.5) * this.step);
      const again = before && before[0] + 1 === position && before[1] === text;
      const last = labels.at(-1);
      const near =
        last && x < (last.from + last.to) / 2 + (widthOf(context, last.text) + widthOf(context, legible(text))) / 2 + 3;
      if (again || near)
        Object.assign(last, {
          to: x,
          chance: Math.max(last.chance, chance),
          raw: last.raw + (again ? "" : text),
          text: legible(last.raw + (again ? "" : text)),
        });
      else labels.push({ from: x, to: x, chance, raw: text, text: legible(text) });
      before = [position, text];
    }
    return labels.map((label) => ({ ...label, x: (label.from + label.to) / 2 }));
  }

  /** What each letter looks at: a row of cells under the same time. */
  paintRows(matrix) {
    const { context, left, wide, row, top, count } = this.plot;
    const { look } = this;
    const end = this.x(this.axis.length * this.step);
    context.fillStyle = look.hidden;
    context.fillRect(left, top, wide, row * count);
    if (matrix) {
      context.imageSmoothingEnabled = false;
      context.drawImage(this.bitmap(matrix), left, top, end - left, row * count);
    }
    const faded = this.shownWords.fadedFrom;
    if (faded < count) {
      context.fillStyle = look.paper;
      context.globalAlpha = 0.72;
      context.fillRect(left, top + faded * row, wide, (count - faded) * row);
      context.globalAlpha = 1;
    }
    this.paintLabels();
  }

  paintLabels() {
    const { context, left, row, top, count } = this.plot;
    const { look } = this;
    const words = this.shownWords;
    const apart = Math.max(1, Math.ceil(LABEL / row));
    const marked = [...words.pinned, words.current, words.cursor].filter(Number.isInteger);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let q = 0; q < count; q++) {
      const strong = marked.includes(q);
      if (!strong && (q % apart || marked.some((other) => Math.abs(other - q) < apart))) continue;
      const y = top + (q + 0.5) * row;
      const high = Math.max(Math.min(row - 1, 20), 10);
      context.font = `${strong ? "600 " : ""}${clamp(9, row * 0.8, 13)}px ${look.family}`;
      const text = cutTo(context, this.words.label(q, 16), left - 14);
      const shade = words.shade ? words.shade(q) : 0;
      if (shade > 0.004) {
        const wide = widthOf(context, text);
        context.fillStyle = look.scale.css(shade);
        context.beginPath();
        context.roundRect(left - 12 - wide, y - high / 2, wide + 8, high, 4);
        context.fill();
      }
      context.fillStyle =
        shade > 0.004 ? look.scale.ink(shade) : strong ? look.accent : q >= words.fadedFrom ? look.soft : look.ink;
      context.fillText(text, left - 8, y);
    }
  }

  /** Pinned and current moments and letters, and the line of the cursor. */
  paintMarks() {
    const { context, left, wide, row, top, count, loud, lane } = this.plot;
    const { look } = this;
    const { shown, shownWords } = this;
    const bottom = count ? top + row * count : RULER + loud + (lane ? GAP + lane : 0);
    const column = (position, colour, thick) => {
      if (position === null) return;
      const [from, to] = [this.x(position * this.step), this.x((position + 1) * this.step)];
      context.strokeStyle = colour;
      context.lineWidth = thick;
      context.strokeRect(from, RULER, Math.max(1.5, to - from), bottom - RULER);
    };
    const line = (q, colour, thick) => {
      if (q === null || !count) return;
      context.strokeStyle = colour;
      context.lineWidth = thick;
      context.strokeRect(left, top + q * row, wide, Math.max(1.5, row));
    };
    for (const position of shown.pinned) column(position, look.accent, 1.5);
    column(shown.current, look.accent, 1);
    column(shown.cursor, look.soft, 1);
    if (!shownWords) return;
    for (const q of shownWords.pinned) line(q, look.accent, 1.8);
    line(shownWords.current, look.accent, 1.2);
    line(shownWords.cursor, look.second, 1.2);
  }

  /** The weights as a picture, one pixel a weight. */
  bitmap(matrix) {
    const { scale } = this.callbacks.look();
    const curve = this.callbacks.curve();
    const key = `${scale.key}/${curve}`;
    if (this.drawn?.matrix === matrix && this.drawn.key === key) return this.drawn.canvas;
    const { rows, columns, values } = matrix;
    let most = LEAST_SCALE_END * matrix.blocks[1] * matrix.even();
    for (const value of values) if (value > most) most = value;
    const colourAt = (i) => scale.packed[Math.round(255 * intensity(curve, values[i], most))];
    const canvas = makeBitmap(columns, rows, colourAt);
    this.drawn = { matrix, key, canvas, most };
    return canvas;
  }

  toCanvas() {
    return { canvas: this.canvas, width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }
}
