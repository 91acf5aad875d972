// A picture or spectrogram whose patches can be pointed at and pinned, shaded by attention.

import { makeLegible } from "../data/tokens.js";
import { make, shadeElement, sharpen } from "../draw/elements.js";
import { paintOverlay } from "../draw/picture_overlay.js";

/** Shows the same as a TokenFlow, over the picture. */
export class PictureFlow {
  constructor(axis, callbacks, options) {
    this.axis = axis;
    this.callbacks = callbacks;
    this.options = options;
    this.shown = null;
    this.canvas = make("canvas", { class: "picture", role: "application", tabindex: "0", "aria-label": options.label });
    this.before = make("div", { class: "tokens" });
    const name =
      options.named && axis.file
        ? make("bdi", { class: "file", text: makeLegible(axis.file, 80), title: makeLegible(axis.file, 200) })
        : null;
    this.element = make("div", { class: "flow picture-flow" }, this.before, this.canvas, name);
    this.buildBefore();
    this.listen();
  }

  /** Tokens that are no patch, such as [CLS]. */
  buildBefore() {
    for (let position = 0; position < this.axis.firstPatch; position++) {
      this.before.append(
        make("button", {
          type: "button",
          class: "token",
          text: this.axis.label(position),
          "data-position": position,
          on: {
            click: () => this.callbacks.pin(position),
            pointerenter: () => this.callbacks.point(position),
            pointerleave: () => this.callbacks.point(null),
          },
        }),
      );
    }
  }

  listen() {
    const positionOf = (event) => {
      const [rows, columns] = this.axis.grid;
      const row = Math.floor((event.offsetY / this.canvas.clientHeight) * rows);
      const column = Math.floor((event.offsetX / this.canvas.clientWidth) * columns);
      return row >= 0 && column >= 0 && row < rows && column < columns
        ? this.axis.firstPatch + row * columns + column
        : null;
    };
    this.canvas.addEventListener("click", (event) => this.callbacks.pin(positionOf(event)));
    this.canvas.addEventListener("pointermove", (event) =>
      this.callbacks.point(positionOf(event), [event.clientX, event.clientY]),
    );
    this.canvas.addEventListener("pointerleave", () => this.callbacks.point(null));
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
    this.canvas.addEventListener("blur", () => this.callbacks.point(null));
  }

  walk(event) {
    const [rows, columns] = this.axis.grid;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const patch = Math.max(0, (this.callbacks.cursor() ?? this.axis.firstPatch) - this.axis.firstPatch);
    if (by) {
      event.preventDefault();
      event.stopPropagation();
      this.callbacks.point(this.axis.firstPatch + Math.max(0, Math.min(rows * columns - 1, patch + by)));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.callbacks.pin(this.axis.firstPatch + patch);
    }
  }

  update(shown) {
    this.shown = shown;
    const scale = this.callbacks.look().scale;
    for (const token of this.before.children) {
      const position = Number(token.dataset.position);
      const shade = shown.shade ? shown.shade(position) : 0;
      shadeElement(token, shade, scale);
      token.classList.toggle("pinned", shown.pinned.has(position));
      token.setAttribute("aria-pressed", String(shown.pinned.has(position)));
    }
    this.paint(scale, shown);
  }

  /** The size at which the picture fits its box; a spectrogram fills its width. */
  size(image) {
    const box = this.element.parentElement;
    const wide = Math.max(80, Math.min(this.options.width ?? 1e4, (box?.clientWidth ?? 300) - 8));
    const high = Math.max(60, this.options.height ?? (box?.clientHeight || 400) - (this.axis.firstPatch ? 44 : 8));
    if (this.axis.kind === "audio") return [wide, Math.min(high, Math.max(90, wide / 3))];
    const ratio = image.naturalWidth / image.naturalHeight || 1;
    return wide / high > ratio ? [high * ratio, high] : [wide, wide / ratio];
  }

  paint(scale, shown) {
    const image = this.callbacks.pictures().get(this.axis.name);
    if (!image) return;
    const [width, height] = this.size(image);
    const context = sharpen(this.canvas, width, height);
    paintOverlay(context, { image, axis: this.axis, width, height, scale, look: this.callbacks.look(), shown });
  }

  /** What a saved figure shows. */
  toCanvas() {
    return { canvas: this.canvas, width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }
}
