// The ablation pane: the model's answer with heads switched off, or with words hidden.

import { byId, make, refill } from "../draw/elements.js";
import { showBeforeAfter } from "../draw/before_after.js";
import { headTitle } from "../words/captions.js";
import { say, sayRole } from "../words/languages.js";
import { formatNumber } from "../data/tokens.js";

const answers = new Map(); // by what is switched off or hidden; one at a time
let scope = "head"; // what the button switches off: "head", "layer" or "role"

/** What can be switched off: this head or two, its layer, and all heads of its role; [{value, label, title, off}]. */
function scopesOf(explorer) {
  const { attention, scene, state } = explorer;
  const own = new Map([[state.name, [state.head]]]);
  if (state.other) own.set(state.other.name, [...(own.get(state.other.name) ?? []), state.other.head]);
  const found = [{ value: "head", label: say(state.other ? "scopeHeads" : "scopeHead"), off: toList(own) }];
  if (!explorer.live) return found;
  const layer = new Map([[state.name, attention.heads.map((head) => head.number)]]);
  if (attention.heads.length > 1) found.push({ value: "layer", label: say("scopeLayer"), off: toList(layer) });
  const { role } = explorer;
  const alike = new Map(scene.attentions.map((one) => [one.name, one.heads.filter((head) => head.role === role).map((head) => head.number)]).filter(([, heads]) => heads.length));
  const several = [...alike.values()].flat().length > 1;
  if (role && several) found.push({ value: "role", label: say("scopeRole", { role: sayRole(role) }), off: toList(alike) });
  return found;
}

function toList(heads) {
  return [...heads].map(([name, numbers]) => ({ name, heads: numbers }));
}

function countOf(off) {
  return off.reduce((sum, one) => sum + one.heads.length, 0);
}

function chosenScope(explorer) {
  const scopes = scopesOf(explorer);
  return scopes.find((one) => one.value === scope) ?? scopes[0];
}

/** The text whose words can be hidden, and the tokens to hide: all pieces of the pinned words. */
function hiddenWords(explorer) {
  const axis = explorer.axes.source ?? explorer.axes.tokens;
  if (!explorer.live || !axis) return null;
  const { prompt = 0 } = explorer.scene.output ?? {};
  const end = axis.name === "tokens" && prompt > 0 ? prompt : axis.length; // what a language model writes itself is not hidden
  const words = explorer.pinnedOn(axis).flatMap((position) => (axis.kind === "text" ? axis.wordAt(position) : [position]));
  return { axis, positions: [...new Set(words)].filter((position) => position < end).sort((one, other) => one - other) };
}

/** Requests the answer without the chosen heads, or switches them on again. */
export async function toggleAblation(explorer) {
  if (!explorer.switchable) return;
  const { off } = chosenScope(explorer);
  await toggle(explorer, JSON.stringify(off), () => explorer.source.ablate(off), "ablation");
}

/** Requests the answer with the pinned words hidden, or shows them to the model again. */
async function toggleHiding(explorer) {
  const { axis, positions } = hiddenWords(explorer);
  await toggle(explorer, hidingKey(axis, positions), () => explorer.source.ablate([], { [axis.name]: positions }), "hiding");
}

function hidingKey(axis, positions) {
  return `${axis.name}: ${positions}`;
}

async function toggle(explorer, key, ask, box) {
  const before = answers.get(key);
  answers.clear();
  if (before && !before.waiting) return explorer.ablated(box);
  const waiting = { waiting: true };
  answers.set(key, waiting);
  explorer.ablated(box);
  let answer;
  try {
    answer = await ask();
  } catch (problem) {
    answer = { problem: problem.message };
  }
  if (answers.get(key) !== waiting) return; // something else was asked meanwhile
  answers.set(key, answer);
  explorer.ablated(box);
}

/** The answer without the chosen heads or words, if it was requested. */
export function ablationOf(explorer) {
  const words = hiddenWords(explorer);
  return answers.get(JSON.stringify(chosenScope(explorer).off)) ?? (words && answers.get(hidingKey(words.axis, words.positions))) ?? null;
}

/** Whether a token is hidden from the model now. */
export function isConcealed(explorer, axis, position) {
  const words = hiddenWords(explorer);
  return Boolean(words && axis.reads === words.axis.reads && words.positions.includes(position) && answers.has(hidingKey(words.axis, words.positions)));
}

/** Removes the answers for another text. */
export function clearAblations() {
  answers.clear();
}

/** What is off now: "head", "heads" or "word", with its name; null where the model is whole. */
export function stateOfModel(explorer) {
  const known = (answer) => answer && !answer.waiting && !answer.problem;
  if (explorer.switchable && known(answers.get(JSON.stringify(chosenScope(explorer).off)))) return { kind: explorer.state.other ? "heads" : "head", mark: say("offMark") };
  const words = hiddenWords(explorer);
  if (!words || !known(answers.get(hidingKey(words.axis, words.positions)))) return null;
  const name = hiddenName(words);
  return { kind: name ? "word" : "words", name, mark: say(name ? "hiddenMark" : "hiddenMarks", { word: name, count: words.positions.length }) };
}

/** The hidden word, if its tokens stand together in a text; else "". */
function hiddenName({ axis, positions }) {
  const together = positions.length <= 4 && positions.at(-1) - positions[0] < positions.length;
  return axis.kind === "text" && together ? axis.textOf(positions) : "";
}

/** The mark beside the title of a head that is switched off, or from which a word is hidden. */
export function makeOffMark(explorer) {
  const mark = make("span", { class: "off-mark" });
  showOffMark(explorer, mark);
  return mark;
}

function showOffMark(explorer, mark) {
  const state = stateOfModel(explorer);
  mark.textContent = state?.mark ?? "";
  mark.hidden = !state;
}

/** Shows in the captions whether the model is whole. */
export function paintOffMarks(explorer) {
  for (const mark of document.querySelectorAll(".off-mark")) showOffMark(explorer, mark);
}

export function paintAblation(explorer) {
  const box = byId("ablation");
  if (!explorer.switchable) return refill(box, make("p", { class: "soft tiny", text: say("notLive") }));
  const chosen = chosenScope(explorer);
  const answer = answers.get(JSON.stringify(chosen.off)) ?? null;
  refill(box, scopeButtons(explorer, chosen), switchButton(explorer, chosen, answer), ...resultOf(explorer, answer, "ablated", "withoutHeads", countOf(chosen.off)));
}

/** The button that hides the pinned words, and the answer without them. */
export function paintHiding(explorer) {
  const box = byId("hiding");
  const words = hiddenWords(explorer);
  box.hidden = !words;
  if (!words) return;
  const { axis, positions } = words;
  if (!positions.length) return refill(box, make("p", { class: "soft tiny", id: "hide-hint", text: say(axis.kind === "text" ? "hideHint" : "hideHintPlaces") }));
  const answer = answers.get(hidingKey(axis, positions)) ?? null;
  const name = hiddenName(words);
  const label = name ? say("hideWord", { word: name }) : say("hideTokens", { count: positions.length });
  const button = make("button", {
    type: "button", class: "switch", id: "hide-word", title: say("hideTitle"), "aria-pressed": String(Boolean(answer)), on: { click: () => toggleHiding(explorer) },
  }, answer && !answer.waiting ? say("showAgain") : label);
  refill(box, button, ...resultOf(explorer, answer, "hidden-answer", "withoutWords"));
}

function scopeButtons(explorer, chosen) {
  const scopes = scopesOf(explorer);
  if (scopes.length < 2) return null;
  const buttons = scopes.map(({ value, label, off }) => make("button", {
    type: "button", value, text: label, "aria-pressed": String(value === chosen.value), title: off.slice(0, 12).map(({ name, heads }) => headTitle(explorer, { name, head: heads.join(", ") })).join("\n"),
    on: { click: () => {
      scope = value;
      explorer.ablated("ablation");
      byId("ablation").querySelector(`button[value="${value}"]`)?.focus();
    } },
  }));
  return make("div", { class: "segmented scopes", role: "group", "aria-label": say("scopes") }, ...buttons);
}

function switchButton(explorer, { off }, answer) {
  const count = countOf(off);
  const label = answer && !answer.waiting ? say(count > 1 ? "switchAllOn" : "switchOn") : count === 1 ? say("switchOff") : explorer.state.other && count === 2 ? say("switchTwoOff") : say("switchManyOff", { count });
  return make("button", {
    type: "button", class: "switch", id: "switch-off", "aria-pressed": String(Boolean(answer)), on: { click: () => toggleAblation(explorer) },
  }, label, make("kbd", { text: "x" }));
}

/** What the answer and the loss show, and no more than that; null where neither is known. A text drawn at random shows nothing. */
function verdictOf({ text, loss, sampled }, before) {
  const [old, now] = loss?.every(Number.isFinite) ? loss.map((value) => Number(value.toFixed(2))) : [null, null];
  const grown = old === null ? null : Math.sign(now - old);
  if (text === undefined || text === null || (sampled && text !== before)) return grown === null ? null : ["verdictBetter", "verdictAlike", "verdictWorse"][grown + 1];
  if (text !== before) return "verdictChanged";
  return grown === null ? "verdictSame" : ["verdictSurer", "verdictNeedless", "verdictLessSure"][grown + 1];
}

function resultOf(explorer, answer, id, without, count = 1) {
  const found = [];
  if (answer?.waiting) found.push(make("p", { class: "soft", text: say("switching") }));
  if (answer?.problem) found.push(make("p", { class: "problem", text: answer.problem }));
  const before = answer?.before_text ?? explorer.scene.output?.text ?? "";
  const verdict = answer && verdictOf(answer, before);
  const changed = typeof answer?.text === "string" && answer.text !== before;
  if (verdict) found.push(make("p", { class: verdict === "verdictChanged" ? "verdict off" : "verdict", id: changed ? null : id, text: say(verdict, { without: say(without, { count }), count }) }));
  if (changed) found.push(showBeforeAfter(before, answer.text, id, without === "withoutHeads" ? ["beforeOff", "afterOff"] : undefined));
  if (changed && answer.sampled) found.push(make("p", { class: "soft", text: say("drawnAtRandom") }));
  if (answer?.loss?.every(Number.isFinite)) found.push(make("p", { class: "soft", text: say("loss", { before: formatNumber(answer.loss[0], 2), after: formatNumber(answer.loss[1], 2) }) }));
  return found;
}
