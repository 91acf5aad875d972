// The tokens of an axis and their labels; token texts may have any length and any characters.

const NAMED = { "\n": "⏎", "\r": "␍", "\t": "⇥", "\u00a0": "⍽" };
// Controls, marks that turn the direction of writing, joiners and other letters without a picture.
const MARKS =
  "\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\ufffe\\uffff";
const UNSEEN = new RegExp(`[\\p{Cc}${MARKS}\\u{e0000}-\\u{e007f}]`, "gu");

// Letters that run from right to left.
const BACKWARDS = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u; // written without spaces
const HALF = /\p{Cs}/gu; // half of a pair

/** The text with invisible characters replaced, cut to `most` letters. */
export function makeLegible(text, most = 40) {
  let shown = String(text ?? "")
    .slice(0, most * 4 + 8)
    .replace(HALF, "\ufffd");
  if (/^ +$/u.test(shown)) shown = "␣".repeat(Math.min(shown.length, 8));
  shown = shown.replace(
    UNSEEN,
    (letter) => NAMED[letter] ?? `‹U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`,
  );
  if (/^[\u200c\u200d]*$/u.test(shown)) return shown ? "‹U+200D›" : "∅"; // joiners alone; between letters they belong
  const letters = Array.from(shown);
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : shown;
}

/** One side of an attention: its tokens, their labels, and which of them continue a word. */
export class Axis {
  constructor(name, axis) {
    this.name = name;
    this.kind = axis.kind ?? "text";
    this.tokens = axis.tokens;
    this.shown = axis.shown ?? axis.tokens;
    this.gluedTo = axis.glued ?? [];
    this.special = axis.special ?? [];
    this.reads = axis.reads ?? name; // the tokens written stand at the places of those that were read
    this.grid = axis.grid ?? null;
    this.picture = axis.picture ?? null;
    this.file = axis.file ?? null;
    this.seconds = axis.seconds ?? null; // of a sound: what its picture covers
    this.step = axis.step ?? null; // seconds from token to token
    this.start = axis.start ?? 0; // when its first token begins in the recording
    this.spikes = axis.spikes ?? []; // of CTC: [position, text, probability]
    this.labels = new Map();
  }

  get length() {
    return this.tokens.length;
  }

  /** Whether the tokens are patches of a picture, or moments of a sound. */
  get pictured() {
    return Boolean(this.picture && this.grid);
  }

  /** The label of the token at a position. */
  label(position, most = 40) {
    const key = position * 64 + Math.min(most, 63);
    if (!this.labels.has(key)) {
      if (this.labels.size > 50_000) this.labels.clear();
      this.labels.set(key, makeLegible(this.shown[position] ?? this.tokens[position], most));
    }
    return this.labels.get(key);
  }

  /** The writing direction of most of the first letters. */
  get direction() {
    const letters =
      this.shown
        .slice(0, 200)
        .map((text) => String(text).slice(0, 40))
        .join("")
        .match(/\p{L}/gu) ?? [];
    return 2 * letters.filter((letter) => BACKWARDS.test(letter)).length > letters.length ? "rtl" : "ltr";
  }

  /** Whether the token continues the one before it, without a space. */
  glued(position) {
    return position > 0 && Boolean(this.gluedTo[position]);
  }

  /** The positions of the word that a token belongs to. */
  wordAt(position) {
    let [start, end] = [position, position + 1];
    while (this.glued(start)) start--;
    while (end < this.length && this.glued(end)) end++;
    return Array.from({ length: end - start }, (_, i) => start + i);
  }

  /** Whether a space stands before a token: between words, but not between those of a script without spaces. */
  isApart(position) {
    const shown = (token) => String(this.shown[token] ?? "");
    return (
      position > 0 &&
      !this.glued(position) &&
      !(UNSPACED.test(shown(position - 1).slice(-2)) && UNSPACED.test(shown(position).slice(0, 2)))
    );
  }

  /** The text of these tokens, with a space between words. */
  textOf(positions) {
    return positions
      .map((position, i) => `${i && this.isApart(position) ? " " : ""}${this.label(position, 24)}`)
      .join("");
  }

  /** The position of the first patch of a picture. */
  get firstPatch() {
    return this.grid ? this.tokens.length - this.grid[0] * this.grid[1] : 0;
  }

  /** The tokens that cover a text, wherever it stands, ignoring case: lists of positions, at most `most`. */
  find(text, most = 5000) {
    const wanted = text.toLocaleLowerCase().replace(/\s+/gu, " ");
    if (!wanted.trim()) return [];
    const { whole, starts } = this.joined;
    const matches = [];
    const before = wanted.length - wanted.trimStart().length;
    let position = 0;
    for (
      let at = whole.indexOf(wanted);
      at >= 0 && matches.length < most;
      at = whole.indexOf(wanted, starts[position + 1] ?? at + 1)
    ) {
      while (position + 1 < starts.length && starts[position + 1] <= at + before) position++;
      const covering = [position];
      while (starts[covering.at(-1) + 1] < at + wanted.length) covering.push(covering.at(-1) + 1);
      matches.push(covering);
    }
    return matches;
  }

  /** All tokens as one lower-case text, and where each begins in it; a space between words that are written apart. */
  get joined() {
    if (this.join) return this.join;
    const starts = new Int32Array(this.length);
    const parts = [];
    let length = 0;
    for (let position = 0; position < this.length; position++) {
      const shown = String(this.shown[position] ?? "")
        .toLocaleLowerCase()
        .replace(/\s+/gu, " ");
      const apart = this.isApart(position);
      if (apart) parts.push(" ");
      starts[position] = length += apart ? 1 : 0;
      parts.push(shown);
      length += shown.length;
    }
    this.join = { whole: parts.join(""), starts };
    return this.join;
  }
}
