// The ablation pane: the model's answer with heads switched off.

import { byId, make, refill } from "../draw/elements.js";
import { say } from "../words/languages.js";
import { formatNumber } from "../data/tokens.js";

const answers = new Map();

function chosenKey({ name, head, other }) {
  return JSON.stringify([name, head, other?.name, other?.head]);
}

/** Requests the answer without the chosen heads, or switches them on again. */
export async function toggleAblation(explorer) {
  if (!explorer.switchable) return;
  const { state } = explorer;
  const key = chosenKey(state);
  if (answers.has(key)) {
    answers.delete(key);
    return explorer.ablated();
  }
  answers.clear();
  answers.set(key, { waiting: true });
  explorer.ablated();
  const off = new Map([[state.name, [state.head]]]);
  if (state.other) off.set(state.other.name, [...(off.get(state.other.name) ?? []), state.other.head]);
  try {
    answers.set(key, await explorer.source.ablate([...off].map(([name, heads]) => ({ name, heads }))));
  } catch (problem) {
    answers.set(key, { problem: problem.message });
  }
  explorer.ablated();
}

/** The answer without the chosen heads, if it was requested. */
export function ablationOf(explorer) {
  return answers.get(chosenKey(explorer.state)) ?? null;
}

/** Removes the answers for another text. */
export function clearAblations() {
  answers.clear();
}

export function paintAblation(explorer) {
  const box = byId("ablation");
  if (!explorer.switchable) return refill(box, make("p", { class: "soft tiny", text: say("notLive") }));
  const answer = ablationOf(explorer);
  const label = answer && !answer.waiting ? "switchOn" : explorer.state.other ? "switchTwoOff" : "switchOff";
  const button = make("button", {
    type: "button", class: "switch", id: "switch-off", "aria-pressed": String(Boolean(answer)), on: { click: () => toggleAblation(explorer) },
  }, say(label), make("kbd", { text: "x" }));
  const found = [];
  if (answer?.waiting) found.push(make("p", { class: "soft", text: say("switching") }));
  if (answer?.problem) found.push(make("p", { class: "problem", text: answer.problem }));
  if (answer?.text !== undefined && answer.text !== null) {
    const before = answer.before_text ?? explorer.scene.output?.text ?? "";
    found.push(before === answer.text
      ? make("p", { class: "soft", id: "ablated", text: say("sameText") })
      : make("p", { class: "ablated", id: "ablated" }, ...differences(before, answer.text)));
  }
  if (answer?.loss?.every(Number.isFinite)) found.push(make("p", { class: "soft", text: say("loss", { before: formatNumber(answer.loss[0], 2), after: formatNumber(answer.loss[1], 2) }) }));
  refill(box, button, ...found);
}

/** The new text with deletions and insertions marked. */
function differences(before, after) {
  const [old, young] = [pieces(before), pieces(after)];
  const parts = [];
  for (const [kind, text] of edits(old, young)) {
    parts.push(kind === "same" ? text : make(kind === "gone" ? "del" : "ins", { text: text.trim() }), kind === "same" ? "" : " ");
  }
  return parts;
}

/** Words with the space after them; letters where a language has no spaces. */
function pieces(text) {
  return text.slice(0, 4000).match(/[\u3000-\u9fff\uac00-\ud7af]|[^\s\u3000-\u9fff\uac00-\ud7af]+\s*|\s+/gu) ?? [];
}

/** The shortest way from one list to the other, by the longest common subsequence. */
function edits(old, young) {
  const same = (i, j) => old[i].trim() === young[j].trim();
  const table = Array.from({ length: old.length + 1 }, () => new Uint16Array(young.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = young.length - 1; j >= 0; j--) {
      table[i][j] = same(i, j) ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < young.length) {
    if (i < old.length && j < young.length && same(i, j)) {
      found.push(["same", young[j++]]);
      i++;
    } else if (i < old.length && (j === young.length || table[i + 1][j] >= table[i][j + 1])) found.push(["gone", old[i++]]);
    else found.push(["new", young[j++]]);
  }
  return found;
}
