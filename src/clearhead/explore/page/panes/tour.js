// The tour: a few steps of one minute that point at the parts of the page; at the first visit, and from the help.

import { byId, make, oncePerFrame, refill } from "../draw/elements.js";
import { say, sayTour } from "../words/languages.js";

const SEEN = "clearhead-tour"; // the name under which a browser remembers the tour
const LOW = 640; // pixels of a frame, in a notebook for example, that has no room for a tour
const GAP = 10;

/** The steps that this page has: [what they point at, text]. */
function stepsOf(explorer) {
  const { scene, pictured, attention, steps } = explorer;
  const cross = attention.kind === "cross";
  const written = scene.output?.axis && !byId("source-text").hidden;
  const shows = (selector) => Boolean(document.querySelector(`#maps ${selector}`));
  const map = shows(".map-canvas")
    ? cross
      ? "mapCross"
      : "map"
    : shows(".lines-view")
      ? "lines"
      : pictured
        ? "picture"
        : null;
  const all = [
    [".texts", written ? (pictured ? "pictured" : "translated") : "text"],
    ["#maps", map],
    ["#explanation-box", cross && !pictured ? "sentenceCross" : "sentence"],
    ["#atlas", "heads"],
    ...(steps > 1 ? [["#scrubber", "step"]] : []),
    ["#ablation-part", explorer.switchable ? "off" : "offNot"],
    ["#help-button", "end"],
  ];
  return all.filter(([selector, text]) => text && document.querySelector(selector)?.getClientRects().length);
}

export class Tour {
  constructor(explorer) {
    this.explorer = explorer;
    this.linked = Boolean(location.hash); // whether the address names a view
    this.step = 0;
    this.steps = [];
    this.follow = oncePerFrame(() => this.arrange());
    this.sizes = new ResizeObserver(this.follow); // sentences and maps come later than the words of another language
    document.addEventListener("keydown", (event) => this.press(event));
    window.addEventListener("resize", this.follow);
    document.addEventListener("scroll", this.follow, { capture: true, passive: true });
  }

  /** Starts by itself at the first visit, unless a link names a view, or a frame is too low. */
  startAtFirstVisit() {
    const framed = window.parent !== window && window.innerHeight < LOW;
    if (!this.linked && !framed && rememberVisit()) this.start();
  }

  get open() {
    return !byId("tour").hidden;
  }

  start() {
    this.before = document.activeElement;
    this.steps = stepsOf(this.explorer);
    byId("tour").hidden = byId("tour-ring").hidden = false;
    for (const element of [
      document.body,
      byId("tour"),
      ...document.querySelectorAll(this.steps.map(([selector]) => selector).join()),
    ])
      this.sizes.observe(element);
    this.goTo(0);
    byId("tour-next").focus({ preventScroll: true });
  }

  end() {
    byId("tour").hidden = byId("tour-ring").hidden = true;
    this.sizes.disconnect();
    (this.before?.isConnected && this.before !== document.body ? this.before : byId("help-button")).focus({
      preventScroll: true,
    });
  }

  press(event) {
    const by = event.target.closest?.("#tour") ? { ArrowLeft: -1, ArrowRight: 1 }[event.key] : 0;
    if (!this.open || event.defaultPrevented || (event.key !== "Escape" && !by)) return;
    event.preventDefault(); // the keys of the page come after this
    if (!by) this.end();
    else if (this.steps[this.step + by]) this.goTo(this.step + by);
  }

  goTo(step) {
    this.step = step;
    const about = document.querySelector(this.steps[step][0]);
    const tall = about?.getBoundingClientRect().height > 0.6 * window.innerHeight;
    about?.scrollIntoView({ block: tall ? "start" : "center" });
    this.render();
  }

  /** Shows the step; again after another language, theme or drawing was chosen. */
  render() {
    if (!this.open) return;
    const about = this.steps[this.step][0];
    const steps = stepsOf(this.explorer);
    const same = steps.findIndex(([selector]) => selector === about);
    const step = same < 0 ? Math.min(this.step, steps.length - 1) : same;
    Object.assign(this, { steps, step });
    const last = step === steps.length - 1;
    const card = byId("tour");
    card.setAttribute("aria-label", say("tourName"));
    const { look, state } = this.explorer;
    byId("tour-text").textContent = sayTour(steps[step][1], look.dark, this.explorer.headOf(state).whole);
    byId("tour-place").textContent = say("tourPlace", { step: step + 1, steps: steps.length });
    const held = document.activeElement?.id;
    const button = (id, key, click) =>
      make("button", {
        type: "button",
        id,
        class: id === "tour-next" ? "small main" : "small",
        text: say(key),
        on: { click },
      });
    refill(
      byId("tour-buttons"),
      last ? null : button("tour-skip", "tourSkip", () => this.end()),
      step ? button("tour-back", "tourBack", () => this.goTo(step - 1)) : null,
      button("tour-next", last ? "tourEnd" : "tourNext", () => (last ? this.end() : this.goTo(step + 1))),
    );
    if (held?.startsWith("tour-")) (byId(held) ?? byId("tour-next")).focus({ preventScroll: true });
    this.arrange();
  }

  /** Puts the ring around what the step is about, and the card beside it. */
  arrange() {
    if (!this.open) return;
    const about = document.querySelector(this.steps[this.step][0]);
    if (!about) return;
    const box = about.getBoundingClientRect();
    const ring = { left: box.left - 3, top: box.top - 3, width: box.width + 6, height: box.height + 6 };
    for (const [side, value] of Object.entries(ring)) byId("tour-ring").style[side] = `${value}px`;
    const card = byId("tour");
    const { width, height } = card.getBoundingClientRect();
    const [wide, high] = [window.innerWidth, window.innerHeight];
    const inside = (value, size, room) => Math.max(GAP, Math.min(value, room - size - GAP));
    const room = { below: high - box.bottom, above: box.top, right: wide - box.right, left: box.left };
    let [left, top] = [inside(box.left + (box.width - width) / 2, width, wide), high - height - GAP];
    if (room.below > height + 2 * GAP) top = box.bottom + GAP;
    else if (room.above > height + 2 * GAP) top = box.top - height - GAP;
    else if (room.right > width + 2 * GAP) [left, top] = [box.right + GAP, inside(box.top, height, high)];
    else if (room.left > width + 2 * GAP) [left, top] = [box.left - width - GAP, inside(box.top, height, high)];
    Object.assign(card.style, { left: `${left}px`, top: `${top}px` });
  }
}

/**
 * Whether this is the first visit, which is then remembered; false where nothing can be remembered.
 * The local server has another port, and so another storage, each time: a cookie belongs to all ports of this machine.
 */
function rememberVisit() {
  try {
    if (localStorage.getItem(SEEN) || document.cookie.includes(SEEN)) return false;
    localStorage.setItem(SEEN, "seen");
    if (location.protocol.startsWith("http")) {
      // biome-ignore lint/suspicious/noDocumentCookie: the Cookie Store API is not in all browsers
      document.cookie = `${SEEN}=seen; path=/; max-age=31536000; samesite=strict`;
    }
    return true;
  } catch {
    return false; // a sandboxed frame
  }
}
