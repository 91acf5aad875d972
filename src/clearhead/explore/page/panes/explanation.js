// The explanation: one sentence about the selection, and what rows and columns are.

import { currentRows } from "../data/decoder_rows.js";
import { formatShare, isHidden, oddText } from "../data/number_format.js";
import { largest } from "../data/pooling.js";
import { combineLines } from "../data/token_sums.js";
import { formatCount, formatNumber } from "../data/tokens.js";
import { byId, make, oncePerFrame, refill } from "../draw/elements.js";
import { headName } from "../words/captions.js";
import { say, sayAround, sayDoing, sayRole } from "../words/languages.js";
import { stateOfModel } from "./ablation_pane.js";
import { term } from "./definitions.js";
import { drawnHeads } from "./lines_view.js";
import { isPictured } from "./picture_flow.js";

const NAMED = 3; // tokens of a selection that are named one by one
const LISTED = 3; // weights in a sentence
const ENOUGH = 0.6; // of the attention: then no more weights are listed
const LEAST = 0.05; // of the attention that is worth a second mention
const FLAT = 0.15; // of the attention: where the largest weight is smaller, it says little alone
const SPREAD = 6; // tokens over which attention can be spread
const LONGEST = 60; // letters of a text that was searched for
const SEARCHED = 2000; // tokens in which a second one of the same spelling is looked for

export class Explanation {
  constructor(explorer, centre) {
    this.explorer = explorer;
    this.centre = centre;
    this.turn = 0;
    explorer.explain = () => this.update();
    window.addEventListener("resize", oncePerFrame(() => this.keepHeight()));
  }

  async update() {
    const turn = ++this.turn;
    const { explorer } = this;
    const { name, head, other } = explorer.state;
    const heads = [{ name, head }, ...(other ? [other] : [])];
    this.subject = this.chooseSubject();
    const { direction, positions } = this.subject;
    const ask = (one) => combineLines(explorer, one, direction, positions).catch(() => null);
    const drawn = document.querySelector("#maps .lines-view") ? drawnHeads(explorer)[0] : [];
    this.together = drawn.length > 1 ? drawn.length : 0; // lines of several heads are those of their mean
    const found = await Promise.all((this.together ? drawn : heads).map(ask));
    if (turn !== this.turn) return; // the selection has moved on
    const answers = this.together ? [meanOf(found, explorer.attention.first[direction === "at" ? 1 : 0])] : found;
    const parts = await this.sentence(heads, answers);
    if (turn !== this.turn) return;
    this.showAxes(answers[0]);
    this.show(parts);
    this.keepHeight();
  }

  /** The box does not become lower before another head is chosen, so that the map stays while sentences change. */
  keepHeight() {
    const box = byId("explanation-box");
    const { name, head, other, drawing } = this.explorer.state;
    const key = [name, head, other?.name, other?.head, drawing, window.innerWidth, document.documentElement.lang].join("/");
    if (this.kept !== key) box.style.minHeight = "";
    this.kept = key;
    box.style.minHeight = `${box.offsetHeight}px`;
  }

  /** The tokens that the sentence is about: those of the token pane, or one of the other side that is pointed at. */
  chooseSubject() {
    const { attention, asked, answered, state, subject } = this.explorer;
    const { cursor, direction } = state;
    const across = direction === "at" ? cursor?.k : cursor?.q;
    const along = direction === "at" ? cursor?.q : cursor?.k;
    if (subject.pinned || !Number.isInteger(across) || Number.isInteger(along)) return { direction, positions: subject.positions, asked, answered };
    const side = direction === "at" ? 1 : 0;
    const here = (position) => position >= attention.first[side] && position < attention.first[side] + attention.counts[side];
    return { direction: side ? "by" : "at", positions: cursor.word?.filter(here) ?? [across + attention.first[side]], asked: answered, answered: asked };
  }

  /** Shows the sentence. Keys on the map have their cell announced already, so it is not announced a second time. */
  show(parts) {
    const box = byId("explanation");
    const keyed = document.activeElement?.classList.contains("map-canvas") && this.explorer.state.cursor;
    box.setAttribute("aria-live", keyed ? "off" : "polite");
    const made = make("p", {}, ...parts);
    if (made.textContent === box.textContent && box.lang === document.documentElement.lang) return;
    box.lang = document.documentElement.lang;
    refill(box, ...made.childNodes);
  }

  async sentence(heads, answers) {
    const { explorer } = this;
    const { cursor, step } = explorer.state;
    const onMap = Number.isInteger(cursor?.q) && Number.isInteger(cursor?.k);
    if (onMap && !this.together) {
      const cell = await this.cellSentence(heads, cursor);
      if (cell) return cell;
    }
    const chosen = explorer.subject.pinned || cursor || (step !== null && explorer.stepped && this.subject.direction === "at");
    this.named = !chosen; // the head, before the example
    const token = answers.every(Boolean) ? this.tokenSentence(heads, answers) : [];
    this.named = false;
    if (this.together) return token.length ? [...token, say("stop")] : [];
    const role = heads.length > 1 || this.subject.direction === "by" ? [] : [say("contrast"), ...this.roleClause(heads[0])];
    if (chosen && token.length) return [...token, ...role, say("stop")];
    const overall = heads.flatMap((one, i) => [i ? say("contrast") : "", ...this.headClause(one, i)]);
    return token.length ? [...overall, say("stop"), say("space"), say("example"), ...token, say("stop")] : [...overall, say("stop")];
  }

  // What a head does over the whole text

  /** "this head", or "head 5" beside another. */
  nameOf(chosen) {
    if (this.together) return say("meanHeads", { count: this.together });
    return this.explorer.state.other ? `${headName(this.explorer, chosen)}${say("afterName")}` : say(this.named ? "it" : "thisHead");
  }

  get medium() {
    return say({ image: "mediumImage", audio: "mediumAudio" }[this.explorer.pictured?.kind] ?? "mediumText");
  }

  doing(role) {
    return role === "alignment" && this.explorer.pictured ? say("doesPictured") : sayDoing(role);
  }

  roleClause(chosen) {
    const { role } = this.explorer.headOf(chosen);
    const key = this.wasMeasuredBefore(role) ? "overallBefore" : "overall";
    return sayAround(key, { medium: this.medium, does: this.doing(role), role: roleTerm(role) });
  }

  /** Whether a role is that of an earlier measurement; that weights are no numbers is seen over this text. */
  wasMeasuredBefore(role) {
    return this.explorer.scene.known_roles && role !== "no numbers";
  }

  headClause(chosen, place) {
    const head = this.explorer.headOf(chosen);
    const { role } = head;
    const key = place ? "overallMore" : this.wasMeasuredBefore(role) ? "overallHeadBefore" : "overallHead";
    const named = sayAround(key, { medium: this.medium, head: this.nameOf(chosen), does: this.doing(role), role: roleTerm(role) });
    const fact = this.explorer.state.other ? "" : this.factOf(head);
    const estimate = fact && this.explorer.attentionOf(chosen.name).estimated ? [say("comma"), say("estimateOnly")] : [];
    return fact ? [...named, say("colon"), fact, ...estimate] : named;
  }

  /** The number behind a role; empty where it is not known. */
  factOf({ role, score, peak, entropy, most_entropy: most }) {
    const known = (...values) => values.every(Number.isFinite);
    if (role === "alignment") return known(peak) ? say("factPeak", { peak: share(peak) }) : "";
    if (role === "broad") return known(entropy, score) ? say("factBroad", { entropy: formatNumber(entropy, 2), score: share(score) }) : "";
    if (role === "induction" || role === "duplicate") return known(score) ? say("factRepeated", { score: share(score) }) : "";
    if (role !== "none of these") return known(score) ? say("factShare", { score: share(score) }) : "";
    const ofMost = known(most) ? say("ofMost", { most: formatNumber(most, 2) }) : "";
    return known(peak, entropy) ? say("factNone", { peak: share(peak), entropy: formatNumber(entropy, 2), ofMost }) : "";
  }

  // What it does with the selected tokens

  /** A token with its kind, and its place if another one reads the same. */
  token(axis, position) {
    const label = axis.label(position, 28);
    const patch = isPictured(axis) && position >= axis.firstPatch;
    if (patch) return bold(say(axis.kind === "audio" ? "moment" : "patch", { label }));
    if (this.explorer.scene.axes[axis.name].unknown) return bold(say("numbered", { label }));
    const twice = axis.length > SEARCHED || axis.shown.some((text, at) => at !== position && text === axis.shown[position]);
    const name = make("span", {}, ...sayAround(/[\p{L}\p{N}]/u.test(label) ? "quoted" : "sign", { token: bold(label) }));
    if (twice) name.append(make("span", { class: "place", text: ` (${wholeCount(position)})` }));
    return name;
  }

  /** The selected tokens: a word or what was searched for in one piece, each by name, or how many they are. */
  subjectName() {
    const { asked, positions } = this.subject;
    if (positions.length === 1) return [this.token(asked, positions[0])];
    const pieces = [this.explorer.state.cursor?.word, asked.wordAt(positions[0])];
    if (!isPictured(asked) && pieces.some((one) => String(one) === String(positions))) {
      return sayAround("quoted", { token: bold(cutText(asked.textOf(positions))) });
    }
    if (positions.length > NAMED) return [bold(say("several", { count: positions.length }))];
    return positions.flatMap((position, i) => [i ? say(i === positions.length - 1 ? "nameAnd" : "nameComma") : "", this.token(asked, position)]);
  }

  /** "Writing ill", "Having read was", "From cat". */
  who(name) {
    const { explorer } = this;
    const { attention, state } = explorer;
    const rows = currentRows(explorer) ?? (attention.part === "decoder" && !isPictured(explorer.axes[attention.queries]) ? "read" : null);
    const stepping = rows && explorer.stepped && state.step !== null && !explorer.subject.pinned && !state.cursor;
    const key = { written: stepping ? "whoStep" : "whoWritten", read: stepping ? "whoStepRead" : "whoRead" }[rows] ?? "whoElse";
    return sayAround(key, { token: make("span", {}, ...name), step: String(explorer.step), steps: String(explorer.steps) });
  }

  tokenSentence(heads, answers) {
    return this.subject.direction === "at" ? this.looksAt(heads, answers) : this.isLookedAt(heads, answers);
  }

  looksAt(heads, answers) {
    const { explorer } = this;
    if (answers.some((answer) => answer.odd)) return sayAround("oddOf", { token: make("span", {}, ...this.subjectName()) });
    if (answers.some((answer) => !answer.top.length)) return [];
    const who = make("span", {}, ...this.who(this.subjectName()));
    const mean = this.subject.positions.length > 1 ? say("onAverage") : "";
    return answers.flatMap((answer, i) => {
      const head = this.nameOf(heads[i]);
      const most = answer.top[0][1];
      const error = explorer.source.precision(heads[i].name, heads[i].head, true);
      const rounded = !answer.weights || (error > 0 && answer.weights.some((weight) => weight === 0 && !isHidden(weight))); // zero, or too small for the file
      const seen = answer.weights?.reduce((sum, weight) => sum + ((rounded ? isHidden(weight) : weight === 0) ? 0 : 1), 0) ?? 0;
      const tied = isTied(answer, isPictured(this.subject.answered) || most < LEAST ? 1 : LISTED, error);
      if (!i && (tied || (seen >= SPREAD && most < 2 / seen))) {
        return sayAround(rounded ? "spreadsMany" : "spreads", { who, head, mean, count: wholeCount(seen), share: share(most, error) });
      }
      const shares = make("span", {}, ...this.shares(answer));
      const said = sayAround(i ? "givesMore" : "gives", { who, head, mean, shares });
      const half = !explorer.state.other && (isPictured(this.subject.answered) || most < FLAT) ? this.half(answer, error) : [];
      return [i ? say("contrast") : "", ...said, ...(half.length ? [say("contrast"), ...half] : [])];
    });
  }

  /** The largest weights: "93 % of its attention to 病 and 6 % to 了". */
  shares({ top }) {
    const { explorer: { state }, subject: { answered } } = this;
    const listed = [];
    let sum = 0;
    for (const [position, weight] of top.slice(0, state.other || isPictured(answered) ? 1 : LISTED)) {
      if (listed.length && (sum >= ENOUGH || weight < LEAST)) break;
      sum += weight;
      listed.push(sayAround(listed.length ? "nextShare" : "firstShare", { share: share(weight), token: this.token(answered, position) }));
    }
    return listed.flatMap((parts, i) => [i ? say(i === listed.length - 1 ? "and" : "comma") : "", ...parts]);
  }

  /** On how few tokens half of the attention lies; empty if rounding by `error` could change that much. */
  half({ weights, visible }, error) {
    if (!weights || error * weights.length > 0.05) return [];
    const sorted = Float32Array.from(weights).sort().reverse();
    let sum = 0;
    const few = 1 + sorted.findIndex((weight) => (sum += weight) >= 0.5);
    if (few < 2) return [];
    const { answered } = this.subject;
    const kind = { image: "halfPatches", audio: "halfMoments" }[answered.kind] ?? "halfTokens";
    if (visible === null) return [say("halfAlone", { few: say(kind, { count: wholeCount(few) }) })];
    return [say("half", { few: wholeCount(few), count: say(kind, { count: wholeCount(visible) }) })];
  }

  isLookedAt(heads, answers) {
    const { explorer } = this;
    const { answered } = this.subject;
    if (answers.some((answer) => answer.odd)) return sayAround("oddOf", { token: make("span", {}, ...this.subjectName()) });
    if (answers.some((answer) => !answer.top.length)) return [];
    const parts = answers.flatMap((answer, i) => {
      const [position, weight] = answer.top[0];
      const error = explorer.source.precision(heads[i].name, heads[i].head, true);
      const tied = isTied(answer, 1, error);
      const blanks = { token: make("span", {}, ...(i && !tied ? [] : this.subjectName())), query: this.token(answered, position), share: share(weight, error * answer.added), head: this.nameOf(heads[i]) };
      if (tied) return [i ? say("contrast") : "", ...sayAround(i ? "lookedAtTiedMore" : "lookedAtTied", blanks)];
      return [i ? say("contrast") : "", ...sayAround(i ? "lookedAtMore" : heads.length > 1 ? "lookedAtIn" : "lookedAt", blanks)];
    });
    const [answer] = answers;
    if (!answer.weights) parts.push(say("comma"), say("amongTop"));
    if (heads.length === 1 && Number.isFinite(answer.received) && answer.received > 0) {
      parts.push(say("stop"), say("space"), ...this.received(answer));
      if (explorer.attention.estimated) parts.push(say("comma"), say("estimateOnly"));
    }
    return parts;
  }

  /** How much attention the selected tokens receive, and from how many rows that can see them. */
  received({ close, received, visible }) {
    const count = this.subject.positions.length;
    const all = say(close ? "inAllAbout" : "inAll", { count, received: formatNumber(received, close ? 1 : 2) });
    return visible === null ? [all] : [all, say("comma"), say(visible === 1 ? "ofOneRow" : "ofRows", { count, rows: wholeCount(visible) })];
  }

  // What one cell of the map says

  async cellSentence(heads, { q, k }) {
    const { explorer, turn } = this;
    const views = this.centre.views.slice(0, heads.length);
    const cells = heads.map((_, i) => views[i]?.tiles.at(q, k) ?? null);
    if (cells.some((cell) => !cell)) return null;
    const { attention } = explorer;
    const [queries, keys] = [explorer.axes[attention.queries], explorer.axes[attention.keys]];
    const [{ share: weight, rows, columns, q0, k0, exact }] = cells;
    if (rows * columns > 1) {
      const span = (first, count) => say("tokensRange", { first: wholeCount(first), last: wholeCount(first + count - 1) });
      const blanks = { query: span(q0 + attention.first[0], rows), key: span(k0 + attention.first[1], columns), share: share(weight) };
      return isHidden(weight) ? [say("blockHidden", blanks), say("stop")] : [say("blockGives", blanks), ...(exact ? [] : [say("comma"), say("estimateOnly")]), say("stop")];
    }
    const query = this.token(queries, q + attention.first[0]);
    const token = this.token(keys, k + attention.first[1]);
    if (oddText(weight)) return [...sayAround("brokenCell", { query, token, value: oddText(weight) }), say("stop")];
    const who = make("span", {}, ...this.who([query.cloneNode(true)]));
    const head = this.nameOf(heads[0]);
    if (isHidden(weight)) return [...sayAround("hiddenFrom", { who, head, token }), say("stop")];
    const first = make("span", {}, ...sayAround("firstShare", { share: share(weight, views[0].tiles.precision), token }));
    const said = sayAround("gives", { who, head, mean: "", shares: first });
    if (heads.length > 1) {
      const second = make("span", {}, ...sayAround("nextShare", { share: share(cells[1].share, views[1].tiles.precision), token: token.cloneNode(true) }));
      return [...said, say("contrast"), ...sayAround("givesMore", { head: this.nameOf(heads[1]), mean: "", shares: second }), say("stop")];
    }
    const line = await explorer.lineOf("at", heads[0].name, heads[0].head, q + attention.first[0]).catch(() => null);
    if (turn !== this.turn) return [];
    const [place, most] = line?.top[0] ?? [];
    const error = explorer.source.precision(heads[0].name, heads[0].head, true);
    if (place === undefined || place === k + attention.first[1] || isTied({ ...line, added: 1 }, 1, error)) return [...said, say("contrast"), ...this.roleClause(heads[0]), say("stop")];
    return [...said, say("contrast"), ...sayAround("mostGoes", { share: share(most, error), token: this.token(keys, place) }), say("stop")];
  }

  // What rows and columns are

  showAxes(answer) {
    const { attention, axes } = this.explorer;
    const note = byId("axes-note");
    const off = stateOfModel(this.explorer);
    note.hidden = !off && !document.querySelector("#maps .map-canvas");
    note.classList.toggle("off", Boolean(off));
    if (note.hidden) return;
    if (off) return (note.textContent = say({ head: "stillBefore", heads: "stillBeforeTwo", word: "stillBeforeWord", words: "stillBeforeWords" }[off.kind], { word: off.name }));
    const kind = (axis) => ({ image: "axisPatch", audio: "axisMoment" })[axis.kind];
    const rows = { written: "axisWritten", read: "axisRead" }[currentRows(this.explorer)];
    const row = kind(axes[attention.queries]) ?? rows ?? "axisToken";
    const column = kind(axes[attention.keys]) ?? (attention.kind === "cross" ? "axisSource" : "axisSame");
    const sum = this.subject.direction === "at" && answer?.weights ? answer.weights.reduce((all, weight) => all + weight, 0) : 1;
    const made = make("p", {}, ...sayAround("axes", { row: say(row), column: say(column), sum: say(sum > 0.98 ? "sumAll" : "sumSome"), weights: term("attention", say("axesWeights")) }));
    if (made.textContent !== note.textContent) refill(note, ...made.childNodes);
  }
}

/** The mean of the answers of several heads. */
function meanOf(answers, first) {
  if (!answers.every((answer) => answer?.weights)) return null;
  const [{ added, visible }] = answers;
  const weights = answers[0].weights.map((_, i) => answers.reduce((sum, answer) => sum + answer.weights[i], 0) / answers.length);
  const top = largest(weights, LISTED).map(([place, weight]) => [place + first, weight]);
  const received = answers.reduce((sum, answer) => sum + answer.received, 0) / answers.length;
  return { weights, top, received, added, visible: answers.every((answer) => answer.visible === visible) ? visible : null, odd: weights.some((weight) => !Number.isFinite(weight)) };
}

/** Whether more than `named` of the largest weights are equal, as far as weights that may be wrong by `error` tell. */
function isTied({ top, added }, named, error) {
  return error > 0 && top.length > named && top[0][1] - top[named][1] <= 2 * error * added;
}

/** The name of a role in brackets, with its definition. */
function roleTerm(role) {
  return make("span", { class: "unbroken" }, ...sayAround("inBrackets", { role: term(`role.${role}`, sayRole(role)) }));
}

function bold(text) {
  return make("bdi", { class: "strong", text });
}

function share(weight, precision = 0) {
  const number = formatShare(weight, precision);
  return number.startsWith(">") ? say("percentMore", { number: number.slice(1) }) : say("percent", { number });
}

/** A text of at most so many letters. */
function cutText(text) {
  const letters = Array.from(text);
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : text;
}

/** A count that is not broken at the end of a line. */
function wholeCount(value) {
  return formatCount(value).replaceAll("\u2009", "\u2060\u2009\u2060");
}
