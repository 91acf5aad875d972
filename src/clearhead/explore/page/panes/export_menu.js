// Exports: the view as SVG and PNG, the selection as JSON and CSV, a link to the view.

import { isHidden, oddText } from "../data/number_format.js";
import { byId, make } from "../draw/elements.js";
import { fragmentOf, writeAddress } from "../state/store.js";
import { say } from "../words/languages.js";
import { makeFigure } from "./svg_figure.js";

const WINDOW_CELLS = 128 * 128;

/** Hands a file to the browser. */
function save(explorer, ending, content, type) {
  const { name, head } = explorer.state;
  const file = `clearhead-${name}-${head}.${ending}`.replace(/[^\w.-]+/g, "_");
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = make("a", { href: address, download: file });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  announce(say("saved", { file }));
}

/** Shows a message at the foot of the page, which screen readers announce. */
export function announce(text) {
  byId("said").textContent = text;
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => (byId("said").textContent = ""), 4000);
}

export function saveSvg(explorer, centre) {
  if (centre.lined && !centre.lines.data) return announce(centre.lines.problem || say("loading"));
  save(explorer, "svg", svgText(makeFigure(explorer, centre)), "image/svg+xml");
}

function svgText(svg) {
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(svg)}\n`;
}

export async function savePng(explorer, centre) {
  if (centre.lined && !centre.lines.data) return announce(centre.lines.problem || say("loading"));
  const svg = makeFigure(explorer, centre);
  const [width, height] = [Number(svg.getAttribute("width")), Number(svg.getAttribute("height"))];
  const image = new Image();
  const address = URL.createObjectURL(new Blob([svgText(svg)], { type: "image/svg+xml" }));
  try {
    image.src = address;
    await image.decode();
    const canvas = make("canvas", { width: width * 2, height: height * 2 });
    canvas.getContext("2d").drawImage(image, 0, 0, width * 2, height * 2);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    save(explorer, "png", blob, "image/png");
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** The selection in numbers: the tokens, what they look at, and the cells on the screen. */
async function selectionOf(explorer, centre) {
  const { state, scene, attention, asked, answered, subject } = explorer;
  const heads = state.other
    ? [{ name: state.name, head: state.head }, state.other]
    : [{ name: state.name, head: state.head }];
  const tokens = [];
  for (const headId of heads) {
    for (const position of subject.positions) {
      const line = await explorer.weights.lineOf(state.direction, headId.name, headId.head, position);
      const first = attention.first[state.direction === "at" ? 1 : 0];
      const weights = line.weights
        ? Array.from(line.weights, (weight, index) => [index + first, weight]).filter(([, weight]) => !isHidden(weight))
        : line.top.map(([position, weight]) => [position, weight]);
      tokens.push({
        attention: headId.name,
        head: headId.head,
        position,
        token: asked.tokens[position],
        complete: Boolean(line.weights),
        weights: weights.map(([other, weight]) => ({
          position: other,
          token: answered.tokens[other],
          weight: exported(weight),
        })),
        error: explorer.source.precision(headId.name, headId.head),
      });
    }
  }
  return {
    format: 1,
    title: scene.title,
    link: fragmentOf(state),
    direction: state.direction === "at" ? "looks at" : "is looked at by",
    heads: heads.map((headId) => ({ attention: headId.name, ...explorer.headOf(headId) })),
    tokens: tokens,
    window: await windowOf(centre, 0),
    ...(state.other ? { second_window: await windowOf(centre, 1) } : {}),
  };
}

/** A number with the digits of float32; NaN and infinities as text, since JSON has none. */
function exported(weight) {
  return oddText(weight)?.replace("∞", "Infinity").replace("−", "-") ?? Number(weight.toPrecision(7));
}

/** The weights on the screen, if they are few and exact; null for what the mask hides. */
async function windowOf(centre, which) {
  const view = centre.views[which];
  const { q0, q1, k0, k1 } = centre.lined
    ? { q0: 0, q1: view.viewport.queries, k0: 0, k1: view.viewport.keys }
    : view.viewport.window;
  const [query, key] = view.attention.first;
  const window = { queries: [q0 + query, q1 + query], keys: [k0 + key, k1 + key], weights: null };
  const { blocks, exact } = view.plot?.resolution ?? { blocks: view.tiles.shown, exact: true }; // a picture has no plot
  if ((q1 - q0) * (k1 - k0) > WINDOW_CELLS) return { ...window, shown: { queries: blocks[0], keys: blocks[1], exact } };
  if (centre.lined) return { ...window, weights: rowsOf(await view.explorer.weights.matrixOf(view.headId), q1, k1) };
  const rows = [];
  for (let q = q0; q < q1; q++) {
    const row = [];
    for (let k = k0; k < k1; k++) {
      const cell = view.tiles.at(q, k);
      if (!cell?.exact || cell.rows > 1 || cell.columns > 1) return window;
      row.push(isHidden(cell.share) ? null : exported(cell.share));
    }
    rows.push(row);
  }
  return { ...window, weights: rows };
}

/** All rows of a matrix of weights; null if it is one of blocks. */
function rowsOf({ rows, columns, values, exact }, queries, keys) {
  if (exact === false || rows !== queries || columns !== keys) return null;
  return Array.from({ length: rows }, (_, q) =>
    Array.from(values.subarray(q * columns, (q + 1) * columns), (weight) =>
      isHidden(weight) ? null : exported(weight),
    ),
  );
}

export async function saveJson(explorer, centre) {
  save(explorer, "json", `${JSON.stringify(await selectionOf(explorer, centre), null, 1)}\n`, "application/json");
}

export async function saveCsv(explorer, centre) {
  const { tokens, direction } = await selectionOf(explorer, centre);
  const lines = [["attention", "head", "position", "token", "direction", "other_position", "other_token", "weight"]];
  for (const token of tokens) {
    for (const other of token.weights)
      lines.push([
        token.attention,
        token.head,
        token.position,
        token.token,
        direction,
        other.position,
        other.token,
        other.weight,
      ]);
  }
  const rows = lines.map((line) => `${line.map(cellText).join(",")}\r\n`);
  const mark = "\ufeff"; // or table programs read Chinese as something else
  save(explorer, "csv", [mark, ...rows].join(""), "text/csv");
}

/** A cell of CSV; a table program must not take a token for a formula. */
function cellText(value) {
  if (typeof value === "number") return String(value);
  const text = String(value ?? "").replace(/\p{Cs}/gu, "\ufffd");
  const tame = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return `"${tame.replaceAll('"', '""')}"`;
}

export async function copyLink(explorer) {
  if (location.protocol === "about:") return announce(say("noLink")); // a frame inside a notebook
  writeAddress(explorer.state);
  try {
    await navigator.clipboard.writeText(location.href);
    announce(say("copied"));
  } catch {
    announce(say("linkReady"));
  }
}
