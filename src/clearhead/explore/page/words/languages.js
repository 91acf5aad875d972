// What the page says, in the language of its reader.

import { CHINESE } from "./chinese.js";
import { ENGLISH } from "./english.js";

const LANGUAGES = { en: ENGLISH, zh: CHINESE };
let spoken = ENGLISH;

/** Chooses the language; "auto" asks the browser. */
export function speak(language) {
  const wanted = language === "auto" ? ((navigator.language ?? "en").startsWith("zh") ? "zh" : "en") : language;
  spoken = LANGUAGES[wanted] ?? ENGLISH;
  document.documentElement.lang = wanted === "zh" ? "zh-CN" : "en";
  return wanted;
}

/** A phrase with its blanks filled: say("stepOf", {step: 4, steps: 9}). */
export function say(key, blanks = {}) {
  const phrase = spoken[key] ?? ENGLISH[key] ?? key;
  return phrase.replace(/\{(\w+)\}/g, (whole, blank) => (blank in blanks ? String(blanks[blank]) : whole));
}

/** The same, where blanks are filled with elements: a list of strings and elements. */
export function sayAround(key, blanks) {
  return (spoken[key] ?? ENGLISH[key]).split(/\{(\w+)\}/).map((part, place) => (place % 2 ? blanks[part] : part));
}

/** What a table of phrases has for a text of the server's, blanks and all; null if it is not in there. */
function reworded(phrases, text) {
  for (const [known, words] of Object.entries(phrases)) {
    const pattern = known.replace(/[.*+?^$()[\]\\|]/g, "\\$&").replace(/\{(\w+)\}/g, "(?<$1>.+)");
    const found = text.match(new RegExp(`^${pattern}$`, "s"));
    if (found) return words.replace(/\{(\w+)\}/g, (_, blank) => found.groups[blank]);
  }
  return null;
}

/** A note: one of the page's own, or a model's, which knows English only. */
export function sayNote(note) {
  return typeof note === "string" ? (reworded(spoken.notes, note) ?? note) : say(note.say, note);
}

/** What the server says went wrong: its own words, or those that stand for them where its reader has another language. */
export function sayProblem(problem) {
  return reworded(spoken.problems, problem) ?? say("problem", { reason: problem });
}

/** A role in words. */
export function sayRole(role) {
  return spoken.roles[role ?? "none of these"] ?? role;
}

/** Puts the language into everything marked data-say (its text) and data-label (its ARIA label and tooltip). */
export function translate(root) {
  for (const element of root.querySelectorAll("[data-say]")) element.textContent = say(element.dataset.say);
  for (const element of root.querySelectorAll("[data-hint]")) element.placeholder = say(element.dataset.hint);
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", say(element.dataset.label));
    if (element.dataset.tip !== undefined) element.title = say(element.dataset.label);
  }
}
