// Two answers side by side, before and after, with what changed marked.

import { say } from "../words/languages.js";
import { make } from "./elements.js";

const COMPARED_LETTERS = 4000; // of a longer text only the beginning is compared
const SHARED = 160; // letters of a common beginning; of a longer one the end is shown

/** Both texts in two columns; one line if they are the same. `id` is that of the text after, `names` are phrases. */
export function showBeforeAfter(before, after, id, names = ["before", "after"]) {
  if (before === after) return make("p", { class: "soft", id, text: say("sameText") });
  const runs = compareTexts(before, after);
  const [kind, text] = runs[0] ?? [];
  if (kind === "same" && text.length > SHARED) runs[0] = ["same", `… ${text.slice(-SHARED / 2)}`];
  return make("div", { class: "before-after" }, column(names[0], "gone", runs), column(names[1], "new", runs, id));
}

function column(name, shownKind, runs, id = null) {
  const parts = runs
    .filter(([kind]) => kind === "same" || kind === shownKind)
    .map(([kind, text]) => (kind === "same" ? text : make(shownKind === "gone" ? "del" : "ins", { text })));
  return make(
    "div",
    {},
    make("div", { class: "soft tiny", text: say(name) }),
    make("div", { class: "ablated", id, dir: "auto" }, ...parts),
  );
}

/** The runs of two texts: [kind, text] with "same", "gone" (only before) or "new" (only after), in order. */
function compareTexts(before, after) {
  const runs = [];
  for (const [kind, text] of edits(pieces(before), pieces(after))) {
    if (runs.at(-1)?.[0] === kind) runs.at(-1)[1] += text;
    else runs.push([kind, text]);
  }
  return runs;
}

/** Words with the space after them; letters where a language has no spaces. */
function pieces(text) {
  return (
    text.slice(0, COMPARED_LETTERS).match(/[\u3000-\u9fff\uac00-\ud7af]|[^\s\u3000-\u9fff\uac00-\ud7af]+\s*|\s+/gu) ??
    []
  );
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
  const changes = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < young.length) {
    if (i < old.length && j < young.length && same(i, j)) {
      changes.push(["same", young[j++]]);
      i++;
    } else if (i < old.length && (j === young.length || table[i + 1][j] >= table[i][j + 1]))
      changes.push(["gone", old[i++]]);
    else changes.push(["new", young[j++]]);
  }
  return changes;
}
