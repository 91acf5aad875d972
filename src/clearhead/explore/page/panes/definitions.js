// One line for every term of the page, on hover, focus and touch; Escape closes it.

import { byId, make, refill } from "../draw/elements.js";
import { listTerms, sayTerm } from "../words/languages.js";

const WAIT = 220; // milliseconds before a line opens under the pointer, and for which it stays when the pointer leaves
const GAP = 5; // pixels between a term and its line

const idOf = (key) => `define-${key.replace(/\W+/g, "-")}`;

/** The attributes of an element that a term explains, for make(). */
export function explained(key) {
  return { "data-define": key, "aria-describedby": idOf(key) };
}

/** A term in a text: dotted, can be focused, and explains itself. */
export function term(key, text, ...children) {
  return make("button", { type: "button", class: "term", ...explained(key) }, ...children, text);
}

const END = /(\/s|eos|eot|end(of\w+)?)\W*$/iu;

/** The same for a token that is no word; nothing for others. */
export function explainedToken(axis, position) {
  return axis.special[position] ? explained(END.test(axis.label(position)) ? "end" : "mark") : {};
}

/** Notes what is known of a token: with its definition, if it has one, or else as a tooltip. */
export function noteToken(token, note) {
  if (token.dataset.define) token.dataset.note = note;
  else token.title = note;
}

/** Fills the list that aria-describedby refers to, in the language of the page. */
export function fillDefinitions() {
  refill(byId("definitions"), ...listTerms().map((key) => make("p", { id: idOf(key), text: sayTerm(key) })));
  for (const element of document.querySelectorAll("[data-define]"))
    element.setAttribute("aria-describedby", idOf(element.dataset.define));
  hide();
}

let shownFor = null; // the element whose line is open
let wasOnLine = false; // the pointer
let timer = 0;

/** Opens and closes the lines; called once. */
export function listenToTerms() {
  const termOf = (event) => event.target.closest?.("[data-define]") ?? null;
  const soon = (call) => {
    clearTimeout(timer);
    timer = setTimeout(call, WAIT);
  };
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    const element = termOf(event);
    if (isOnLine(event))
      clearTimeout(timer); // the pointer may rest on the line itself
    else if (element) soon(() => show(element));
    else if (shownFor) soon(hide);
    else clearTimeout(timer);
  });
  document.addEventListener("pointermove", (event) => {
    const on = isOnLine(event);
    if (on === wasOnLine || event.pointerType === "touch") return;
    wasOnLine = on;
    if (on) return clearTimeout(timer);
    const element = termOf(event);
    if (shownFor && element !== shownFor) soon(element ? () => show(element) : hide);
  });
  document.addEventListener("pointerup", (event) => {
    const element = termOf(event);
    if (event.pointerType !== "touch") return element?.classList.contains("term") ? show(element) : hide();
    hide();
    if (element) setTimeout(() => show(element.isConnected ? element : again(element)), 60); // a click may make it anew
  });
  document.addEventListener(
    "focusin",
    (event) => event.target.matches?.("[data-define]:focus-visible") && show(event.target),
  );
  document.addEventListener("focusout", (event) => event.target === shownFor && hide());
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.key !== "Escape" || byId("definition").hidden) return;
      event.preventDefault();
      event.stopPropagation();
      hide();
    },
    { capture: true },
  );
}

function isOnLine({ clientX, clientY }) {
  const { left, right, top, bottom } = byId("definition").getBoundingClientRect(); // empty while it is hidden
  return clientX >= left && clientX < right && clientY >= top && clientY < bottom;
}

function again({ dataset }) {
  return [...document.querySelectorAll("[data-define]")].find(
    (candidate) => candidate.dataset.define === dataset.define,
  );
}

function show(element) {
  const line = element?.isConnected
    ? [element.dataset.note, sayTerm(element.dataset.define)].filter(Boolean).join("\n")
    : "";
  if (!line) return hide();
  clearTimeout(timer);
  shownFor = element;
  const box = byId("definition");
  box.textContent = line;
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const { left, top } = choosePlace(element, width, height);
  const through = isAnyCovered(document, element, { left, top, width, height }); // clicks go to controls below the line
  Object.assign(box.style, { left: `${left}px`, top: `${top}px`, pointerEvents: through ? "none" : "" });
}

function isAnyCovered(root, except, { left, top, width, height }) {
  return [...root.querySelectorAll("button, input, select, a")].some((control) => {
    const box = control.getBoundingClientRect();
    return (
      control !== except &&
      box.width > 0 &&
      box.left < left + width &&
      box.right > left &&
      box.top < top + height &&
      box.bottom > top
    );
  });
}

/** Below or above the element or its row: the first place in the window that covers no control of the row. */
function choosePlace(element, width, height) {
  const [box, row] = [element, element.parentElement].map((node) => node.getBoundingClientRect());
  const left = Math.max(6, Math.min(box.left, window.innerWidth - width - 6));
  const covers = (top) => isAnyCovered(element.parentElement, element, { left, top, width, height });
  const fitting = [box.bottom + GAP, box.top - height - GAP, row.bottom + GAP, row.top - height - GAP].filter(
    (top) => top >= 4 && top + height <= window.innerHeight,
  );
  return { left, top: fitting.find((top) => !covers(top)) ?? fitting[0] ?? Math.max(4, box.top - height - GAP) };
}

function hide() {
  clearTimeout(timer);
  shownFor = null;
  wasOnLine = false;
  byId("definition").hidden = true;
}
