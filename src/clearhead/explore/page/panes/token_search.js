// Finder: searches tokens by their text, on both axes of the map.

import { byId } from "../draw/elements.js";
import { say } from "../words/languages.js";

export class Finder {
  constructor(explorer, centre) {
    this.explorer = explorer;
    this.centre = centre;
    this.found = [];
    this.place = -1;
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
    this.found = text
      ? names.flatMap((name) => axes[name].find(text).map((positions) => ({ axis: axes[name], positions })))
      : [];
    this.place = -1;
    this.go(1);
  }

  go(by) {
    const label = byId("found");
    const { explorer } = this;
    if (!this.found.length) {
      label.textContent = byId("find").value ? say("notFound") : "";
      explorer.store.set({ cursor: null });
      return;
    }
    this.place = (this.place + by + this.found.length) % this.found.length;
    const { axis, positions } = this.found[this.place];
    label.textContent = say("found", { place: this.place + 1, count: this.found.length });
    explorer.point(axis, positions[0], positions);
    this.centre.centreOn(axis.name, positions[0]);
  }
}
