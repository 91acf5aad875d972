// The ablation pane: the model's answer with heads switched off, or with words hidden.

import { formatNumber } from "../data/number_format.js";
import { showBeforeAfter } from "../draw/before_after.js";
import { byId, make, makeButton, makeNote, refill } from "../draw/elements.js";
import { say } from "../words/languages.js";
import { headTitle } from "./captions.js";

const TITLED = 12; // attentions of a scope that its tooltip lists

export function paintAblation(explorer) {
  const box = byId("ablation");
  if (!explorer.switchable) return refill(box, makeNote(say("notLive"), "soft tiny"));
  const { ablation } = explorer;
  const answer = ablation.withoutHeads;
  const focused = box.contains(document.activeElement) ? document.activeElement.value : "";
  const result = showResult(explorer, answer, "ablated", "withoutHeads", ablation.count);
  refill(box, scopeButtons(explorer), switchButton(explorer, answer), ...result);
  if (focused) box.querySelector(`button[value="${focused}"]`)?.focus();
}

/** The button that hides the pinned words, and the answer without them. */
export function paintHiding(explorer) {
  const { ablation } = explorer;
  const { words } = ablation;
  const box = byId("hiding");
  box.hidden = !words;
  if (!words) return;
  const { axis, name, positions } = words;
  if (!positions.length) {
    const hint = say(axis.kind === "text" ? "hideHint" : "hideHintPlaces");
    return refill(box, make("p", { class: "soft tiny", id: "hide-hint", text: hint }));
  }
  const answer = ablation.withoutWords;
  const hide = name ? say("hideWord", { word: name }) : say("hideTokens", { count: positions.length });
  const label = answer && !answer.waiting ? say("showAgain") : hide;
  const options = {
    class: "switch",
    id: "hide-word",
    title: say("hideTitle"),
    "aria-pressed": String(Boolean(answer)),
  };
  const button = makeButton(label, () => ablation.toggleWords(), options);
  refill(box, button, ...showResult(explorer, answer, "hidden-answer", "withoutWords"));
}

function scopeButtons(explorer) {
  const { ablation } = explorer;
  const { scope, scopes } = ablation;
  if (scopes.length < 2) return null;
  const buttons = scopes.map(({ value, label, off }) => {
    const titles = off.slice(0, TITLED).map(({ name, heads }) => headTitle(explorer, { name, head: heads.join(", ") }));
    const options = { value, "aria-pressed": String(value === scope.value), title: titles.join("\n") };
    return makeButton(label, () => ablation.chooseScope(value), options);
  });
  return make("div", { class: "segmented scopes", role: "group", "aria-label": say("scopes") }, ...buttons);
}

function switchButton({ ablation, state }, answer) {
  const { count } = ablation;
  const several = state.other && count === 2 ? say("switchTwoOff") : say("switchManyOff", { count });
  const off = count === 1 ? say("switchOff") : several;
  const label = answer && !answer.waiting ? say(count > 1 ? "switchAllOn" : "switchOn") : off;
  const options = { class: "switch", id: "switch-off", "aria-pressed": String(Boolean(answer)) };
  return makeButton(label, () => ablation.toggleHeads(), options, make("kbd", { text: "x" }));
}

/** The phrase for what answer and loss show; null where neither is known. A text drawn at random shows nothing. */
function verdictOf({ text, loss, sampled }, before) {
  const isKnown = loss?.every(Number.isFinite);
  const [old, now] = isKnown ? loss.map((value) => Number(value.toFixed(2))) : [null, null];
  const grown = isKnown ? Math.sign(now - old) : null;
  if (text === undefined || text === null || (sampled && text !== before)) {
    return grown === null ? null : ["verdictBetter", "verdictAlike", "verdictWorse"][grown + 1];
  }
  if (text !== before) return "verdictChanged";
  return grown === null ? "verdictSame" : ["verdictSurer", "verdictNeedless", "verdictLessSure"][grown + 1];
}

/** The answer without heads or words, with its verdict and its loss. */
function showResult(explorer, answer, id, without, count = 1) {
  if (!answer) return [];
  if (answer.waiting) return [makeNote(say("switching"))];
  if (answer.problem) return [makeNote(answer.problem, "problem")];
  const parts = [];
  const before = answer.before_text ?? explorer.scene.output?.text ?? "";
  const verdict = verdictOf(answer, before);
  const changed = typeof answer.text === "string" && answer.text !== before;
  if (verdict) {
    const text = say(verdict, { without: say(without, { count }), count });
    const tone = verdict === "verdictChanged" ? "verdict off" : "verdict";
    parts.push(make("p", { class: tone, id: changed ? null : id, text }));
  }
  if (changed) {
    const names = without === "withoutHeads" ? ["beforeOff", "afterOff"] : undefined;
    parts.push(showBeforeAfter(before, answer.text, id, names));
  }
  if (changed && answer.sampled) parts.push(makeNote(say("drawnAtRandom")));
  if (answer.loss?.every(Number.isFinite)) {
    const [old, now] = answer.loss.map((loss) => formatNumber(loss, 2));
    parts.push(makeNote(say("loss", { before: old, after: now })));
  }
  return parts;
}
