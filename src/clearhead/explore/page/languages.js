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

/** A note: one of the page's own, or a model's, which knows English only. */
export function sayNote(note) {
  if (typeof note !== "string") return say(note.say, note);
  const known = note.replace(/\d+/, "{number}");
  return known in spoken.notes ? spoken.notes[known].replace("{number}", note.match(/\d+/)?.[0]) : note;
}

/** What the server says went wrong: its own words, or those that stand for them where its reader has another language. */
export function sayProblem(problem) {
  for (const [known, words] of Object.entries(spoken.problems)) {
    const blanks = problem.match(new RegExp(`^${known.replace(/[.*+?^$()[\]\\|]/g, "\\$&").replace(/\{(\w+)\}/g, "(?<$1>.+)")}$`, "s"))?.groups;
    if (blanks || problem === known) return words.replace(/\{(\w+)\}/g, (_, blank) => blanks[blank]);
  }
  return say("problem", { reason: problem });
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
