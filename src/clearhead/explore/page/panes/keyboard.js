// Keyboard shortcuts, and the list of them.

import { byId, make, makeButton, makeNote, refill } from "../draw/elements.js";
import { CHOICES } from "../state/store.js";
import { listTerms, say, sayTerm } from "../words/languages.js";
import { copyLink, savePng, saveSvg } from "./export_menu.js";

export const FOCUS = {
  heads: ".head[tabindex='0']",
  map: ".map-canvas, .map-view .picture, .lines-view .token[tabindex='0']",
  token: "#shaded .token[tabindex='0'], #shaded .picture",
};

function nextOf(list, value) {
  return list[(list.indexOf(value) + 1) % list.length];
}

/** What each key does: [keys as shown, phrase, {key: action}]. */
function keyTable(explorer, centre, actions) {
  const { store } = explorer;
  const next = (key) => () => store.set({ [key]: nextOf(CHOICES[key], explorer.state[key]) });
  const group = (number) => () => explorer.openGroup(explorer.groups[number]);
  return [
    ["← →", "keyHeads", { ArrowLeft: () => explorer.moveHead(-1), ArrowRight: () => explorer.moveHead(1) }],
    ["↑ ↓", "keyLayers", { ArrowUp: () => explorer.moveLayer(-1), ArrowDown: () => explorer.moveLayer(1) }],
    ["1 2 3", "keyTabs", { 1: group(0), 2: group(1), 3: group(2), 4: group(3) }],
    ["h m k", "keyFocus", { h: focusOn(FOCUS.heads), m: focusOn(FOCUS.map), k: focusOn(FOCUS.token) }],
    ["← ↑ ↓ →", "keyCell", {}],
    ["p", "keyPin", { p: actions.pinCursor }],
    ["r", "keyReverse", { r: next("direction") }],
    ["Esc", "keyUnpin", { Escape: actions.escape }],
    [
      "+ − 0",
      "keyZoom",
      {
        "+": () => centre.zoom(1.6),
        "=": () => centre.zoom(1.6),
        "-": () => centre.zoom(1 / 1.6),
        0: () => centre.fit(),
      },
    ],
    [
      "Shift ← ↑ ↓ →",
      "keyPan",
      {
        "Shift+ArrowLeft": () => centre.pan(80, 0),
        "Shift+ArrowRight": () => centre.pan(-80, 0),
        "Shift+ArrowUp": () => centre.pan(0, 80),
        "Shift+ArrowDown": () => centre.pan(0, -80),
      },
    ],
    ["[ ]", "keyStep", { "[": () => explorer.moveStep(-1), "]": () => explorer.moveStep(1) }],
    ["d", "keyPlay", { d: actions.play }],
    ["w", "keyRows", { w: actions.switchRows }],
    ["/", "keyFind", { "/": () => byId("find").focus() }],
    ["c", "keyCompare", { c: () => explorer.compareNext() }],
    ["o", "keySort", { o: next("sort") }],
    ["x", "keyOff", { x: () => explorer.ablation.toggleHeads() }],
    [
      "n",
      "keyNewText",
      { n: () => byId("another").hidden || byId("another").querySelector("input:not([hidden])").focus() },
    ],
    ["g b", "keyCurve", { g: next("curve"), b: next("colours") }],
    ["v", "keyDrawing", { v: actions.switchDrawing }],
    [
      "s e y",
      "keyExport",
      { s: () => saveSvg(explorer, centre), e: () => savePng(explorer, centre), y: () => copyLink(explorer) },
    ],
    ["t l", "keyTheme", { t: actions.switchTheme, l: actions.switchLanguage }],
    ["?", "keyHelp", { "?": () => openHelp(explorer, centre, actions) }],
  ];
}

/** An action that puts the focus on the first element of a selector. */
export function focusOn(selector) {
  return () => document.querySelector(selector)?.focus();
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
    const key = arrow && event.shiftKey ? `Shift+${event.key}` : event.key;
    const action = keys.get(key) ?? (arrow ? null : keys.get(key.toLowerCase()));
    if (!action || (typing && event.key === "Escape")) return;
    event.preventDefault();
    action();
  });
}

/** Says in the footer what arrow keys do where the focus is. */
export function hintAtArrows() {
  const show = () => {
    const hint = hintFor(document.activeElement);
    byId("arrows").hidden = Boolean(hint);
    byId("own-arrows").hidden = !hint;
    if (hint) byId("own-arrows-text").textContent = say(hint);
  };
  for (const type of ["focusin", "focusout", "click", "keyup"]) {
    document.addEventListener(type, () => requestAnimationFrame(show));
  }
}

function hintFor(focus) {
  if (focus?.matches(".map-canvas")) return "hintCell";
  if (focus?.matches("canvas.picture")) return "hintPlace";
  const list = focus?.closest(".tokens, .line-row, .films");
  return list && !list.hasAttribute("data-clicked") ? "hintToken" : null;
}

/** The list of keys. */
export function openHelp(explorer, centre, actions) {
  const dialog = byId("help");
  const startTour = () => {
    dialog.close();
    actions.startTour();
  };
  const choose = (event) => explorer.store.set({ keys: event.target.checked ? "on" : "off" });
  const letters = make("input", { type: "checkbox", id: "letter-keys", on: { change: choose } });
  letters.checked = explorer.state.keys === "on";
  const rows = keyTable(explorer, centre, actions)
    .filter(([, phrase]) => phrase !== "keyOff" || explorer.switchable)
    .filter(([, phrase]) => phrase !== "keyNewText" || explorer.live);
  refill(
    dialog,
    make(
      "div",
      { class: "help-head" },
      make("h2", { id: "help-title", text: say("keysTitle") }),
      makeButton(say("tourStart"), startTour, { class: "small", id: "start-tour" }),
      makeButton("×", () => dialog.close(), { class: "small", "aria-label": say("close") }),
    ),
    make("div", { class: "key-list" }, ...rows.map(([keys, phrase]) => showKeys(keys, phrase))),
    makeNote(say("mouse")),
    make("label", { class: "letter-keys" }, letters, say("letterKeys")),
    make("h3", { text: say("wordsTitle") }),
    make("ul", { class: "word-list" }, ...listTerms().map((key) => make("li", { text: sayTerm(key) }))),
  );
  dialog.showModal();
}

function showKeys(keys, phrase) {
  const names = keys.split(" ").map((key) => make("kbd", { text: key }));
  return make(
    "div",
    { class: "key-row" },
    make("span", { class: "key-names" }, ...names),
    make("span", { text: say(phrase) }),
  );
}
