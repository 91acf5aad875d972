// The languages of the page: which one is in use, and its phrases with blanks filled in.

import { CHINESE } from "./chinese.js";
import { ENGLISH } from "./english.js";

// To add a language, write a file like english.js and add it here; the button goes from one to the next.
const LANGUAGES = [ENGLISH, CHINESE];
let phrases = ENGLISH;

const codeOf = (language) => language.tag.split("-")[0];

/** The values of `language` in the address: "auto", "en", "zh". */
export const LANGUAGE_CODES = ["auto", ...LANGUAGES.map(codeOf)];

/** Chooses the language by its code; "auto" takes that of the browser, or else English. */
export function setLanguage(code) {
  const wanted = code === "auto" ? (navigator.language ?? "en").split("-")[0] : code;
  phrases = LANGUAGES.find((language) => codeOf(language) === wanted) ?? ENGLISH;
  document.documentElement.lang = phrases.tag;
}

/** The code of the language that the button switches to. */
export function nextLanguage() {
  return codeOf(followingLanguage());
}

function followingLanguage() {
  return LANGUAGES[(LANGUAGES.indexOf(phrases) + 1) % LANGUAGES.length];
}

/** A phrase with its blanks filled: say("stepOf", {step: 4, steps: 9}); "{count|part|parts}" chooses by a number. */
export function say(key, blanks = {}) {
  const fill = (whole, blank) => (blank in blanks ? String(blanks[blank]) : whole);
  return chooseForms(key, blanks).replace(/\{(\w+)\}/g, fill);
}

/** A phrase with its singular or plural forms. A text of several sentences is a list of them. */
function chooseForms(key, blanks) {
  const choose = (_, blank, single, plural) => (String(blanks[blank]) === "1" ? single : plural);
  return joinSentences(phrases[key] ?? ENGLISH[key] ?? key).replace(/\{(\w+)\|([^|}]*)\|([^|}]*)\}/g, choose);
}

function joinSentences(text) {
  return Array.isArray(text) ? text.join(phrases.space) : text;
}

/** The same with elements in the blanks: a list of strings and elements. */
export function sayAround(key, blanks) {
  return chooseForms(key, blanks)
    .split(/\{(\w+)\}/)
    .map((part, index) => (index % 2 ? blanks[part] : part));
}

/** The translation of an English message of the server, with its blanks; null if the table does not have it. */
function translateMessage(table, text) {
  for (const [english, words] of Object.entries(table)) {
    const pattern = english.replace(/[.*+?^$()[\]\\|]/g, "\\$&").replace(/\{(\w+)\}/g, "(?<$1>.+)");
    const match = text.match(new RegExp(`^${pattern}$`, "s"));
    if (match) return words.replace(/\{(\w+)\}/g, (_, blank) => match.groups[blank]);
  }
  return null;
}

/** A note of the page, {say: key, …blanks}, or an English note of the model. */
export function sayNote(note) {
  return typeof note === "string" ? (translateMessage(phrases.notes, note) ?? note) : say(note.say, note);
}

/** An error message of the server, translated if the language has it. */
export function sayProblem(problem) {
  return translateMessage(phrases.problems, problem) ?? say("problem", { reason: problem });
}

/** The name of a role; in English that of the lens. */
export function sayRole(role) {
  return phrases.roles[role] ?? role;
}

/** One line that explains a term of the page; of roles, "role.previous". */
export function sayTerm(key) {
  return joinSentences((key.startsWith("role.") ? phrases.roleLines[key.slice(5)] : phrases.terms[key]) ?? "");
}

/** The keys of all terms, those of roles last. */
export function listTerms() {
  return [...Object.keys(phrases.terms), ...Object.keys(phrases.roleLines).map((role) => `role.${role}`)];
}

/** What a head of a role does: "looks at the token before". */
export function sayDoing(role) {
  return phrases.does[role] ?? phrases.does["none of these"];
}

/** The text of a step of the tour; a dark page has other shades, and `whole` rows add up to 100 %. */
export function sayTour(key, dark, whole) {
  const blanks = { shade: say(dark ? "brightCells" : "darkCells"), sum: say(whole ? "sumAll" : "sumSome") };
  return joinSentences(phrases.tour[key]).replace(/\{(\w+)\}/g, (_, blank) => blanks[blank]);
}

/** Sets the phrases of elements: data-say is text, data-hint a placeholder, data-label the ARIA label and tooltip. */
export function translate(root) {
  for (const element of root.querySelectorAll("[data-say]")) element.textContent = say(element.dataset.say);
  for (const element of root.querySelectorAll("[data-hint]")) element.placeholder = say(element.dataset.hint);
  for (const element of root.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", say(element.dataset.label));
    if (element.dataset.tip !== undefined) element.title = say(element.dataset.label);
  }
  const button = root.querySelector("#language");
  button.textContent = followingLanguage().name;
  button.setAttribute("aria-label", followingLanguage().switchTo);
}
