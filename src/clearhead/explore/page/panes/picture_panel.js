// The picture or sound of a head in the centre pane, with the words that were written about it, and its tooltips.

import { weightAt } from "../data/token_sums.js";
import { byId } from "../draw/elements.js";
import { say } from "../words/languages.js";
import { FilmView } from "./film_view.js";
import { PictureFlow } from "./picture_flow.js";
import { SoundView } from "./sound_view.js";
import { hideTip, noteOf, showTip } from "./tips.js";

/** A view of the pictured axis for one head: update(shown, words, matrix) paints it, toCanvas() is what is saved. */
export function makePicture(explorer, one) {
  const { pictured: axis, pictureWords: words } = explorer;
  const callbacks = explorer.callbacksOf(axis);
  const point = (position, place) => {
    callbacks.point(position);
    tellPatch(explorer, one, position, place);
  };
  if (axis.kind === "audio")
    return new SoundView(axis, words, soundCallbacks(explorer, one, point), { label: say("sound") });
  const label = say("picture");
  if (!words) return new PictureFlow(axis, { ...callbacks, point }, { label });
  return new FilmView(axis, words, { ...callbacks, point }, explorer.callbacksOf(words), { label });
}

/** The callbacks of a sound and of the letters below it. */
function soundCallbacks(explorer, one, point) {
  const { pictured: axis, pictureWords: words } = explorer;
  return {
    ...explorer.callbacksOf(axis),
    curve: () => explorer.curveOf(explorer.attentionOf(one.name)),
    wordCursor: () => (words ? explorer.cursorOn(words) : null),
    pinWord: (position) => explorer.pin(words.name, position),
    point: (cell, place) => {
      if (!cell || cell.q === null) return point(cell ? cell.k : null, place);
      explorer.store.set({ cursor: cell });
      if (cell.k === null) return hideTip();
      tellCell(explorer, one, { axis, words, ...cell }, place);
    },
  };
}

/** Says the weight of one letter at one moment. */
async function tellCell(explorer, one, { axis, words, q, k }, place) {
  const { values, columns, blocks } = await explorer.weights.matrixOf(one);
  const weight = values[Math.floor(q / blocks[0]) * columns + Math.floor(k / blocks[1])];
  tell(noteOf(words.label(q, 32), axis.label(k, 32), weight), place);
}

/** Says the weight between the selected tokens and a patch or moment. */
async function tellPatch(explorer, one, position, place) {
  const { answered, asked, subject, state } = explorer;
  if (position === null || explorer.pictured !== answered || (answered === asked && !subject.pinned)) return hideTip();
  const answer = await explorer.answer(one).catch(() => null);
  const weight = answer && weightAt(explorer, answer, position);
  if (weight === null) return hideTip();
  const ends = [
    subject.positions.length > 1 ? say("these") : asked.label(subject.positions[0], 32),
    answered.label(position, 32),
  ];
  tell(noteOf(...(state.direction === "at" ? ends : ends.reverse()), weight), place);
}

/** Shows a note beside the pointer; without one, as the keys move, it is spoken. */
function tell(note, place) {
  if (place) showTip([note], place);
  else byId("live").textContent = note.spoken;
}
