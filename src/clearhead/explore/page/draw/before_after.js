// Two answers side by side, before and after, with what changed marked.

import { make } from "./elements.js";
import { say } from "../words/languages.js";
import { compareTexts } from "../data/word_diff.js";

const SHARED = 160; // letters of a common beginning; of a longer one the end is shown

/** Both texts in two columns; one line if they are the same. `id` is that of the text after, `names` are phrases. */
export function showBeforeAfter(before, after, id, names = ["before", "after"]) {
  if (before === after) return make("p", { class: "soft", id, text: say("sameText") });
  const runs = compareTexts(before, after);
  const [kind, text] = runs[0] ?? [];
  if (kind === "same" && text.length > SHARED) runs[0] = ["same", `… ${text.slice(-SHARED / 2)}`];
  return make("div", { class: "before-after" }, column(names[0], "gone", runs), column(names[1], "new", runs, id));
}

function column(name, own, runs, id = null) {
  const parts = runs.filter(([kind]) => kind === "same" || kind === own)
    .map(([kind, text]) => (kind === "same" ? text : make(own === "gone" ? "del" : "ins", { text })));
  return make("div", {}, make("div", { class: "soft tiny", text: say(name) }), make("div", { class: "ablated", id, dir: "auto" }, ...parts));
}
