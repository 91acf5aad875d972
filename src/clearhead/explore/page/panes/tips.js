// The tooltip of a cell: query, key and weight.

import { formatCount, formatError, formatWeight, isExact, isHidden, oddText } from "../data/number_format.js";
import { byId, make, refill } from "../draw/elements.js";
import { say } from "../words/languages.js";
import { headName } from "./captions.js";

/** The note on a cell of a map. */
export function cellNote(explorer, view, { q, k }) {
  const { attention, tiles, queries, keys } = view;
  const cell = tiles.at(q, k);
  const first = attention.first;
  const head = headName(explorer, view.headId);
  if (!cell) return { query: "", key: "", value: say("loading"), head, spoken: say("loading") };
  const single = cell.rows === 1 && cell.columns === 1;
  const query = cell.rows === 1 ? queries.label(q + first[0], 32) : range(cell.q0 + first[0], cell.rows);
  const key = cell.columns === 1 ? keys.label(k + first[1], 32) : range(cell.k0 + first[1], cell.columns);
  const value = cellValue(cell, single, tiles);
  const positions = single ? `${formatCount(q + first[0])} → ${formatCount(k + first[1])}` : "";
  return {
    query,
    key,
    value,
    positions,
    head,
    spoken: `${say("query")} ${query}, ${say("key")} ${key}, ${say("weight")} ${value}`,
  };
}

/** A weight between two tokens, as a note. */
export function noteOf(query, key, weight) {
  const value = formatWeight(weight);
  return { query, key, value, spoken: `${say("query")} ${query}, ${say("key")} ${key}, ${say("weight")} ${value}` };
}

/** The value of a cell: a weight, or the share of a block; "≈" where it is an estimate or sums rounded weights. */
function cellValue({ share, exact, columns }, single, tiles) {
  if (isHidden(share)) return say("hiddenCell");
  const { precision } = tiles;
  const spread = tiles.finer || tiles.whole ? precision * Math.sqrt(columns) : precision;
  const text = formatWeight(share, spread);
  const close = exact && (single || isExact(precision, tiles.attention.counts[1])) ? "" : "≈";
  const value = oddText(share) ? text : `${close}${text}`;
  return single ? value : say(exact ? "share" : "shareEstimate", { share: value });
}

function range(first, count) {
  return say("tokensRange", { first: formatCount(first), last: formatCount(first + count - 1) });
}

/** Shows the note beside the pointer, inside the window. */
export function showTip(notes, screenPoint) {
  const tip = byId("tip");
  const [main] = notes;
  refill(
    tip,
    make(
      "span",
      { class: "tip-line" },
      make("span", { class: "soft", text: say("query") }),
      make("bdi", { text: main.query }),
      make("span", { class: "soft", text: `→ ${say("key")}` }),
      make("bdi", { text: main.key }),
      ...notes.map((note) =>
        make(
          "span",
          { class: "value" },
          notes.length > 1 ? make("span", { class: "soft", text: note.head }) : null,
          make("strong", { text: note.value }),
        ),
      ),
    ),
    main.positions ? make("span", { class: "tip-place", text: main.positions }) : null,
  );
  tip.hidden = false;
  const [x, y] = screenPoint;
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
  const { blocks, exact, tops, odd } = plot.resolution;
  const parts = [];
  if (tops) parts.push(say("topOnly"));
  else if (blocks[0] === 1 && blocks[1] === 1)
    parts.push(
      isExact(tiles.precision, tiles.attention.counts[1])
        ? say("exact")
        : say("rounded", { error: formatError(tiles.precision) }),
    );
  else parts.push(say(exact ? "pooled" : "estimated", { rows: blocks[0], columns: blocks[1] }));
  if (tiles.waiting) parts.push(say("loading"));
  if (odd) parts.push(say("oddNote"));
  return parts.join(" · ");
}
