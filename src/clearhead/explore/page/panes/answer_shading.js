// The answer shaded by the probability of its tokens: the deeper, the less probable; surprising tokens are underlined.

import { formatPercent } from "../data/number_format.js";
import { byId, make, makeButton, refill } from "../draw/elements.js";
import { say, sayAround } from "../words/languages.js";
import { term } from "./definitions.js";

const SURPRISING_RATIO = 10; // a token is surprising where another one is this many times as likely

/** The index in the output of the token at a position of an axis; null where that is not known. */
function indexInOutput(explorer, axis, position) {
  const { output } = explorer.scene;
  if (!explorer.decodes(axis)) return null;
  const outputIndex = axis.name === axis.reads ? position - 1 : position; // a token is read one place later
  return outputIndex >= 0 && Number.isFinite(output.chances?.[outputIndex]) ? outputIndex : null;
}

/** Whether the model prefers another token: of a given answer at all, of its own ten times. */
function isSurprising(output, outputIndex) {
  if (output.given) return output.ranks?.[outputIndex] > 0;
  return SURPRISING_RATIO * output.chances[outputIndex] < (output.next?.[outputIndex]?.[0]?.[1] ?? 0);
}

/** The places of the answer: of a language model those after its prompt, or all if nothing follows it. */
function answerPlaces(output) {
  const first = Math.max(0, (output.prompt ?? 0) - 1);
  const places = [...output.chances.keys()].filter((outputIndex) => Number.isFinite(output.chances[outputIndex]));
  const after = places.filter((outputIndex) => outputIndex >= first);
  return after.length ? after : places;
}

const placesByOutput = new WeakMap(); // {count, surprises}

function placesOf({ scene: { output } }) {
  if (!placesByOutput.has(output)) {
    const places = answerPlaces(output);
    const surprises = new Set(places.filter((outputIndex) => isSurprising(output, outputIndex)));
    placesByOutput.set(output, { count: places.length, surprises });
  }
  return placesByOutput.get(output);
}

/** What a text shows, with the shades, marks and notes of probabilities; unchanged where there are none. */
export function withChances(explorer, axis, shown) {
  const { look, scene, state } = explorer;
  if (!scene.output?.chances || !explorer.decodes(axis)) return shown;
  const { surprises } = placesOf(explorer);
  const at = (position) => indexInOutput(explorer, axis, position);
  const marked = (position) => surprises.has(at(position));
  const noted = { ...shown, marked, noteOn: (position) => describe(scene.output, at(position)) };
  if (state.shading !== "chance") return noted;
  const shade = (position) => (at(position) === null ? 0 : 1 - scene.output.chances[at(position)]);
  const scale = { css: (share) => mix(look.chip, look.doubt, share), ink: () => look.ink };
  return { ...noted, shade, averaged: true, scale };
}

/** "probability 54 %" and "or: 's 31 %, is 4 %", a line each; nothing where the place is not known. */
function describe(output, outputIndex) {
  if (outputIndex === null) return "";
  const others = (output.next?.[outputIndex] ?? [])
    .slice(output.ranks?.[outputIndex] === 0 ? 1 : 0, 4)
    .map(([text, chance]) => `${text} ${formatPercent(chance)}`);
  const lines = [say("chanceIs", { chance: formatPercent(output.chances[outputIndex]) })];
  if (others.length) lines.push(say("orElse", { others: others.join(", ") }));
  return lines.map((line) => `\n${line}`).join("");
}

/** The colour between two others, as hex, at a share of the way. */
function mix(from, to, share) {
  const parts = [1, 3, 5].map((start) => [from, to].map((hex) => parseInt(hex.slice(start, start + 2), 16)));
  return `rgb(${parts.map(([low, high]) => Math.round(low + (high - low) * share)).join(",")})`;
}

/** The line below the answer: what the colour means, how many tokens are surprising, and the choice of the shading. */
export function paintChances(explorer) {
  const { scene, state, store } = explorer;
  const box = byId("chances");
  box.hidden = !scene.output?.chances || !scene.output.axis;
  if (box.hidden) return;
  const { count: places, surprises } = placesOf(explorer);
  const kind = scene.output.given ? "disagrees" : "surprising";
  const about = scene.output.given ? "agreement" : "surprise";
  const choices = [
    ["chance", "byChance"],
    ["attention", "byAttention"],
  ].map(([shading, phrase]) => {
    const options = { value: shading, "aria-pressed": String(state.shading === shading) };
    return makeButton(say(phrase), () => store.set({ shading }), options);
  });
  const bar = make("span", { class: "chance-bar", "aria-hidden": "true" });
  const legend = [term(about, say("chanceLegend")), say("sure"), bar, say("unsure")];
  refill(
    box,
    make("span", { class: "segmented", role: "group", "aria-label": say("shading") }, ...choices),
    state.shading === "chance" ? make("span", { class: "chance-legend" }, ...legend) : null,
    surprises.size ? makeNext(explorer, kind, places, surprises.size) : term(about, say(`${kind}None`)),
  );
}

/** The button with the number of surprising tokens. */
function makeNext(explorer, kind, places, count) {
  const number = make("span", { class: "surprising-sample", text: say(`${kind}Count`, { count, places }) });
  const options = { class: "word", id: "next-surprise", title: say("nextSurprise") };
  return makeButton("", () => goToNext(explorer), options, ...sayAround(kind, { number }));
}

/** Pins the next surprising token alone; after the last the first. */
function goToNext(explorer) {
  const axis = explorer.axes[explorer.scene.output.axis];
  const shift = axis.name === axis.reads ? 1 : 0;
  const last = explorer.pinnedOn(axis).at(-1) ?? -1;
  const positions = [...placesOf(explorer).surprises].map((outputIndex) => outputIndex + shift);
  const next = positions.find((position) => position > last) ?? positions[0];
  explorer.store.set({ pins: [] });
  explorer.pin(axis.name, next);
}
