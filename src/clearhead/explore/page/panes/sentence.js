// Sentence: what is selected in words: a head, tokens that look or are looked at, one cell, or two heads.

import { formatCount, formatNumber, formatShare, isHidden, oddText } from "../data/number_format.js";
import { make } from "../draw/elements.js";
import { say, sayAround, sayDoing, sayRole } from "../words/languages.js";
import { headName } from "./captions.js";
import { term } from "./definitions.js";

export const LISTED_WEIGHTS = 3;
const NAMED_TOKENS = 3; // of a larger selection the sentence says the number
const ENOUGH = 0.6; // of the attention: then no more weights are listed
const LEAST = 0.05; // of the attention that is worth a second mention
const FLAT = 0.15; // of the attention: where the largest weight is smaller, it says little alone
const SPREAD = 6; // tokens over which attention can be spread
const LONGEST_NAME = 60; // letters
const SEARCHED_TOKENS = 2000; // in a longer text, every token is named with its position
const ROUNDING = 0.05; // of the attention: where weights may be wrong by more in all, half of it is not known

export class Sentence {
  /** `selection`: the subject, heads, their answers, and `together`: how many heads a mean is of, or 0. */
  constructor(explorer, centre, selection) {
    Object.assign(this, { explorer, centre }, selection);
    this.namesHead = false; // whether the head was named before, and is "it" now
  }

  async write() {
    const { explorer, heads, subject, together } = this;
    const { cursor, step } = explorer.state;
    if (Number.isInteger(cursor?.q) && Number.isInteger(cursor?.k) && !together) {
      const cell = await this.writeCell(cursor);
      if (cell) return cell;
    }
    const at = subject.direction === "at";
    const isSelected = explorer.subject.pinned || cursor || (step !== null && explorer.stepped && at);
    this.namesHead = !isSelected;
    const tokens = this.answers.every(Boolean) ? this.writeTokens() : [];
    this.namesHead = false;
    if (together) return tokens.length ? [...tokens, say("stop")] : [];
    if (isSelected && tokens.length) {
      const role = heads.length > 1 || !at ? [] : [say("contrast"), ...this.roleClause()];
      return [...tokens, ...role, say("stop")];
    }
    const overall = heads.flatMap((head, i) => [i ? say("contrast") : "", ...this.headClause(head, i)]);
    const example = tokens.length ? [say("space"), say("example"), ...tokens, say("stop")] : [];
    return [...overall, say("stop"), ...example];
  }

  // What a head does over the whole text

  /** "this head", or "head 5" beside another. */
  nameOf(head) {
    if (this.together) return say("meanHeads", { count: this.together });
    if (this.explorer.state.other) return `${headName(this.explorer, head)}${say("afterName")}`;
    return say(this.namesHead ? "it" : "thisHead");
  }

  /** The blanks of a sentence about a role. */
  roleBlanks(role) {
    const { pictured } = this.explorer;
    const medium = { image: "mediumImage", audio: "mediumAudio" }[pictured?.kind] ?? "mediumText";
    const does = role === "alignment" && pictured ? say("doesPictured") : sayDoing(role);
    const name = term(`role.${role}`, sayRole(role));
    return { medium: say(medium), does, role: span("unbroken", ...sayAround("inBrackets", { role: name })) };
  }

  roleClause() {
    return sayAround("overall", this.roleBlanks(this.explorer.headOf(this.heads[0]).role));
  }

  headClause(head, index) {
    const { explorer } = this;
    const summary = explorer.headOf(head);
    const blanks = { head: this.nameOf(head), ...this.roleBlanks(summary.role) };
    const clause = sayAround(index ? "overallMore" : "overallHead", blanks);
    const fact = explorer.state.other ? "" : this.factOf(summary);
    if (!fact) return clause;
    const estimated = explorer.attentionOf(head.name).estimated;
    return [...clause, say("colon"), fact, ...(estimated ? [say("comma"), say("estimateOnly")] : [])];
  }

  /** The number behind a role; empty where it is not known. */
  factOf({ role, score, peak, entropy, most_entropy: most }) {
    const areKnown = (...values) => values.every(Number.isFinite);
    if (role === "alignment") return areKnown(peak) ? say("factPeak", { peak: sayShare(peak) }) : "";
    if (role === "none of these") {
      if (!areKnown(peak, entropy)) return "";
      const ofMost = areKnown(most) ? say("ofMost", { most: formatNumber(most, 2) }) : "";
      return say("factNone", { peak: sayShare(peak), entropy: formatNumber(entropy, 2), ofMost });
    }
    if (role === "broad") {
      if (!areKnown(entropy, entropy / most)) return "";
      return say("factBroad", { entropy: formatNumber(entropy, 2), share: sayShare(entropy / most) });
    }
    if (!areKnown(score)) return "";
    return say(["induction", "duplicate"].includes(role) ? "factRepeated" : "factShare", { score: sayShare(score) });
  }

  // What it does with the selected tokens

  /** A token with its kind, and its place if another one reads the same. */
  nameToken(axis, position) {
    const label = axis.label(position, 28);
    if (axis.pictured && position >= axis.firstPatch) {
      return bold(say(axis.kind === "audio" ? "moment" : "patch", { label }));
    }
    if (this.explorer.scene.axes[axis.name].unknown) return bold(say("numbered", { label }));
    const reads = (text, at) => at !== position && text === axis.shown[position];
    const twice = axis.length > SEARCHED_TOKENS || axis.shown.some(reads);
    const name = span("", ...sayAround(/[\p{L}\p{N}]/u.test(label) ? "quoted" : "sign", { token: bold(label) }));
    if (twice) name.append(make("span", { class: "place", text: ` (${wholeCount(position)})` }));
    return name;
  }

  /** The selected tokens: a word or what was searched for in one piece, each by name, or how many they are. */
  nameSubject() {
    const { asked, positions } = this.subject;
    if (positions.length === 1) return [this.nameToken(asked, positions[0])];
    const pieces = [this.explorer.state.cursor?.word, asked.wordAt(positions[0])];
    if (!asked.pictured && pieces.some((piece) => String(piece) === String(positions))) {
      return sayAround("quoted", { token: bold(cutText(asked.textOf(positions))) });
    }
    if (positions.length > NAMED_TOKENS) return [bold(say("several", { count: positions.length }))];
    const before = (i) => (i ? say(i === positions.length - 1 ? "nameAnd" : "nameComma") : "");
    return positions.flatMap((position, i) => [before(i), this.nameToken(asked, position)]);
  }

  /** "Writing ill", "Having read was", "From cat". */
  nameWho(name) {
    const { explorer } = this;
    const { attention, state, step, steps } = explorer;
    const reads = attention.part === "decoder" && !explorer.axes[attention.queries].pictured;
    const rows = explorer.rows ?? (reads ? "read" : null);
    const stepping = rows && explorer.stepped && state.step !== null && !explorer.subject.pinned && !state.cursor;
    const phrases = stepping ? { written: "whoStep", read: "whoStepRead" } : { written: "whoWritten", read: "whoRead" };
    const blanks = { token: span("", ...name), step: String(step), steps: String(steps) };
    return span("", ...sayAround(phrases[rows] ?? "whoElse", blanks));
  }

  writeTokens() {
    const { answers, subject } = this;
    if (answers.some((answer) => answer.odd)) return sayAround("oddOf", { token: span("", ...this.nameSubject()) });
    if (answers.some((answer) => !answer.top.length)) return [];
    return subject.direction === "at" ? this.writeLooks() : this.writeLookedAt();
  }

  /** What the selected tokens look at. */
  writeLooks() {
    const { answers, explorer, heads, subject } = this;
    const { pictured } = subject.answered;
    const who = this.nameWho(this.nameSubject());
    const mean = subject.positions.length > 1 ? say("onAverage") : "";
    const clauses = [];
    for (const [i, answer] of answers.entries()) {
      const head = this.nameOf(heads[i]);
      const most = answer.top[0][1];
      const error = this.errorOf(heads[i]);
      const { rounded, seen } = countSeen(answer, error);
      const tied = isTied(answer, pictured || most < LEAST ? 1 : LISTED_WEIGHTS, error);
      if (!i && (tied || (seen >= SPREAD && most < 2 / seen))) {
        const blanks = { who, head, mean, count: wholeCount(seen), share: sayShare(most, error) };
        return sayAround(rounded ? "spreadsMany" : "spreads", blanks);
      }
      const shares = span("", ...this.listShares(answer));
      clauses.push(
        ...(i ? [say("contrast")] : []),
        ...sayAround(i ? "givesMore" : "gives", { who, head, mean, shares }),
      );
      const half = !explorer.state.other && (pictured || most < FLAT) ? this.halfOf(answer, error) : "";
      if (half) clauses.push(say("contrast"), half);
    }
    return clauses;
  }

  /** The largest weights: "93 % of its attention to 病 and 6 % to 了". */
  listShares({ top }) {
    const { answered } = this.subject;
    const listed = [];
    let sum = 0;
    for (const [position, weight] of top.slice(
      0,
      this.explorer.state.other || answered.pictured ? 1 : LISTED_WEIGHTS,
    )) {
      if (listed.length && (sum >= ENOUGH || weight < LEAST)) break;
      sum += weight;
      const blanks = { share: sayShare(weight), token: this.nameToken(answered, position) };
      listed.push(sayAround(listed.length ? "nextShare" : "firstShare", blanks));
    }
    const before = (i) => (i ? say(i === listed.length - 1 ? "and" : "comma") : "");
    return listed.flatMap((parts, i) => [before(i), ...parts]);
  }

  /** On how few tokens half of the attention lies; empty if rounding by `error` could change that much. */
  halfOf({ weights, visible }, error) {
    if (!weights || error * weights.length > ROUNDING) return "";
    const sorted = Float32Array.from(weights).sort().reverse();
    let [sum, few] = [0, 0];
    while (few < sorted.length && sum < 0.5) sum += sorted[few++];
    if (few < 2 || sum < 0.5) return "";
    const kind = { image: "halfPatches", audio: "halfMoments" }[this.subject.answered.kind] ?? "halfTokens";
    if (visible === null) return say("halfAlone", { few: say(kind, { count: wholeCount(few) }) });
    return say("half", { few: wholeCount(few), count: say(kind, { count: wholeCount(visible) }) });
  }

  /** What looks at the selected tokens. */
  writeLookedAt() {
    const { answers, explorer, heads, subject } = this;
    const clauses = [];
    for (const [i, answer] of answers.entries()) {
      const [position, weight] = answer.top[0];
      const error = this.errorOf(heads[i]);
      const tied = isTied(answer, 1, error);
      const blanks = {
        token: span("", ...(i && !tied ? [] : this.nameSubject())),
        query: this.nameToken(subject.answered, position),
        share: sayShare(weight, error * answer.added),
        head: this.nameOf(heads[i]),
      };
      const first = tied ? "lookedAtTied" : heads.length > 1 ? "lookedAtIn" : "lookedAt";
      const more = tied ? "lookedAtTiedMore" : "lookedAtMore";
      clauses.push(...(i ? [say("contrast")] : []), ...sayAround(i ? more : first, blanks));
    }
    const [answer] = answers;
    if (!answer.weights) clauses.push(say("comma"), say("amongTop"));
    if (heads.length === 1 && Number.isFinite(answer.received) && answer.received > 0) {
      clauses.push(say("stop"), say("space"), ...this.receivedOf(answer));
      if (explorer.attention.estimated) clauses.push(say("comma"), say("estimateOnly"));
    }
    return clauses;
  }

  /** How much attention the selected tokens receive, and from how many rows that can see them. */
  receivedOf({ close, received, visible }) {
    const count = this.subject.positions.length;
    const all = say(close ? "inAllAbout" : "inAll", { count, received: formatNumber(received, close ? 1 : 2) });
    if (visible === null) return [all];
    return [all, say("comma"), say(visible === 1 ? "ofOneRow" : "ofRows", { count, rows: wholeCount(visible) })];
  }

  /** By how much the largest weights of a head may be wrong, as the file rounds them. */
  errorOf({ name, head }) {
    return this.explorer.source.precision(name, head, true);
  }

  // What one cell of the map says

  async writeCell({ q, k }) {
    const { explorer, heads } = this;
    const { attention, axes } = explorer;
    const views = this.centre.views.slice(0, heads.length);
    const cells = heads.map((_, i) => views[i]?.tiles.at(q, k) ?? null);
    if (cells.some((cell) => !cell)) return null;
    const [cell] = cells;
    if (cell.rows * cell.columns > 1) return this.writeBlock(cell);
    const query = this.nameToken(axes[attention.queries], q + attention.first[0]);
    const token = this.nameToken(axes[attention.keys], k + attention.first[1]);
    const value = oddText(cell.share);
    if (value) return [...sayAround("brokenCell", { query, token, value }), say("stop")];
    const blanks = { who: this.nameWho([query]), head: this.nameOf(heads[0]), token, mean: "" };
    if (isHidden(cell.share)) return [...sayAround("hiddenFrom", blanks), say("stop")];
    const [share, otherShare] = cells.map((each, i) => sayShare(each.share, views[i].tiles.precision));
    const first = span("", ...sayAround("firstShare", { share, token: token.cloneNode(true) }));
    const clause = [...sayAround("gives", { ...blanks, shares: first }), say("contrast")];
    if (heads.length > 1) {
      const shares = span("", ...sayAround("nextShare", { share: otherShare, token: token.cloneNode(true) }));
      const other = sayAround("givesMore", { head: this.nameOf(heads[1]), mean: "", shares });
      return [...clause, ...other, say("stop")];
    }
    return [...clause, ...(await this.writeLargest(q, k)), say("stop")];
  }

  /** A cell that stands for several tokens. */
  writeBlock({ q0, k0, rows, columns, share, exact }) {
    const { first } = this.explorer.attention;
    const range = (start, count) =>
      say("tokensRange", { first: wholeCount(start), last: wholeCount(start + count - 1) });
    const blanks = { query: range(q0 + first[0], rows), key: range(k0 + first[1], columns), share: sayShare(share) };
    if (isHidden(share)) return [say("blockHidden", blanks), say("stop")];
    return [say("blockGives", blanks), ...(exact ? [] : [say("comma"), say("estimateOnly")]), say("stop")];
  }

  /** Where the largest weight of the row of a cell is, or else the role of the head. */
  async writeLargest(q, k) {
    const { explorer } = this;
    const { attention, axes, weights } = explorer;
    const [head] = this.heads;
    const line = await weights.lineOf("at", head.name, head.head, q + attention.first[0]).catch(() => null);
    const [position, most] = line?.top[0] ?? [];
    const error = this.errorOf(head);
    const unclear = position === undefined || isTied({ ...line, added: 1 }, 1, error);
    if (unclear || position === k + attention.first[1]) return this.roleClause();
    const token = this.nameToken(axes[attention.keys], position);
    return sayAround("mostGoes", { share: sayShare(most, error), token });
  }
}

/** How many tokens have weights that are not zero, or may not be: the file rounds small ones. */
function countSeen({ weights }, error) {
  const rounded = !weights || (error > 0 && weights.some((weight) => weight === 0 && !isHidden(weight)));
  const isZero = (weight) => (rounded ? isHidden(weight) : weight === 0);
  return { rounded, seen: weights?.reduce((sum, weight) => sum + (isZero(weight) ? 0 : 1), 0) ?? 0 };
}

/** Whether more than `named` of the largest weights may be equal; each weight may be wrong by `error`. */
function isTied({ top, added }, named, error) {
  return error > 0 && top.length > named && top[0][1] - top[named][1] <= 2 * error * added;
}

function span(style, ...parts) {
  return make("span", { class: style || null }, ...parts);
}

function bold(text) {
  return make("bdi", { class: "strong", text });
}

function sayShare(weight, precision = 0) {
  const number = formatShare(weight, precision);
  return number.startsWith(">") ? say("percentMore", { number: number.slice(1) }) : say("percent", { number });
}

/** A text of at most LONGEST_NAME letters. */
function cutText(text) {
  const letters = Array.from(text);
  return letters.length > LONGEST_NAME ? `${letters.slice(0, LONGEST_NAME - 1).join("")}…` : text;
}

/** A count that is not broken at the end of a line. */
function wholeCount(value) {
  return formatCount(value).replaceAll("\u2009", "\u2060\u2009\u2060");
}
