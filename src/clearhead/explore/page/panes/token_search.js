// Finder: searches tokens by their text, on both axes of the map.

import { byId } from "../draw/elements.js";
import { say } from "../words/languages.js";

export class Finder {
  constructor(explorer, centre) {
    this.explorer = explorer;
    this.centre = centre;
    this.matches = [];
    this.index = -1;
    const field = byId("find");
    field.addEventListener("input", () => this.search(field.value));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && field.value) {
        event.preventDefault();
        field.blur();
        return this.clear();
      }
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.go(event.shiftKey ? -1 : 1);
    });
  }

  clear() {
    byId("find").value = "";
    this.search("");
  }

  search(text) {
    const { attention, axes } = this.explorer;
    const names = [...new Set([attention.queries, attention.keys])];
    this.matches = text
      ? names.flatMap((name) => axes[name].find(text).map((positions) => ({ axis: axes[name], positions })))
      : [];
    this.index = -1;
    this.go(1);
  }

  go(by) {
    const label = byId("found");
    const { explorer } = this;
    if (!this.matches.length) {
      label.textContent = byId("find").value ? say("notFound") : "";
      explorer.store.set({ cursor: null });
      return;
    }
    this.index = (this.index + by + this.matches.length) % this.matches.length;
    const { axis, positions } = this.matches[this.index];
    label.textContent = say("found", { place: this.index + 1, count: this.matches.length });
    explorer.point(axis, positions[0], positions);
    this.centre.centreOn(axis.name, positions[0]);
  }
}
