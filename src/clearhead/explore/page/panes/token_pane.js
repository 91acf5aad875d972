// The token pane: weights of the pinned tokens, the shaded text, and below what the model could have written.

import { formatCount, formatError, formatListed, formatNumber, listDigits } from "../data/number_format.js";
import { fullOf, weightAt } from "../data/token_sums.js";
import { byId, make, makeButton, makeNote, refill } from "../draw/elements.js";
import { say, sayAround } from "../words/languages.js";
import { paintAblation, paintHiding } from "./ablation_pane.js";
import { paintAlternatives } from "./alternatives_pane.js";
import { headName, paintOffMarks } from "./captions.js";
import { term } from "./definitions.js";
import { makeFlow } from "./text_flow.js";

const PAGE_TOKENS = 300; // of a long text, tokens that are shown at once
const LISTED = 8; // weights
const LONG_BAR = 0.01; // of the attention: smaller weights have short bars, whatever the largest is

export class TokenPane {
  constructor(explorer, centre) {
    this.explorer = explorer;
    this.centre = centre;
    this.turn = 0;
  }

  renew() {
    this.flow = null;
    this.update();
  }

  async update() {
    const { explorer } = this;
    const turn = ++this.turn;
    for (const button of byId("directions").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.value === explorer.state.direction));
    }
    this.paintSubject();
    this.paintModel();
    const { other } = explorer.state;
    try {
      const answers = await Promise.all([explorer.answer(), ...(other ? [explorer.answer(other)] : [])]);
      if (turn !== this.turn) return; // the selection has moved on
      this.paintKeys(answers);
    } catch (problem) {
      if (turn !== this.turn) return;
      refill(byId("keys"), makeNote(problem.message, "problem"));
    }
    await this.paintText();
  }

  /** What the model could have written, and what it does without heads or words. */
  paintModel() {
    paintAlternatives(this.explorer);
    paintAblation(this.explorer);
    paintHiding(this.explorer);
    paintOffMarks(this.explorer);
  }

  paintSubject() {
    const { explorer } = this;
    const { asked, state, subject } = explorer;
    const { pinned, positions } = subject;
    const chips = positions.map((position) => {
      const label = asked.label(position, 28);
      if (!pinned) return make("bdi", { class: "chip", text: label });
      const title = say("unpin", { token: label });
      const cross = make("span", { class: "cross", text: "×", "aria-hidden": "true" });
      const unpin = () => explorer.pin(asked.name, position);
      return makeButton(make("bdi", { text: label }), unpin, { class: "chip", title, "aria-label": title }, cross);
    });
    const parts = pinned ? [make("span", { class: "soft", text: say("pinned") }), ...chips] : chips;
    if (positions.length > 1) {
      const phrase = state.direction === "at" ? "averageOf" : "sumOf";
      parts.push(make("span", { class: "soft", text: say(phrase, { count: positions.length }) }));
      if (pinned) parts.push(makeButton(say("unpinAll"), () => explorer.unpin(), { class: "word" }));
    }
    refill(byId("subject"), ...parts);
    byId("pin-hint").hidden = pinned;
  }

  /** The largest weights; beside them, those of the head that is compared. */
  paintKeys(answers) {
    const { explorer } = this;
    const { source, state } = explorer;
    const [answer, second] = answers;
    if (answer.odd) return refill(byId("keys"), makeNote(say("oddRow"), "problem"));
    const heads = second ? [state, state.other] : [state];
    const errors = heads.map(({ name, head }) => source.precision(name, head, true));
    const best = second ? bestOfTwo(explorer, answers) : answer.top;
    if (!best.length) return refill(byId("keys"), makeNote(this.describeNothing(answers, Math.max(...errors))));
    const at = state.direction === "at";
    const normed = !second && at && answer.top.some(([, , norm]) => Number.isFinite(norm));
    const digits = listDigits(best[0][3] ?? best[0][1], Math.max(...errors));
    const most = Math.max(fullOf(...answers), LONG_BAR * answer.added);
    const listed = best
      .slice(0, LISTED)
      .filter(([, weight, , larger = weight], i) => i === 0 || larger >= 0.5 * 10 ** -digits);
    const labels = listed.map(([position]) => explorer.answered.label(position, 20));
    const rows = listed.map(([position, weight, norm], i) => {
      const twice = labels.indexOf(labels[i]) !== labels.lastIndexOf(labels[i]); // tokens that read alike have places
      const weights = second ? [weight, weightAt(explorer, second, position)] : [weight];
      const cells = weights.map((each, k) =>
        cell(formatListed(each, digits, errors[k]), k ? "number second" : "number"),
      );
      if (normed) cells.push(cell(Number.isFinite(norm) ? formatNumber(weight * norm, 2) : "–", "number"));
      return make("tr", {}, this.makeLink(position, labels[i], twice), ...cells, makeBars(weights, most));
    });
    const head = this.makeHead(second, normed);
    const table = make("table", { class: "keys" }, make("thead", {}, head), make("tbody", {}, ...rows));
    table.style.setProperty("--letters", String(digits + 3)); // "<0.001"
    const rest = answer.weights ? null : makeNote(say("onlyTop"), "soft tiny");
    refill(byId("keys"), table, at ? null : makeReceived(answer), rest);
  }

  /** The head of the table of weights. */
  makeHead(second, normed) {
    const { state } = this.explorer;
    const side = state.direction === "at" ? "key" : "query";
    const column = (style, content) => make("th", { scope: "col", class: style }, content);
    return make(
      "tr",
      {},
      column(null, term(side, say(side))),
      column("number", second ? headName(this.explorer, state) : term("weight", say("weight"))),
      second ? column("number second", headName(this.explorer, state.other)) : null,
      normed ? column("number short", term("normed", say("normed"))) : null,
      make("th", { class: "bar-head", "aria-hidden": "true" }),
    );
  }

  /** A token of the table, which the map centres at a click. */
  makeLink(position, label, twice) {
    const { answered } = this.explorer;
    const positionNote = twice ? make("span", { class: "place", text: formatCount(position) }) : null;
    const title = `${position}: ${answered.label(position, 60)}`;
    const show = () => this.centre.centreOn(answered.name, position);
    return make("td", {}, makeButton(make("bdi", { text: label }), show, { class: "link", title }, positionNote));
  }

  /** Why no weight is listed: the mask, the rounding of the file, the keys that it leaves out, or none of these. */
  describeNothing(answers, error) {
    const { state, subject } = this.explorer;
    const at = state.direction === "at";
    const count = subject.positions.length;
    if (answers.every(({ visible }) => visible === 0)) return say(at ? "seesNothing" : "seenByNone", { count });
    if (answers.some(({ weights }) => !weights)) return say(at ? "nothing" : "noneAmongTop", { count });
    if (error > 0) return say(at ? "allRounded" : "noneAbove", { count, error: formatError(error) });
    return say(at ? "nothing" : "noOne", { count });
  }

  async paintText() {
    const { explorer } = this;
    const { answered, asked, subject, state } = explorer;
    if (this.flow?.axis !== answered || this.language !== document.documentElement.lang) {
      this.language = document.documentElement.lang;
      this.flow = this.makeFlow(answered);
      refill(byId("shaded"), this.flow.element);
    }
    const twice = this.centre.pictured && answered.pictured; // the centre shows it already, and larger
    byId("shaded").hidden = byId("shaded-title").hidden = twice;
    if (twice) return;
    const count = subject.positions.length;
    const name = count > 1 ? say("these") : asked.label(subject.positions[0], 24);
    const kind = answered.kind === "audio" ? "sounded" : answered.pictured ? "pictured" : "shaded";
    const blanks = { token: make("bdi", { class: "strong", text: name }), count };
    refill(byId("shaded-title"), ...sayAround(`${kind}${state.direction === "at" ? "At" : "By"}`, blanks));
    this.flow.update(await explorer.shownOn(answered, null, "answered"));
    await this.paintSecondText(answered);
  }

  makeFlow(axis) {
    return makeFlow(this.explorer, axis, { page: PAGE_TOKENS, label: say("token"), width: 300, height: 260 });
  }

  /** The same text, shaded by the head that is compared. */
  async paintSecondText(answered) {
    const { explorer } = this;
    const { other } = explorer.state;
    if (!other || answered.pictured) {
      this.second = null;
      return refill(byId("shaded-second"));
    }
    if (this.second?.axis !== answered) this.second = this.makeFlow(answered);
    const { second } = this;
    refill(byId("shaded-second"), makeNote(headName(explorer, other), "soft tiny"), second.element);
    second.update(await explorer.shownOn(answered, other, "answered"));
  }
}

function cell(text, style) {
  return make("td", { class: style, text });
}

/** A bar for each weight; the longest stands for `most`. */
function makeBars(weights, most) {
  const bars = weights.map((weight, i) => {
    const bar = make("span", { class: i ? "bar second" : "bar" });
    bar.style.width = `${Math.max(2, (100 * (weight ?? 0)) / most)}%`;
    return bar;
  });
  const style = weights.length > 1 ? "bar-cell two-bars" : "bar-cell";
  return make("td", { class: style, "aria-hidden": "true" }, ...bars);
}

/** What a token receives in all. */
function makeReceived({ close, received }) {
  if (!(Number.isFinite(received) && received > 0)) return null;
  const number = close ? `≈${formatNumber(received, 1)}` : formatNumber(received, 2);
  return make("p", { class: "soft" }, term("received", say("received", { received: number })));
}

/** The largest weights of either of two heads: [position, the first head's or null, no norm, the larger]. */
function bestOfTwo(explorer, answers) {
  const positions = new Set(answers.flatMap(({ top }) => top.map(([position]) => position)));
  const best = [...positions].map((position) => {
    const weights = answers.map((answer) => weightAt(explorer, answer, position));
    return [position, weights[0], null, Math.max(...weights.filter(Number.isFinite))];
  });
  return best.sort((left, right) => right[3] - left[3]);
}
