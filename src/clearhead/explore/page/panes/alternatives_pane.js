// The alternatives of a token: what else could stand there, and how the model goes on from it.

import { byId, make, refill } from "../draw/elements.js";
import { showBeforeAfter } from "../draw/before_after.js";
import { ablationOf } from "./ablation_pane.js";
import { say, sayAround } from "../words/languages.js";
import { formatNumber, makeLegible } from "../data/tokens.js";

const LISTED = 6;

/** The place that is asked about, and whether its own token is named, or the one before it. */
function subjectOf(explorer) {
  const { asked, axes, scene, state, subject } = explorer;
  const axis = axes[scene.output.axis];
  const before = (scene.output.shift ?? 1) === 1; // an axis of tokens read: each place writes the next one
  const onAnswer = explorer.decodes(asked) && subject.positions.at(-1) < axis.length;
  const pinned = explorer.pinnedOn(axis).at(-1);
  const position = onAnswer && (subject.pinned || state.step === null) ? subject.positions.at(-1) : (pinned ?? explorer.step - 1);
  const own = before && position > 0 && pinned === position; // of a pinned token its own alternatives, as the text has them
  return { place: own ? position - 1 : position, label: axis.label(position, 24), instead: own || !before };
}

export function paintAlternatives(explorer) {
  const { output } = explorer.scene;
  const box = byId("next");
  box.hidden = !output?.next || !output.axis;
  if (box.hidden) return;
  const { place, label, instead } = subjectOf(explorer);
  const title = make("h2", { class: "sub" }, ...sayAround(instead ? "insteadOf" : "nextAfter", { token: make("bdi", { class: "strong", text: label }) }));
  const found = output.next[place];
  if (!found?.length) return refill(box, title, make("p", { class: "soft", text: say("noNext") }));
  const off = ablationOf(explorer)?.next?.[place] ?? null;
  const goesOn = explorer.live && explorer.scene.continues;
  const rows = rowsOf(explorer, place, off).map((row) => rowElement(explorer, place, row, off, goesOn));
  const head = off ? make("thead", {}, make("tr", {}, make("td"), ...["before", "after"].map((text) => make("th", { scope: "col", class: `number ${text === "after" ? "off" : ""}`, text: say(text) })), make("th", { class: "bar-head", "aria-hidden": "true" }))) : null;
  refill(box, title, make("table", { class: "keys" }, head, make("tbody", {}, ...rows)),
    goesOn ? make("p", { class: "soft tiny", text: say("goOnHint") }) : null, ...continuationOf(explorer, place));
}

function rowElement(explorer, place, { text, chance, without, choice, written }, off, goesOn) {
  const bar = make("span", { class: "bar warm" });
  bar.style.width = `${Math.max(2, 100 * ((off ? without : chance) ?? 0))}%`;
  const shown = makeLegible(text.replace(/^[▁Ġ](?=.)/u, ""), 24);
  const name = make("bdi", { text: shown });
  const chosen = explorer.continued?.place === place && explorer.continued.choice === choice;
  const token = goesOn && choice !== null && !written
    ? make("button", { type: "button", class: "link alternative", title: say("writeThis", { token: shown }), "aria-pressed": String(chosen), on: { click: () => goOn(explorer, place, choice) } }, name)
    : name;
  return make("tr", { class: written ? "written" : null }, make("td", {}, token, written ? make("span", { class: "place", text: say("writtenHere") }) : null), make("td", { class: "number", text: formatNumber(chance, 3) }),
    off ? make("td", { class: "number off", text: formatNumber(without, 3) }) : null, make("td", { class: "bar-cell", "aria-hidden": "true" }, bar));
}

/** The most probable tokens, with what the model gives them after an ablation; the written one is always among them. */
function rowsOf({ axes, scene: { output } }, place, off) {
  const rank = output.ranks?.[place] ?? null;
  const afterOf = (text) => off?.find(([other]) => other === text)?.[1] ?? null;
  const rows = output.next[place].map(([text, chance], choice) => ({ text, chance, without: afterOf(text), choice, written: choice === rank }));
  const added = (off ?? []).filter(([text]) => !rows.some((row) => row.text === text)).map(([text, without]) => ({ text, chance: null, without, choice: null, written: false }));
  const most = ({ chance, without }) => Math.max(chance ?? 0, without ?? 0);
  const listed = (off ? [...rows, ...added].sort((one, other) => most(other) - most(one)) : rows).slice(0, LISTED);
  if (rank !== null && rank >= rows.length) {
    const text = axes[output.axis].label(place + (output.shift ?? 1), 24);
    listed.push({ text, chance: output.chances[place], without: null, choice: null, written: true });
  }
  return listed;
}

/** Lets the model write this token, and what follows it. */
async function goOn(explorer, place, choice) {
  const mine = { place, choice, scene: explorer.scene, waiting: true };
  explorer.continued = mine;
  paintAlternatives(explorer);
  try {
    Object.assign(mine, await explorer.source.continueFrom(place, choice), { waiting: false });
  } catch (problem) {
    Object.assign(mine, { problem: problem.message, waiting: false });
  }
  if (explorer.continued !== mine) return;
  paintAlternatives(explorer);
  byId("next").querySelector(".alternative[aria-pressed='true']")?.focus();
  byId("next").scrollIntoView({ block: "nearest" });
}

/** The answer before and after, once it was asked for at this place. */
function continuationOf(explorer, place) {
  const { continued } = explorer;
  if (!continued || continued.place !== place) return [];
  if (continued.waiting) return [make("p", { class: "soft", text: say("switching") })];
  if (continued.problem) return [make("p", { class: "problem", text: continued.problem })];
  const open = () => explorer.replace(explorer.source.openContinuation(place, continued.choice));
  return [
    showBeforeAfter(continued.before_text ?? "", continued.text ?? "", "continued"),
    make("button", { type: "button", class: "switch", id: "open-continued", text: say("openAnswer"), on: { click: open } }),
  ];
}
