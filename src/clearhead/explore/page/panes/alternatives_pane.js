// The alternatives of a token: what else could stand there, and how the model goes on from it.

import { formatNumber } from "../data/number_format.js";
import { makeLegible } from "../data/tokens.js";
import { showBeforeAfter } from "../draw/before_after.js";
import { byId, make, makeButton, makeNote, refill } from "../draw/elements.js";
import { say, sayAround } from "../words/languages.js";

const LISTED = 6; // alternatives

/** The place whose alternatives are listed, and whether its own token is named, or the one before it. */
function chooseSubject(explorer) {
  const { asked, axes, scene, state, subject } = explorer;
  const axis = axes[scene.output.axis];
  const readsBefore = (scene.output.shift ?? 1) === 1; // an axis of tokens read: each place writes the next one
  const onAnswer = explorer.decodes(asked) && subject.positions.at(-1) < axis.length;
  const pinned = explorer.pinnedOn(axis).at(-1);
  const shown = subject.pinned || state.step === null;
  const position = onAnswer && shown ? subject.positions.at(-1) : (pinned ?? explorer.step - 1);
  const itself = readsBefore && position > 0 && pinned === position; // a pinned token has its own alternatives
  const label = axis.label(position, 24);
  return { outputIndex: itself ? position - 1 : position, label, instead: itself || !readsBefore };
}

export function paintAlternatives(explorer) {
  const { output } = explorer.scene;
  const box = byId("next");
  box.hidden = !output?.next || !output.axis;
  if (box.hidden) return;
  const { outputIndex, label, instead } = chooseSubject(explorer);
  const token = make("bdi", { class: "strong", text: label });
  const title = make("h2", { class: "sub" }, ...sayAround(instead ? "insteadOf" : "nextAfter", { token }));
  if (!output.next[outputIndex]?.length) return refill(box, title, makeNote(say("noNext")));
  const off = explorer.ablation.answer?.next?.[outputIndex] ?? null;
  const canContinue = explorer.live && explorer.scene.continues;
  const rows = listRows(explorer, outputIndex, off).map((row) => showRow(explorer, outputIndex, row, off, canContinue));
  const table = make("table", { class: "keys" }, off ? makeHead() : null, make("tbody", {}, ...rows));
  const hint = canContinue ? makeNote(say("goOnHint"), "soft tiny") : null;
  refill(box, title, table, hint, ...showContinuation(explorer, outputIndex));
}

/** The head of a table with the probabilities before and after an ablation. */
function makeHead() {
  const before = make("th", { scope: "col", class: "number", text: say("before") });
  const after = make("th", { scope: "col", class: "number off", text: say("after") });
  const bars = make("th", { class: "bar-head", "aria-hidden": "true" });
  return make("thead", {}, make("tr", {}, make("td"), before, after, bars));
}

function showRow(explorer, outputIndex, { text, chance, without, choice, written }, off, canContinue) {
  const bar = make("span", { class: "bar warm" });
  bar.style.width = `${Math.max(2, 100 * ((off ? without : chance) ?? 0))}%`;
  const shown = makeLegible(text.replace(/^[▁Ġ](?=.)/u, ""), 24);
  let token = make("bdi", { text: shown });
  if (canContinue && choice !== null && !written) {
    const pressed = explorer.continued?.outputIndex === outputIndex && explorer.continued.choice === choice;
    const options = { title: say("writeThis", { token: shown }), "aria-pressed": String(pressed) };
    token = makeButton(token, () => continueFrom(explorer, outputIndex, choice), {
      class: "link alternative",
      ...options,
    });
  }
  return make(
    "tr",
    { class: written ? "written" : null },
    make("td", {}, token, written ? make("span", { class: "place", text: say("writtenHere") }) : null),
    make("td", { class: "number", text: formatNumber(chance, 3) }),
    off ? make("td", { class: "number off", text: formatNumber(without, 3) }) : null,
    make("td", { class: "bar-cell", "aria-hidden": "true" }, bar),
  );
}

/** The most probable tokens, with what the model gives them after an ablation; the written one is always among them. */
function listRows({ axes, scene: { output } }, outputIndex, off) {
  const rank = output.ranks?.[outputIndex] ?? null;
  const afterOf = (text) => off?.find(([other]) => other === text)?.[1] ?? null;
  const rows = output.next[outputIndex].map(([text, chance], choice) => {
    return { text, chance, without: afterOf(text), choice, written: choice === rank };
  });
  const candidates = rows.length;
  for (const [text, without] of off ?? []) {
    if (rows.some((row) => row.text === text)) continue;
    rows.push({ text, chance: null, without, choice: null, written: false });
  }
  const most = ({ chance, without }) => Math.max(chance ?? 0, without ?? 0);
  const listed = (off ? rows.sort((left, right) => most(right) - most(left)) : rows).slice(0, LISTED);
  if (rank !== null && rank >= candidates) {
    const text = axes[output.axis].label(outputIndex + (output.shift ?? 1), 24);
    listed.push({ text, chance: output.chances[outputIndex], without: null, choice: null, written: true });
  }
  return listed;
}

/** Lets the model write this token, and what follows it. */
async function continueFrom(explorer, outputIndex, choice) {
  const request = { outputIndex, choice, waiting: true };
  explorer.continued = request;
  paintAlternatives(explorer);
  const answer = explorer.source.continueFrom(outputIndex, choice);
  Object.assign(request, await answer.catch((problem) => ({ problem: problem.message })), { waiting: false });
  if (explorer.continued !== request) return;
  paintAlternatives(explorer);
  byId("next").querySelector(".alternative[aria-pressed='true']")?.focus();
  byId("next").scrollIntoView({ block: "nearest" });
}

/** The answer before and after, once it was asked for at this place. */
function showContinuation(explorer, outputIndex) {
  const { continued } = explorer;
  if (!continued || continued.outputIndex !== outputIndex) return [];
  if (continued.waiting) return [makeNote(say("switching"))];
  if (continued.problem) return [makeNote(continued.problem, "problem")];
  const open = () => explorer.open(explorer.source.openContinuation(outputIndex, continued.choice));
  return [
    showBeforeAfter(continued.before_text ?? "", continued.text ?? "", "continued"),
    makeButton(say("openAnswer"), open, { class: "switch", id: "open-continued" }),
  ];
}
