// The tooltip of a cell: query, key and weight.

import { headName } from "../words/captions.js";
import { byId, make, refill } from "../draw/elements.js";
import { say } from "../words/languages.js";
import { formatCount, formatNumber } from "../data/tokens.js";

/** The note on a cell of a map. */
export function cellNote(explorer, view, { q, k }) {
  const { attention, tiles, queries, keys } = view;
  const known = tiles.at(q, k);
  const first = attention.first;
  const head = headName(explorer, view.chosen);
  if (!known) return { query: "", key: "", value: say("loading"), head, spoken: say("loading") };
  const single = known.rows === 1 && known.columns === 1;
  const query = known.rows === 1 ? queries.label(q + first[0], 32) : range(known.q0 + first[0], known.rows);
  const key = known.columns === 1 ? keys.label(k + first[1], 32) : range(known.k0 + first[1], known.columns);
  const value = single ? precise(known.share) : say("share", { share: formatNumber(known.share, 4) });
  const place = single ? `${formatCount(q + first[0])} → ${formatCount(k + first[1])}` : "";
  return { query, key, value, place, head, spoken: `${say("query")} ${query}, ${say("key")} ${key}, ${say("weight")} ${value}` };
}

/** A weight between two tokens, as a note. */
export function noteOf(query, key, weight) {
  const value = precise(weight);
  return { query, key, value, spoken: `${say("query")} ${query}, ${say("key")} ${key}, ${say("weight")} ${value}` };
}

/** Four decimals, or a power of ten for smaller weights. */
function precise(weight) {
  return weight > 0 && weight < 0.00005 ? weight.toExponential(1).replace("e-", "·10⁻").replace(/⁻(\d+)$/, (_, power) => `⁻${superscript(power)}`) : weight.toFixed(4);
}

function superscript(digits) {
  return Array.from(digits, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]).join("");
}

function range(first, count) {
  return say("tokensRange", { first: formatCount(first), last: formatCount(first + count - 1) });
}

/** Shows the note beside the pointer, inside the window. */
export function showTip(notes, place) {
  const tip = byId("tip");
  const [main] = notes;
  refill(tip,
    make("span", { class: "tip-line" },
      make("span", { class: "soft", text: say("query") }), make("bdi", { text: main.query }),
      make("span", { class: "soft", text: `→ ${say("key")}` }), make("bdi", { text: main.key }),
      ...notes.map((note) => make("span", { class: "value" }, notes.length > 1 ? make("span", { class: "soft", text: note.head }) : null, make("strong", { text: note.value })))),
    main.place ? make("span", { class: "tip-place", text: main.place }) : null);
  tip.hidden = false;
  const [x, y] = place;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(6, Math.min(x + 14, window.innerWidth - width - 6));
  const top = y + 22 + height > window.innerHeight ? y - height - 12 : y + 18;
  Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
}

export function hideTip() {
  byId("tip").hidden = true;
}

/** The note while a map is loading, or why it failed. */
export function stateNote({ tiles }) {
  if (tiles.problem) return tiles.problem.message;
  return tiles.base ? "" : say("loading");
}

/** The resolution of the map in words. */
export function resolutionNote(view) {
  const { tiles, plot } = view;
  if (!tiles.base) return "";
  const { blocks, exact, tops } = plot.resolution;
  const waiting = tiles.waiting ? ` · ${say("loading")}` : "";
  if (tops) return say("topOnly");
  if (exact && blocks[0] === 1 && blocks[1] === 1) return say("exact") + waiting;
  const size = { rows: blocks[0], columns: blocks[1] };
  return say(exact || !tiles.finer || view.viewport.fitted ? "pooled" : "blurred", size) + waiting;
}
