// A text whose tokens can be pointed at and pinned, shaded by attention; of a long text, the part around the selection.

import { clamp, formatCount } from "../data/number_format.js";
import { make, makeButton, makeRoving, refill, shadeElement, sharpen } from "../draw/elements.js";
import { say } from "../words/languages.js";
import { explainedToken, noteToken } from "./definitions.js";
import { PictureFlow } from "./picture_flow.js";

/**
 * What a text shows.
 * @typedef {{shade: ((position: number) => number) | null, pinned: Set<number>, cursor: number | null,
 *   current: number | null, fadedFrom: number, focus: number | null, scale?: {css: any, ink: any},
 *   marked?: (position: number) => boolean, noteOn?: (position: number) => string,
 *   concealed?: (position: number) => boolean, averaged?: boolean}} Shown
 */

/** A text, or a picture in its place. */
export function makeFlow(explorer, axis, options) {
  const Flow = axis.pictured ? PictureFlow : TokenFlow;
  return new Flow(axis, explorer.callbacksOf(axis), options);
}

class TokenFlow {
  constructor(axis, callbacks, options) {
    this.axis = axis;
    this.callbacks = callbacks;
    this.long = axis.length > 1.35 * options.page; // a page that holds all but a few is no help
    this.page = this.long ? options.page : axis.length;
    this.start = 0;
    this.shown = null;
    this.built = "";
    this.list = make("div", { class: "tokens", role: "group", "aria-label": options.label, dir: axis.direction });
    this.ribbon = make("canvas", { class: "ribbon", "aria-hidden": "true" });
    this.where = make("span", { class: "where" });
    const turn = (by, sign, phrase) => {
      const label = say(phrase);
      return makeButton(sign, () => this.turn(by), { class: "small", "aria-label": label, title: label });
    };
    const bar = make(
      "div",
      { class: "ribbon-bar" },
      turn(-1, "‹", "earlier"),
      this.ribbon,
      turn(1, "›", "later"),
      this.where,
    );
    this.element = make("div", { class: this.long ? "flow long" : "flow" }, this.long ? bar : null, this.list);
    this.listen();
  }

  listen() {
    const positionOf = (event) => {
      const token = event.target.closest?.(".token");
      return token ? Number(token.dataset.position) : null;
    };
    this.list.addEventListener("click", (event) => {
      const position = positionOf(event);
      if (position !== null) this.callbacks.pin(position);
    });
    this.list.addEventListener("pointerover", (event) => this.callbacks.point(positionOf(event)));
    this.list.addEventListener("pointerleave", () => this.callbacks.point(null));
    makeRoving(this.list, 8);
    this.list.addEventListener("focusin", (event) => {
      const position = positionOf(event);
      if (position !== null && event.target.matches(":focus-visible")) this.callbacks.point(position);
    });
    this.list.addEventListener("focusout", () => this.callbacks.point(null));
    this.ribbon.addEventListener("click", (event) => {
      const share = event.offsetX / this.ribbon.clientWidth;
      this.goTo(Math.floor(share * this.axis.length));
    });
  }

  turn(by) {
    this.start = clamp(0, this.start + by * this.page, Math.max(0, this.axis.length - this.page));
    this.update(this.shown, false);
  }

  goTo(position) {
    this.start = clamp(0, position - Math.floor(this.page / 3), Math.max(0, this.axis.length - this.page));
    this.update(this.shown, false);
    this.reveal(position);
  }

  /** @param {Shown} shown @param {boolean} follow whether to turn to the page in question */
  update(shown, follow = true) {
    const moved = shown.focus !== null && shown.focus !== this.shown?.focus;
    this.shown = shown;
    const end = this.start + this.page;
    if (this.long && follow && moved && (shown.focus < this.start || shown.focus >= end)) return this.goTo(shown.focus);
    this.build();
    for (const token of this.list.children) this.dress(token, shown);
    if (this.long) this.paintRibbon();
    if (this.long && follow && moved) this.reveal(shown.focus);
  }

  /** Scrolls the list alone until a token is visible. */
  reveal(position) {
    const token = this.list.children[position - this.start];
    if (!token) return;
    const top = token.offsetTop - this.list.offsetTop;
    if (top < this.list.scrollTop || top + token.offsetHeight > this.list.scrollTop + this.list.clientHeight) {
      this.list.scrollTop = top - this.list.clientHeight / 3;
    }
  }

  build() {
    const end = Math.min(this.axis.length, this.start + this.page);
    const key = `${this.start}-${end}`;
    if (key === this.built) return;
    this.built = key;
    const tokens = [];
    for (let position = this.start; position < end; position++) {
      const token = make("button", {
        type: "button",
        class: this.classes(position),
        tabindex: position === this.start ? "0" : "-1",
        text: this.axis.label(position),
        "data-position": position,
        dir: "auto",
        ...explainedToken(this.axis, position),
      });
      tokens.push(token);
    }
    refill(this.list, ...tokens);
    if (this.long)
      this.where.textContent = say("positions", {
        first: formatCount(this.start),
        last: formatCount(end - 1),
        count: formatCount(this.axis.length),
      });
  }

  classes(position) {
    return `token${this.axis.glued(position) ? " glued" : ""}${this.axis.special[position] ? " special" : ""}`;
  }

  dress(token, shown) {
    const position = Number(token.dataset.position);
    const shade = shown.shade ? shown.shade(position) : 0;
    const scale = shown.scale ?? this.callbacks.look().scale;
    shadeElement(token, shade, scale);
    token.classList.toggle("concealed", Boolean(shown.concealed?.(position)));
    token.classList.toggle("surprising", Boolean(shown.marked?.(position)));
    noteToken(token, `${position}: ${this.axis.label(position, 60)}${shown.noteOn?.(position) ?? ""}`);
    token.classList.toggle("pinned", shown.pinned.has(position));
    token.classList.toggle("cursor", shown.cursor === position);
    token.classList.toggle("current", shown.current === position);
    token.classList.toggle("faded", position >= shown.fadedFrom);
    token.setAttribute("aria-pressed", String(shown.pinned.has(position)));
  }

  /** Draws the whole text as a band with its attention and the visible part. */
  paintRibbon() {
    const width = this.ribbon.clientWidth || 200;
    const context = sharpen(this.ribbon, width, 16);
    context.clearRect(0, 0, width, 16);
    const scale = this.shown.scale ?? this.callbacks.look().scale;
    const count = this.axis.length;
    for (let x = 0; x < width; x++) {
      const from = Math.floor((x / width) * count);
      const to = Math.max(from + 1, Math.floor(((x + 1) / width) * count));
      let [most, sum] = [0, 0];
      for (let position = from; this.shown.shade && position < to; position++) {
        const shade = this.shown.shade(position);
        most = Math.max(most, shade);
        sum += shade;
      }
      const share = this.shown.averaged ? sum / (to - from) : most;
      if (share < 0.02) continue;
      context.fillStyle = scale.css(share);
      context.fillRect(x, 0, 1, 16);
    }
    const box = [(this.start / count) * width, Math.max(4, (Math.min(this.page, count) / count) * width)];
    context.strokeStyle = this.callbacks.look().ink;
    context.lineWidth = 1.5;
    context.strokeRect(Math.min(box[0], width - box[1]) + 0.75, 0.75, box[1] - 1.5, 14.5);
    context.fillStyle = this.callbacks.look().accent;
    for (const position of this.shown.pinned) context.fillRect((position / count) * width - 1, 0, 2, 16);
  }
}
