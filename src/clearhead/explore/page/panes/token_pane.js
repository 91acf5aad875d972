// The token pane: weights of the pinned tokens, the shaded text, and below what the model could have written.

import { headName } from "../words/captions.js";
import { byId, make, refill } from "../draw/elements.js";
import { TokenFlow } from "./text_flow.js";
import { term } from "./definitions.js";
import { say, sayAround } from "../words/languages.js";
import { PictureFlow, isPictured } from "./picture_flow.js";
import { paintAblation, paintHiding, paintOffMarks } from "./ablation_pane.js";
import { paintAlternatives } from "./alternatives_pane.js";
import { formatError, formatListed, listDigits } from "../data/number_format.js";
import { fullOf, weightAt } from "../data/token_sums.js";
import { formatCount, formatNumber } from "../data/tokens.js";

const PAGE = 300;
const LONG_BAR = 0.01; // of the attention: smaller weights have short bars, whatever the largest is

export class TokenPane {
  constructor(explorer, shownOn, centre) {
    this.explorer = explorer;
    this.shownOn = shownOn;
    this.centre = centre;
    this.turn = 0;
    explorer.ablated = (box) => {
      this.paintModel();
      explorer.textsChanged();
      explorer.explain();
      this.centre.repaint(); // the mark beside the title may take a line
      byId(box).scrollIntoView({ block: "nearest" });
    };
    for (const button of byId("directions").querySelectorAll("button")) {
      button.addEventListener("click", () => explorer.store.set({ direction: button.value }));
    }
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
    let answer = null;
    let second = null;
    try {
      answer = await explorer.answer();
      if (explorer.state.other) second = await explorer.answer(explorer.state.other);
    } catch (problem) {
      if (turn !== this.turn) return;
      refill(byId("keys"), make("p", { class: "problem", text: problem.message }));
      return this.paintText();
    }
    if (turn !== this.turn) return; // the selection has moved on
    this.paintKeys(answer, second);
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
    const { asked, subject } = explorer;
    const chips = subject.positions.map((position) => {
      const label = asked.label(position, 28);
      if (!subject.pinned) return make("bdi", { class: "chip", text: label });
      const name = say("unpin", { token: label });
      return make("button", { type: "button", class: "chip", title: name, "aria-label": name, on: { click: () => explorer.pin(asked.name, position) } },
        make("bdi", { text: label }), make("span", { class: "cross", text: "×", "aria-hidden": "true" }));
    });
    const several = subject.positions.length > 1;
    refill(byId("subject"),
      subject.pinned ? make("span", { class: "soft", text: say("pinned") }) : null, ...chips,
      several ? make("span", { class: "soft", text: say(explorer.state.direction === "at" ? "averageOf" : "sumOf", { count: subject.positions.length }) }) : null,
      several && subject.pinned ? make("button", { type: "button", class: "word", text: say("unpinAll"), on: { click: () => explorer.unpin() } }) : null);
    byId("pin-hint").hidden = subject.pinned;
  }

  /** The largest weights; beside them, those of the head that is compared. */
  paintKeys(answer, second) {
    const { explorer } = this;
    const { answered, state } = explorer;
    const at = state.direction === "at";
    const best = second ? bestOfTwo(explorer, answer, second) : answer.top;
    if (answer.odd) return refill(byId("keys"), make("p", { class: "problem", text: say("oddRow") }));
    const shown = [state, ...(second ? [state.other] : [])];
    const errors = shown.map((one) => explorer.source.precision(one.name, one.head, true));
    if (!best.length) return refill(byId("keys"), make("p", { class: "soft", text: this.describeNothing([answer, ...(second ? [second] : [])], Math.max(...errors)) }));
    const normed = !second && at && answer.top.some(([, , norm]) => norm !== null && norm !== undefined);
    const most = Math.max(fullOf(answer, second), LONG_BAR * answer.added);
    const digits = listDigits(best[0][3] ?? best[0][1], Math.max(...errors));
    const head = make("tr", {},
      make("th", { scope: "col" }, term(at ? "key" : "query", say(at ? "key" : "query"))), make("th", { scope: "col", class: "number" }, second ? headName(explorer, state) : term("weight", say("weight"))),
      second ? make("th", { scope: "col", class: "number second", text: headName(explorer, state.other) }) : null,
      normed ? make("th", { scope: "col", class: "number short" }, term("normed", say("normed"))) : null,
      make("th", { class: "bar-head", "aria-hidden": "true" }));
    const listed = best.slice(0, 8).filter(([, weight, , most = weight], i) => i === 0 || most >= 0.5 * 10 ** -digits);
    const labels = listed.map(([position]) => answered.label(position, 20)); // of tokens that read alike, their places
    const rows = listed.map(([position, weight, norm]) => {
      const label = answered.label(position, 20);
      const place = labels.indexOf(label) === labels.lastIndexOf(label) ? null : make("span", { class: "place", text: formatCount(position) });
      const go = make("button", { type: "button", class: "link", title: `${position}: ${answered.label(position, 60)}`, on: { click: () => this.centre.centreOn(answered.name, position) } }, make("bdi", { text: label }), place);
      const bar = make("span", { class: "bar" });
      bar.style.width = `${Math.max(2, (100 * (weight ?? 0)) / most)}%`;
      const bar2 = second ? make("span", { class: "bar second" }) : null;
      if (second) bar2.style.width = `${Math.max(2, (100 * (weightAt(explorer, second, position) ?? 0)) / most)}%`;
      return make("tr", {}, make("td", {}, go), make("td", { class: "number", text: formatListed(weight, digits, errors[0]) }),
        second ? make("td", { class: "number second", text: formatListed(weightAt(explorer, second, position), digits, errors[1]) }) : null,
        normed ? make("td", { class: "number", text: norm === null ? "–" : formatNumber(weight * norm, 2) }) : null,
        make("td", { class: second ? "bar-cell two-bars" : "bar-cell", "aria-hidden": "true" }, bar, bar2));
    });
    const all = !at && Number.isFinite(answer.received) && answer.received > 0 ? make("p", { class: "soft" }, term("received", say("received", { received: answer.close ? `≈${formatNumber(answer.received, 1)}` : formatNumber(answer.received, 2) }))) : null;
    const table = make("table", { class: "keys" }, make("thead", {}, head), make("tbody", {}, ...rows));
    table.style.setProperty("--letters", String(digits + 3)); // "<0.001"
    refill(byId("keys"), table, all,
      answer.weights ? null : make("p", { class: "soft tiny", text: say("onlyTop") }));
  }

  /** Why there is no weight to list: the mask, the rounding of the file, the keys that it leaves out, or none of these. */
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
    if (this.flow?.axis !== answered || this.spoken !== document.documentElement.lang) {
      const options = { page: PAGE, label: say("token"), width: 300, height: 260 };
      this.flow = isPictured(answered) ? new PictureFlow(answered, explorer.callbacksOf(answered), options) : new TokenFlow(answered, explorer.callbacksOf(answered), options);
      this.spoken = document.documentElement.lang;
      refill(byId("shaded"), this.flow.element);
    }
    const twice = this.centre.pictured && isPictured(answered); // the centre shows it already, and larger
    byId("shaded").hidden = byId("shaded-title").hidden = twice;
    if (twice) return;
    const name = subject.positions.length > 1 ? say("these") : asked.label(subject.positions[0], 24);
    const kind = answered.kind === "audio" ? "sounded" : isPictured(answered) ? "pictured" : "shaded";
    refill(byId("shaded-title"), ...sayAround(`${kind}${state.direction === "at" ? "At" : "By"}`, { token: make("bdi", { class: "strong", text: name }), count: subject.positions.length }));
    this.flow.update(await this.shownOn(answered, null, "answered"));
    await this.paintSecondText(answered);
  }

  /** The same text, shaded by the head that is compared. */
  async paintSecondText(answered) {
    const { explorer } = this;
    const { other } = explorer.state;
    if (!other || isPictured(answered)) {
      this.second = null;
      return refill(byId("shaded-second"));
    }
    if (this.second?.axis !== answered) this.second = new TokenFlow(answered, explorer.callbacksOf(answered), { page: PAGE, label: say("token"), width: 300, height: 260 });
    const { second } = this;
    refill(byId("shaded-second"), make("p", { class: "soft tiny", text: headName(explorer, other) }), second.element);
    second.update(await this.shownOn(answered, other, "answered"));
  }
}

/** The largest weights of either of two heads: [position, the first head's or null, no norm, the larger]. */
function bestOfTwo(explorer, one, other) {
  const positions = new Set([...one.top, ...other.top].map(([position]) => position));
  const found = [...positions].map((position) => {
    const weights = [one, other].map((answer) => weightAt(explorer, answer, position));
    return [position, weights[0], null, Math.max(...weights)];
  });
  return found.sort((a, b) => b[3] - a[3]);
}
