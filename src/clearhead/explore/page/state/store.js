// The state that all panes share: its values, its events, and its form in the address of the page.

import { LANGUAGE_CODES } from "../words/languages.js";

/**
 * @typedef {{axis: string, position: number}} Pin
 * @typedef {{name: string, head: number}} Head an attention and one of its heads
 * @typedef {{q0: number, q1: number, k0: number, k1: number}} Window document positions
 */

export const DEFAULTS = {
  part: 0, // number of the text, in a record of several
  name: "", // the attention
  head: 0,
  other: null, // a second head beside the first: Head
  pins: [], // Pin[]
  direction: "at", // what pinned tokens look "at", or what looks at them: "by"
  view: null, // Window, null for everything
  step: null, // decoding steps that are shown, null for all
  sort: "layer",
  order: "down", // of sorted heads: the largest first, or "up"
  role: null, // heads of other roles are pale
  curve: "auto",
  colours: "ember",
  drawing: "auto", // "map", "lines" or "picture"
  averaged: "head", // lines are of one head, or of the mean of all heads of its "layer" or "role"
  shading: "chance", // of the answer: by the probability of its tokens, or by "attention"
  rows: "auto", // a decoder's rows are named after the token "written" there, or the one "read"
  theme: "auto",
  language: "auto",
  keys: "on", // whether single letters are shortcuts
  cursor: null, // {q, k}: what the pointer or the keys are on; not in the address
  picking: false, // whether the next head that is clicked becomes the second; not in the address
};

/** The orders of the heads. */
export const SORTS = ["layer", "role", "entropy", "distance", "sink", "peak", "effect"];

/** The values of what is chosen from a list. */
export const CHOICES = {
  direction: ["at", "by"],
  sort: SORTS,
  order: ["down", "up"],
  curve: ["auto", "linear", "root", "log"],
  colours: ["ember", "cividis", "ink"],
  drawing: ["auto", "map", "lines", "picture"],
  averaged: ["head", "layer", "role"],
  shading: ["chance", "attention"],
  rows: ["auto", "written", "read"],
  theme: ["auto", "light", "dark"],
  language: LANGUAGE_CODES,
  keys: ["on", "off"],
};

/**
 * Values, and events without a value. Listeners are called once for all that happened in one task, with the set of
 * keys. Events: "scene" (another text is shown), "coming" (one was asked for), "weights" and "pictures" (some have
 * arrived), "painted" (the first map is on the screen), "ablation" (heads were switched or words hidden).
 */
export class Store {
  constructor(values) {
    this.values = { ...DEFAULTS, ...values };
    this.listeners = [];
    this.changed = new Set();
  }

  listen(call) {
    this.listeners.push(call);
  }

  set(patch) {
    for (const [key, value] of Object.entries(patch)) {
      if (Object.is(this.values[key], value)) continue;
      this.values[key] = value;
      this.emit(key);
    }
  }

  emit(key) {
    if (this.changed.size === 0) queueMicrotask(() => this.notify());
    this.changed.add(key);
  }

  notify() {
    const changed = this.changed;
    this.changed = new Set();
    for (const call of this.listeners) call(changed);
  }
}

/** The state as the fragment of an address, without defaults. */
export function fragmentOf(state) {
  const parts = new URLSearchParams();
  parts.set("at", `${state.name}/${state.head}`);
  if (state.part) parts.set("part", String(state.part + 1));
  if (state.other) parts.set("beside", `${state.other.name}/${state.other.head}`);
  if (state.pins.length) parts.set("pins", state.pins.map((pin) => `${pin.axis}:${pin.position}`).join(","));
  if (state.view) {
    parts.set("view", ["q0", "q1", "k0", "k1"].map((key) => Number(state.view[key].toFixed(3))).join(","));
  }
  if (state.step !== null) parts.set("step", String(state.step));
  if (state.role) parts.set("role", state.role);
  for (const key of Object.keys(CHOICES)) if (state[key] !== DEFAULTS[key]) parts.set(key, state[key]);
  return parts.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/");
}

/** The part of the record that a fragment names, if it exists. */
export function partOf(fragment, scene) {
  const part = Number(new URLSearchParams(fragment.replace(/^#/, "")).get("part") ?? 1) - 1;
  return scene.views?.[part] === undefined ? (scene.view ?? 0) : part;
}

/** The state that a fragment describes; what does not fit the scene is left out. */
export function stateOf(fragment, scene) {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  const state = {};
  const head = headOf(parts.get("at"), scene);
  if (head) Object.assign(state, head);
  state.other = secondHeadOf(headOf(parts.get("beside"), scene), head, scene);
  state.pins = (parts.get("pins") ?? "")
    .split(",")
    .map((pin) => pinOf(pin, scene))
    .filter(Boolean);
  const view = (parts.get("view") ?? "").split(",").map(Number);
  if (view.length === 4 && view.every(Number.isFinite) && view[1] > view[0] && view[3] > view[2]) {
    state.view = { q0: view[0], q1: view[1], k0: view[2], k1: view[3] };
  }
  const step = Number(parts.get("step") ?? NaN);
  if (Number.isInteger(step) && step > 0) state.step = step;
  state.role = parts.get("role");
  for (const [key, values] of Object.entries(CHOICES)) {
    if (values.includes(parts.get(key))) state[key] = parts.get(key);
  }
  return state;
}

function headOf(text, scene) {
  const cut = (text ?? "").lastIndexOf("/");
  if (cut < 0) return null;
  const [name, head] = [text.slice(0, cut), Number(text.slice(cut + 1))];
  const attention = scene.attentions.find((candidate) => candidate.name === name);
  return attention?.heads.some(({ number }) => number === head) ? { name, head } : null;
}

/** A second head, if its attention has the same axes as the first. */
function secondHeadOf(other, head, scene) {
  const sides = ({ name }) => {
    const { queries, keys, counts } = scene.attentions.find((attention) => attention.name === name);
    return `${queries}/${keys}/${counts}`;
  };
  return other && head && sides(other) === sides(head) ? other : null;
}

function pinOf(text, scene) {
  const cut = text.lastIndexOf(":");
  const [axis, position] = [text.slice(0, cut), Number(text.slice(cut + 1))];
  const count = scene.axes[axis]?.tokens.length ?? 0;
  return cut > 0 && Number.isInteger(position) && position >= 0 && position < count ? { axis, position } : null;
}

/** The head that the page shows first. */
export function firstHead(scene) {
  return { name: scene.start.name, head: scene.start.head };
}

/** Writes the state into the address; a page inside a frame may have no address of its own. */
export function writeAddress(state) {
  try {
    history.replaceState(null, "", `#${fragmentOf(state)}`);
  } catch {
    // about:srcdoc: the view lives as long as the frame
  }
}
