// The answer shaded by the probability of its tokens: the deeper, the less probable; surprising tokens are underlined.

import { byId, make, refill } from "../draw/elements.js";
import { term } from "./definitions.js";
import { say, sayAround } from "../words/languages.js";
import { formatPercent } from "../data/tokens.js";

const LESS = 10; // times less probable than another token: that is surprising

/** The place at which the token at a position of an axis was written; null where that is not known. */
function placeOf(explorer, axis, position) {
  const { output } = explorer.scene;
  if (!explorer.decodes(axis)) return null;
  const place = axis.name === axis.reads ? position - 1 : position; // a token is read one place after it was written
  return place >= 0 && Number.isFinite(output.chances?.[place]) ? place : null;
}

/** Whether the model prefers another token: of a given answer at all, of its own ten times. */
function isSurprising(output, place) {
  if (output.given) return output.ranks?.[place] > 0;
  return LESS * output.chances[place] < (output.next?.[place]?.[0]?.[1] ?? 0);
}

/** The places that count as the answer: of a language model those after its prompt, or all if there is nothing after it. */
function answerPlaces(output) {
  const first = Math.max(0, (output.prompt ?? 0) - 1);
  const places = output.chances.map((_, place) => place).filter((place) => Number.isFinite(output.chances[place]));
  const after = places.filter((place) => place >= first);
  return after.length ? after : places;
}

const found = new WeakMap(); // by output: its places, and those that are surprising

function placesOf({ scene: { output } }) {
  if (!found.has(output)) {
    const places = answerPlaces(output);
    found.set(output, { count: places.length, surprises: new Set(places.filter((place) => isSurprising(output, place))) });
  }
  return found.get(output);
}

/** What a text shows, with the shades, marks and notes of probabilities; unchanged where there are none. */
export function withChances(explorer, axis, shown) {
  const { look, scene, state } = explorer;
  if (!scene.output?.chances || !explorer.decodes(axis)) return shown;
  const { surprises } = placesOf(explorer);
  const at = (position) => placeOf(explorer, axis, position);
  const noted = { ...shown, marked: (position) => surprises.has(at(position)), noteOn: (position) => describe(scene.output, at(position)) };
  if (state.shading !== "chance") return noted;
  const shade = (position) => (at(position) === null ? 0 : 1 - scene.output.chances[at(position)]);
  return { ...noted, shade, averaged: true, scale: { css: (share) => mix(look.chip, look.doubt, share), ink: () => look.ink } };
}

/** " · probability 54 % · or: 's 31 %, is 4 %" */
function describe(output, place) {
  if (place === null) return "";
  const others = (output.next?.[place] ?? []).slice(output.ranks?.[place] === 0 ? 1 : 0, 4).map(([text, chance]) => `${text} ${formatPercent(chance)}`);
  return `\n${say("chanceIs", { chance: formatPercent(output.chances[place]) })}${others.length ? `\n${say("orElse", { others: others.join(", ") })}` : ""}`;
}

function mix(one, other, share) {
  const parts = [1, 3, 5].map((start) => [one, other].map((hex) => parseInt(hex.slice(start, start + 2), 16)));
  return `rgb(${parts.map(([low, high]) => Math.round(low + (high - low) * share)).join(",")})`;
}

/** The line below the answer: what the colour means, how many tokens are surprising, and the choice of the shading. */
export function paintChances(explorer) {
  const { scene, state, store } = explorer;
  const box = byId("chances");
  box.hidden = !scene.output?.chances || !scene.output.axis;
  if (box.hidden) return;
  const { count: places, surprises: { size: count } } = placesOf(explorer);
  const kind = scene.output.given ? "disagrees" : "surprising";
  const number = make("span", { class: "surprising-sample", text: say(`${kind}Count`, { count, places }) });
  const next = make("button", { type: "button", class: "word", id: "next-surprise", title: say("nextSurprise"), on: { click: () => goToNext(explorer) } }, ...sayAround(kind, { number }));
  const about = scene.output.given ? "agreement" : "surprise";
  const legend = make("span", { class: "chance-legend" }, term(about, say("chanceLegend")), say("sure"), make("span", { class: "chance-bar", "aria-hidden": "true" }), say("unsure"));
  const choice = (value, phrase) => make("button", { type: "button", value, text: say(phrase), "aria-pressed": String(state.shading === value), on: { click: () => store.set({ shading: value }) } });
  refill(box,
    make("span", { class: "segmented", role: "group", "aria-label": say("shading") }, choice("chance", "byChance"), choice("attention", "byAttention")),
    state.shading === "chance" ? legend : null,
    count ? next : term(about, say(`${kind}None`)));
}

/** Pins the next surprising token alone; after the last the first. */
function goToNext(explorer) {
  const axis = explorer.axes[explorer.scene.output.axis];
  const shift = axis.name === axis.reads ? 1 : 0;
  const last = explorer.pinnedOn(axis).at(-1) ?? -1;
  const positions = [...placesOf(explorer).surprises].map((place) => place + shift);
  const next = positions.find((position) => position > last) ?? positions[0];
  explorer.store.set({ pins: [] });
  explorer.pin(axis.name, next);
}
