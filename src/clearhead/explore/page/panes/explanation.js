// The explanation: one sentence about the selection, and what rows and columns are.

import { largest } from "../data/pooling.js";
import { combineLines } from "../data/token_sums.js";
import { byId, make, oncePerFrame, refill } from "../draw/elements.js";
import { say, sayAround } from "../words/languages.js";
import { term } from "./definitions.js";
import { drawnHeads } from "./lines_view.js";
import { LISTED_WEIGHTS, Sentence } from "./sentence.js";

const OFF = { head: "stillBefore", heads: "stillBeforeTwo", word: "stillBeforeWord", words: "stillBeforeWords" };

export class Explanation {
  constructor(explorer, centre) {
    this.explorer = explorer;
    this.centre = centre;
    this.turn = 0;
    const keepHeight = oncePerFrame(() => this.keepHeight());
    window.addEventListener("resize", keepHeight);
  }

  async update() {
    const turn = ++this.turn;
    const { explorer } = this;
    const { name, head, other } = explorer.state;
    const subject = this.chooseSubject();
    const { direction, positions } = subject;
    const drawn = document.querySelector("#maps .lines-view") ? drawnHeads(explorer)[0] : [];
    const together = drawn.length > 1 ? drawn.length : 0; // lines of several heads are those of their mean
    const heads = [{ name, head }, ...(other ? [other] : [])];
    const requests = (together ? drawn : heads).map((each) => combineLines(explorer, each, direction, positions));
    let answers = await Promise.all(requests.map((request) => request.catch(() => null)));
    if (turn !== this.turn) return; // the selection has moved on
    if (together) answers = [meanOf(answers, explorer.attention.first[direction === "at" ? 1 : 0])];
    const parts = await new Sentence(explorer, this.centre, { subject, heads, answers, together }).write();
    if (turn !== this.turn) return;
    this.showAxes(together ? drawn : heads.slice(0, 1));
    this.show(parts);
    this.keepHeight();
  }

  /** The box does not become lower before another head is chosen, so that the map stays while sentences change. */
  keepHeight() {
    const box = byId("explanation-box");
    const { name, head, other, drawing } = this.explorer.state;
    const selection = [name, head, other?.name, other?.head, drawing];
    const key = [...selection, window.innerWidth, document.documentElement.lang].join("/");
    if (this.heightKey !== key) box.style.minHeight = "";
    this.heightKey = key;
    box.style.minHeight = `${box.offsetHeight}px`;
  }

  /** The tokens that the sentence is about: those of the token pane, or one of the other side that is pointed at. */
  chooseSubject() {
    const { attention, asked, answered, state, subject } = this.explorer;
    const { cursor, direction } = state;
    const side = direction === "at" ? 1 : 0;
    const across = side ? cursor?.k : cursor?.q;
    const along = side ? cursor?.q : cursor?.k;
    if (subject.pinned || !Number.isInteger(across) || Number.isInteger(along)) {
      return { direction, positions: subject.positions, asked, answered };
    }
    const first = attention.first[side];
    const isHere = (position) => position >= first && position < first + attention.counts[side];
    const positions = cursor.word?.filter(isHere) ?? [across + first];
    return { direction: side ? "by" : "at", positions, asked: answered, answered: asked };
  }

  /** Shows the sentence. Keys on the map have their cell announced already, so it is not announced a second time. */
  show(parts) {
    const box = byId("explanation");
    const keyed = document.activeElement?.classList.contains("map-canvas") && this.explorer.state.cursor;
    box.setAttribute("aria-live", keyed ? "off" : "polite");
    const { lang } = document.documentElement;
    const sentence = make("p", {}, ...parts);
    if (sentence.textContent === box.textContent && box.lang === lang) return;
    box.lang = lang;
    refill(box, ...sentence.childNodes);
  }

  /** What rows and columns are; or that what is shown is from before an ablation. */
  showAxes(heads) {
    const { ablation, attention, axes, rows } = this.explorer;
    const { status } = ablation;
    const note = byId("axes-note");
    note.hidden = !status && !document.querySelector("#maps .map-canvas");
    note.classList.toggle("off", Boolean(status));
    if (note.hidden) return;
    if (status) return refill(note, say(OFF[status.kind], { word: status.name }));
    const nameOf = (axis) => ({ image: "axisPatch", audio: "axisMoment" })[axis.kind];
    const written = { written: "axisWritten", read: "axisRead" }[rows];
    const row = nameOf(axes[attention.queries]) ?? written ?? "axisToken";
    const column = nameOf(axes[attention.keys]) ?? (attention.kind === "cross" ? "axisSource" : "axisSame");
    const whole = heads.every((head) => this.explorer.headOf(head).whole);
    const weights = term("attention", say("axesWeights"));
    const blanks = {
      row: say(row),
      column: say(column),
      sum: say(whole ? "sumAll" : "sumSome"),
      weights,
    };
    const sentence = make("p", {}, ...sayAround("axes", blanks));
    if (sentence.textContent !== note.textContent) refill(note, ...sentence.childNodes);
  }
}

/** The mean of the answers of several heads. */
function meanOf(answers, first) {
  if (!answers.every((answer) => answer?.weights)) return null;
  const [{ added, visible }] = answers;
  const mean = (numberOf) => answers.reduce((sum, answer) => sum + numberOf(answer), 0) / answers.length;
  const weights = answers[0].weights.map((_, i) => mean((answer) => answer.weights[i]));
  return {
    weights,
    top: largest(weights, LISTED_WEIGHTS).map(([index, weight]) => [index + first, weight]),
    received: mean((answer) => answer.received),
    added,
    visible: answers.every((answer) => answer.visible === visible) ? visible : null,
    odd: weights.some((weight) => !Number.isFinite(weight)),
  };
}
