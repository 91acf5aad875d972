// The picture or sound of a head in the centre pane, with the words that were written about it, and its tooltips.

import { weightAt } from "../data/token_sums.js";
import { byId } from "../draw/elements.js";
import { say } from "../words/languages.js";
import { FilmView } from "./film_view.js";
import { PictureFlow } from "./picture_flow.js";
import { SoundView } from "./sound_view.js";
import { hideTip, noteOf, showTip } from "./tips.js";

/** A view of the pictured axis for one head: update(shown, words, matrix) paints it, toCanvas() is what is saved. */
export function makePicture(explorer, headId) {
  const { pictured: axis, pictureWords: words } = explorer;
  const callbacks = explorer.callbacksOf(axis);
  const point = (position, screenPoint) => {
    callbacks.point(position);
    tellPatch(explorer, headId, position, screenPoint);
  };
  if (axis.kind === "audio")
    return new SoundView(axis, words, soundCallbacks(explorer, headId, point), { label: say("sound") });
  const label = say("picture");
  if (!words) return new PictureFlow(axis, { ...callbacks, point }, { label });
  return new FilmView(axis, words, { ...callbacks, point }, explorer.callbacksOf(words), { label });
}

/** The callbacks of a sound and of the letters below it. */
function soundCallbacks(explorer, headId, point) {
  const { pictured: axis, pictureWords: words } = explorer;
  return {
    ...explorer.callbacksOf(axis),
    curve: () => explorer.curveOf(explorer.attentionOf(headId.name)),
    wordCursor: () => (words ? explorer.cursorOn(words) : null),
    pinWord: (position) => explorer.pin(words.name, position),
    point: (cell, screenPoint) => {
      if (!cell || cell.q === null) return point(cell ? cell.k : null, screenPoint);
      explorer.store.set({ cursor: cell });
      if (cell.k === null) return hideTip();
      tellCell(explorer, headId, { axis, words, ...cell }, screenPoint);
    },
  };
}

/** Says the weight of one letter at one moment. */
async function tellCell(explorer, headId, { axis, words, q, k }, screenPoint) {
  const { values, columns, blocks } = await explorer.weights.matrixOf(headId);
  const weight = values[Math.floor(q / blocks[0]) * columns + Math.floor(k / blocks[1])];
  tell(noteOf(words.label(q, 32), axis.label(k, 32), weight), screenPoint);
}

/** Says the weight between the selected tokens and a patch or moment. */
async function tellPatch(explorer, headId, position, screenPoint) {
  const { answered, asked, subject, state } = explorer;
  if (position === null || explorer.pictured !== answered || (answered === asked && !subject.pinned)) return hideTip();
  const answer = await explorer.answer(headId).catch(() => null);
  const weight = answer && weightAt(explorer, answer, position);
  if (weight === null) return hideTip();
  const ends = [
    subject.positions.length > 1 ? say("these") : asked.label(subject.positions[0], 32),
    answered.label(position, 32),
  ];
  tell(noteOf(...(state.direction === "at" ? ends : ends.reverse()), weight), screenPoint);
}

/** Shows a note beside the pointer; without one, as the keys move, it is spoken. */
function tell(note, screenPoint) {
  if (screenPoint) showTip([note], screenPoint);
  else byId("live").textContent = note.spoken;
}
