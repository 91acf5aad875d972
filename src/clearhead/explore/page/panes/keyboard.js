// Keyboard shortcuts, and the list of them.

import { SORTS } from "./head_atlas.js";
import { toggleAblation } from "./ablation_pane.js";
import { COLOUR_NAMES } from "../draw/colours.js";
import { byId, make, refill } from "../draw/elements.js";
import { copyLink, savePng, saveSvg } from "./export_menu.js";
import { listTerms, say, sayTerm } from "../words/languages.js";

const CURVES = ["auto", "linear", "root", "log"];

function nextOf(list, value) {
  return list[(list.indexOf(value) + 1) % list.length];
}

/** What each key does: [keys as shown, phrase, {key: action}]. */
function keyTable(explorer, centre, actions) {
  const { store } = explorer;
  const set = (key, values) => () => store.set({ [key]: nextOf(values, explorer.state[key]) });
  const group = (place) => () => explorer.openGroup(explorer.groups[place]);
  return [
    ["← →", "keyHeads", { ArrowLeft: () => explorer.moveHead(-1), ArrowRight: () => explorer.moveHead(1) }],
    ["↑ ↓", "keyLayers", { ArrowUp: () => explorer.moveLayer(-1), ArrowDown: () => explorer.moveLayer(1) }],
    ["1 2 3", "keyTabs", { 1: group(0), 2: group(1), 3: group(2), 4: group(3) }],
    ["h m k", "keyFocus", { h: () => focusOn(".head[tabindex='0']"), m: () => focusOn(".map-canvas, .map-view .picture, .lines-view .token[tabindex='0']"), k: () => focusOn("#shaded .token[tabindex='0'], #shaded .picture") }],
    ["← ↑ ↓ →", "keyCell", {}],
    ["p", "keyPin", { p: actions.pinCursor }],
    ["r", "keyReverse", { r: () => store.set({ direction: explorer.state.direction === "at" ? "by" : "at" }) }],
    ["Esc", "keyUnpin", { Escape: actions.escape }],
    ["+ − 0", "keyZoom", { "+": () => centre.zoom(1.6), "=": () => centre.zoom(1.6), "-": () => centre.zoom(1 / 1.6), 0: () => centre.fit() }],
    ["Shift ← ↑ ↓ →", "keyPan", {
      "Shift+ArrowLeft": () => centre.pan(80, 0), "Shift+ArrowRight": () => centre.pan(-80, 0),
      "Shift+ArrowUp": () => centre.pan(0, 80), "Shift+ArrowDown": () => centre.pan(0, -80),
    }],
    ["[ ]", "keyStep", { "[": () => explorer.moveStep(-1), "]": () => explorer.moveStep(1) }],
    ["d", "keyPlay", { d: actions.play }],
    ["w", "keyRows", { w: actions.switchRows }],
    ["/", "keyFind", { "/": () => byId("find").focus() }],
    ["c", "keyCompare", { c: () => explorer.compareNext() }],
    ["o", "keySort", { o: set("sort", SORTS) }],
    ["x", "keyOff", { x: () => toggleAblation(explorer) }],
    ["n", "keyNewText", { n: () => byId("another").hidden || byId("another").querySelector("input:not([hidden])").focus() }],
    ["g b", "keyCurve", { g: set("curve", CURVES), b: set("colours", COLOUR_NAMES) }],
    ["v", "keyDrawing", { v: actions.switchDrawing }],
    ["s e y", "keyExport", { s: () => saveSvg(explorer, centre), e: () => savePng(explorer, centre), y: () => copyLink(explorer) }],
    ["t l", "keyTheme", { t: actions.switchTheme, l: actions.switchLanguage }],
    ["?", "keyHelp", { "?": () => openHelp(explorer, centre, actions) }],
  ];
}

function focusOn(selector) {
  document.querySelector(selector)?.focus();
}

/** Handles all keys that no control has handled. */
export function listenToKeys(explorer, centre, actions) {
  const keys = new Map(keyTable(explorer, centre, actions).flatMap(([, , does]) => Object.entries(does)));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || byId("help").open) return;
    const typing = event.target.closest?.("input, textarea, select");
    if (typing) {
      if (event.key === "Escape") typing.blur();
      else if (typing.type !== "range" || event.key.startsWith("Arrow")) return;
    }
    if (explorer.state.keys === "off" && event.key.length === 1) return;
    const arrow = event.key.startsWith("Arrow");
    const action = keys.get(arrow && event.shiftKey ? `Shift+${event.key}` : event.key) ?? (arrow ? null : keys.get(event.key.toLowerCase()));
    if (!action || (typing && event.key === "Escape")) return;
    event.preventDefault();
    action();
  });
}

/** Says in the footer what arrow keys do where the focus is. */
export function hintAtArrows() {
  const show = () => {
    const focus = document.activeElement;
    const list = focus?.closest(".tokens, .line-row, .films");
    const own = focus?.matches(".map-canvas") ? "hintCell" : focus?.matches("canvas.picture") ? "hintPlace" : list && !list.hasAttribute("data-clicked") ? "hintToken" : null;
    byId("arrows").hidden = Boolean(own);
    byId("own-arrows").hidden = !own;
    if (own) byId("own-arrows-text").textContent = say(own);
  };
  for (const type of ["focusin", "focusout", "click", "keyup"]) document.addEventListener(type, () => requestAnimationFrame(show));
}

/** The list of keys. */
export function openHelp(explorer, centre, actions) {
  const rows = keyTable(explorer, centre, actions)
    .filter(([, phrase]) => (phrase === "keyOff" ? explorer.switchable : phrase !== "keyNewText" || explorer.live))
    .map(([shown, phrase]) => make("div", { class: "key-row" }, make("span", { class: "key-names" }, ...shown.split(" ").map((key) => make("kbd", { text: key }))), make("span", { text: say(phrase) })));
  const dialog = byId("help");
  const letters = make("input", { type: "checkbox", id: "letter-keys", on: { change: (event) => explorer.store.set({ keys: event.target.checked ? "on" : "off" }) } });
  letters.checked = explorer.state.keys === "on";
  const tour = () => {
    dialog.close();
    actions.startTour();
  };
  refill(dialog,
    make("div", { class: "help-head" }, make("h2", { id: "help-title", text: say("keysTitle") }),
      make("button", { type: "button", class: "small", id: "start-tour", text: say("tourStart"), on: { click: tour } }),
      make("button", { type: "button", class: "small", text: "×", "aria-label": say("close"), on: { click: () => dialog.close() } })),
    make("div", { class: "key-list" }, ...rows), make("p", { class: "soft", text: say("mouse") }),
    make("label", { class: "letter-keys" }, letters, say("letterKeys")),
    make("h3", { text: say("wordsTitle") }), make("ul", { class: "word-list" }, ...listTerms().map((key) => make("li", { text: sayTerm(key) }))));
  dialog.showModal();
}
