// What is taken from the model: heads that are switched off, or words that are hidden, and its answer without them.

import { say, sayRole } from "../words/languages.js";

export class Ablation {
  constructor(explorer) {
    this.explorer = explorer;
    this.chosenScope = "head"; // what the button switches off: "head", "layer" or "role"
    this.pane = "ablation"; // where the answer is shown: "ablation" or "hiding"
    this.request = null; // {key, pane, waiting, problem, …answer}: one at a time
  }

  /** What can be switched off: this head or two, its layer, and all heads of its role; [{value, label, off}]. */
  get scopes() {
    const { attention, live, role, scene, state } = this.explorer;
    const heads = new Map([[state.name, [state.head]]]);
    if (state.other) heads.set(state.other.name, [...(heads.get(state.other.name) ?? []), state.other.head]);
    const scopes = [{ value: "head", label: say(state.other ? "scopeHeads" : "scopeHead"), off: listHeads(heads) }];
    if (!live) return scopes;
    const layer = new Map([[state.name, attention.heads.map((head) => head.number)]]);
    if (attention.heads.length > 1) scopes.push({ value: "layer", label: say("scopeLayer"), off: listHeads(layer) });
    const numbersOf = ({ heads }) => heads.filter((head) => head.role === role).map((head) => head.number);
    const alike = new Map(
      scene.attentions.map((each) => [each.name, numbersOf(each)]).filter(([, numbers]) => numbers.length),
    );
    if (role && [...alike.values()].flat().length > 1) {
      scopes.push({ value: "role", label: say("scopeRole", { role: sayRole(role) }), off: listHeads(alike) });
    }
    return scopes;
  }

  get scope() {
    const { scopes } = this;
    return scopes.find(({ value }) => value === this.chosenScope) ?? scopes[0];
  }

  /** How many heads the button switches off. */
  get count() {
    return this.scope.off.reduce((sum, { heads }) => sum + heads.length, 0);
  }

  chooseScope(value) {
    this.chosenScope = value;
    this.explorer.store.emit("ablation");
  }

  /** The text whose words can be hidden, and the tokens to hide: all pieces of the pinned words. */
  get words() {
    const { axes, live, scene } = this.explorer;
    const axis = axes.source ?? axes.tokens;
    if (!live || !axis) return null;
    const { prompt = 0 } = scene.output ?? {};
    const end = axis.name === "tokens" && prompt > 0 ? prompt : axis.length; // what the model wrote cannot be hidden
    const pinned = this.explorer.pinnedOn(axis);
    const words = pinned.flatMap((position) => (axis.kind === "text" ? axis.wordAt(position) : [position]));
    const positions = [...new Set(words)].filter((position) => position < end).sort((left, right) => left - right);
    const together = positions.length <= 4 && positions.at(-1) - positions[0] < positions.length;
    return { axis, positions, name: axis.kind === "text" && together ? axis.textOf(positions) : "" };
  }

  /** The answer without the chosen heads, if it was requested; below, without the pinned words, or without either. */
  get withoutHeads() {
    return this.answerTo(JSON.stringify(this.scope.off));
  }

  get withoutWords() {
    const { words } = this;
    return words && this.answerTo(keyOfWords(words));
  }

  get answer() {
    return this.withoutHeads ?? this.withoutWords;
  }

  answerTo(key) {
    return this.request?.key === key ? this.request : null;
  }

  /** Whether a token is hidden from the model now. */
  hides(axis, position) {
    const { words } = this;
    return Boolean(this.withoutWords && axis.reads === words.axis.reads && words.positions.includes(position));
  }

  /** What is off now: "head", "heads", "word" or "words", and its mark in captions; null where the model is whole. */
  get status() {
    const isKnown = (answer) => answer && !answer.waiting && !answer.problem;
    if (this.explorer.switchable && isKnown(this.withoutHeads)) {
      return { kind: this.explorer.state.other ? "heads" : "head", mark: say("offMark") };
    }
    if (!isKnown(this.withoutWords)) return null;
    const { name, positions } = this.words;
    if (name) return { kind: "word", name, mark: say("hiddenMark", { word: name }) };
    return { kind: "words", name, mark: say("hiddenMarks", { count: positions.length }) };
  }

  /** Requests the answer without the chosen heads, or switches them on again. */
  async toggleHeads() {
    const { source, switchable } = this.explorer;
    const { off } = this.scope;
    if (switchable) await this.toggle(JSON.stringify(off), "ablation", () => source.ablate(off));
  }

  /** Requests the answer with the pinned words hidden, or shows them to the model again. */
  async toggleWords() {
    const { words } = this;
    const hide = { [words.axis.name]: words.positions };
    await this.toggle(keyOfWords(words), "hiding", () => this.explorer.source.ablate([], hide));
  }

  async toggle(key, pane, ask) {
    const { store } = this.explorer;
    const before = this.answerTo(key);
    const request = before && !before.waiting ? null : { key, waiting: true };
    this.request = request;
    this.pane = pane;
    store.emit("ablation");
    if (!request) return;
    const answer = await ask().catch((problem) => ({ problem: problem.message }));
    if (this.request !== request) return; // something else was asked meanwhile
    this.request = { key, ...answer };
    store.emit("ablation");
  }
}

function listHeads(heads) {
  return [...heads].map(([name, numbers]) => ({ name, heads: numbers }));
}

function keyOfWords({ axis, positions }) {
  return `${axis.name}: ${positions}`;
}
