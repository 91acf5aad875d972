// The text pane at the top: input, output and the decoding step.

import { makeLegible } from "../data/tokens.js";
import { byId, make, refill } from "../draw/elements.js";
import { say, sayNote } from "../words/languages.js";
import { paintChances, withChances } from "./answer_shading.js";
import { term } from "./definitions.js";
import { makeFlow } from "./text_flow.js";

const PAGE = 120;
const FILES = {
  picture: { label: "newPicture", accept: "image/png,image/jpeg,image/webp,image/gif" },
  sound: { label: "newSound", accept: "audio/wav,audio/flac,.wav,.flac" },
};
const BEAT = 750; // milliseconds of a step that is played

export class TextPane {
  constructor(explorer) {
    this.explorer = explorer;
    byId("step").addEventListener("input", (event) => {
      this.pause();
      explorer.goToStep(Number(event.target.value));
    });
    byId("play").addEventListener("click", () => this.play());
  }

  renew() {
    const { explorer } = this;
    const { scene, axes } = explorer;
    refill(
      byId("title"),
      make("span", { text: scene.title ?? "" }),
      make("span", { class: "soft" }, term("heads", sizeOf(explorer))),
    );
    document.title = `clearhead · ${scene.title ?? ""}`;
    byId("notes").textContent = (scene.notes ?? []).map(sayNote).join(" · ");
    showAnother(explorer);
    this.listViews(scene);
    this.flows = Object.values(axes)
      .filter((axis) => axis.length)
      .map((axis) => {
        const label = explorer.decodes(axis) ? say("output") : axis.name === "source" ? say("source") : axis.name;
        const options = { page: PAGE, label, width: 220, height: 84, named: true };
        return makeFlow(explorer, axis, options);
      });
    const inputs = this.flows.filter((flow) => !explorer.decodes(flow.axis));
    refill(byId("source-text"), ...inputs.map((flow) => flow.element));
    refill(
      byId("output-text"),
      ...this.flows.filter((flow) => explorer.decodes(flow.axis)).map((flow) => flow.element),
    );
    byId("source-text").hidden = inputs.length === 0;
    byId("output-side").hidden = !scene.output;
    byId("scrubber").hidden = byId("play").hidden = explorer.steps < 2;
    this.pause();
    const plain = scene.output?.text && !axes[scene.output.axis] ? scene.output.text : "";
    const parts = plain && scene.output.parts?.length ? scene.output.parts : [[plain, "", null]];
    refill(byId("output-plain"), ...parts.map(([text, label, score]) => markPart(text, label, score)));
    byId("output-plain").hidden = !plain;
    this.update();
  }

  /** Plays the decoding word by word, from the beginning if it is at its end; again pauses it. */
  play() {
    const { explorer } = this;
    if (this.playing) return this.pause();
    if (explorer.steps < 2) return;
    explorer.goToStep(explorer.state.step === null ? 1 : explorer.step + 1);
    if (explorer.state.step === null) return;
    this.playing = setInterval(() => {
      explorer.moveStep(1);
      if (explorer.state.step === null) this.pause();
    }, BEAT);
    this.showPlaying();
  }

  pause() {
    clearInterval(this.playing);
    this.playing = 0;
    this.showPlaying();
  }

  showPlaying() {
    const button = byId("play");
    button.textContent = this.playing ? "⏸\ufe0e" : "▶\ufe0e";
    button.title = say(this.playing ? "pause" : "play");
    button.setAttribute("aria-label", button.title);
  }

  /** A record of several calls or samples shows one at a time. */
  listViews(scene) {
    const list = byId("views");
    const names = scene.views ?? [];
    list.hidden = names.length < 2;
    refill(
      list,
      ...names.map((text, i) => make("option", { value: i, text: makeLegible(text, 48), selected: i === scene.view })),
    );
  }

  async update() {
    const { explorer } = this;
    const slider = byId("step");
    slider.max = String(Math.max(1, explorer.steps));
    slider.value = String(explorer.step);
    slider.setAttribute("aria-label", say("stepLabel"));
    const written = say("stepOf", { step: explorer.step, steps: explorer.steps });
    slider.setAttribute("aria-valuetext", written);
    byId("step-text").textContent = written;
    const { attention, scene } = explorer;
    for (const flow of this.flows ?? []) {
      // What is read and what is written share a place: the one that this attention is about is shown.
      const used = [attention.queries, attention.keys].includes(flow.axis.name);
      const twin = this.flows.some(
        (other) =>
          other !== flow &&
          other.axis.reads === flow.axis.reads &&
          [attention.queries, attention.keys].includes(other.axis.name),
      );
      flow.element.hidden = explorer.decodes(flow.axis) && !used && (twin || flow.axis.name !== scene.output.axis);
      if (flow.element.hidden) continue;
      const shown = await explorer.shownOn(flow.axis, null, "asked");
      flow.update({
        ...withChances(explorer, flow.axis, shown),
        concealed: (position) => explorer.ablation.hides(flow.axis, position),
      });
    }
    paintChances(explorer);
  }
}

/** The form for another input: a text, or a file of the kind that the model reads. */
function showAnother({ live, scene }) {
  const kind = FILES[scene.takes];
  byId("another").hidden = !live;
  const [characters, tokens] = (scene.limits ?? []).map((limit) => limit.toLocaleString("en"));
  byId("another-limit").textContent = tokens && !kind ? say("textLimits", { characters, tokens }) : "";
  byId("another-text").hidden = byId("another").querySelector("button").hidden = Boolean(kind);
  byId("another-file").hidden = byId("another-file-label").hidden = !kind;
  if (!kind) return;
  byId("another-file").accept = kind.accept;
  byId("another-file-label").textContent = say(kind.label);
}

/** A part of an answer: plain text, or an entity or label with its probability. */
function markPart(text, label, score) {
  if (score === null) return text;
  const about = [label, score.toFixed(2)].filter(Boolean).join(" ");
  return make("mark", {}, make("bdi", { text }), make("small", { text: about }));
}

/** "6+6 layers × 8 heads" */
function sizeOf(explorer) {
  const counts = explorer.groups.filter((group) => group.kind !== "cross").map((group) => group.attentions.length);
  const layers = (counts.length ? counts : explorer.groups.map((group) => group.attentions.length)).join("+");
  const heads = Math.max(...explorer.scene.attentions.map((attention) => attention.heads.length));
  return say(`layer${layers === "1" ? "1" : "s"}${heads === 1 ? "1" : ""}`, { layers, heads });
}
