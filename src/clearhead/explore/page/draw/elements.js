// Makes all elements of the page; data become text nodes, never markup.

import { clamp } from "../data/number_format.js";

const FAINTEST = 0.004; // shade below which an element keeps its own colours
const SVG = "http://www.w3.org/2000/svg";

/**
 * An element with its class, text, attributes, listeners and children.
 * @param {string} tag
 * @param {{class?: string, text?: string, on?: Object<string, (event: any) => void>, [attribute: string]: any}} options
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {any}
 */
export function make(tag, options = {}, ...children) {
  return fill(document.createElement(tag), options, children);
}

/** The same for SVG. */
export function makeSvg(tag, options = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), options, children);
}

/** A button with its label; a function, or nothing, is called at a click. */
export function makeButton(label, click, options = {}, ...children) {
  const on = { ...(click ? { click } : {}), ...options.on };
  return make("button", { type: "button", ...options, on }, label, ...children);
}

/** A paragraph. */
export function makeNote(text, style = "soft") {
  return make("p", { class: style, text });
}

function fill(element, options, children) {
  for (const [key, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.setAttribute("class", value);
    else if (key === "text") element.textContent = value;
    else if (key === "on") for (const [type, heard] of Object.entries(value)) element.addEventListener(type, heard);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replaces what is inside an element. */
export function refill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** @returns {any} the element of the page with this id */
export function byId(id) {
  return document.getElementById(id);
}

/** A canvas that is sharp on this screen: sized in CSS pixels, drawn in device pixels. */
export function sharpen(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const wide = Math.max(1, Math.round(width * ratio));
  const high = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** A canvas of one pixel for each number: `colourAt` gives its packed colour. */
export function makeBitmap(width, height, colourAt) {
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) pixels[i] = colourAt(i);
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Shows how strongly an element is shaded, between 0 and 1. */
export function shadeElement(element, shade, scale) {
  element.style.backgroundColor = shade > FAINTEST ? scale.css(shade) : "";
  element.style.color = shade > FAINTEST ? scale.ink(shade) : "";
}

/**
 * Makes the children of a list one tab stop: arrow keys, Home and End go from one to the next. After a click into the
 * list arrow keys choose heads, as they do elsewhere.
 * @param {number} far how many children the keys up and down skip; 0 if they do something else
 */
export function makeRoving(list, far = 0) {
  list.addEventListener("click", (event) => list.toggleAttribute("data-clicked", event.detail > 0)); // Enter clicks: 0
  list.addEventListener("focusout", () => list.removeAttribute("data-clicked"));
  list.addEventListener("focusin", ({ target }) => {
    for (const child of list.querySelectorAll('[tabindex="0"]')) child.tabIndex = -1;
    target.tabIndex = 0;
  });
  list.addEventListener("keydown", (event) => {
    const right = list.dir === "rtl" ? -1 : 1;
    const keys = {
      ArrowLeft: -right,
      ArrowRight: right,
      ArrowUp: -far,
      ArrowDown: far,
      Home: -Infinity,
      End: Infinity,
    };
    if (!keys[event.key] || !isOwnKey(event, list)) return;
    event.preventDefault();
    event.stopPropagation();
    const children = [...list.children];
    const now = children.indexOf(document.activeElement);
    children[clamp(0, now + keys[event.key], children.length - 1)]?.focus();
  });
}

/** Whether an arrow key belongs to the list that has the focus, see above. */
export function isOwnKey(event, list) {
  return !list.hasAttribute("data-clicked") && !event.ctrlKey && !event.altKey && !event.metaKey && !event.shiftKey;
}

/** Debounce: calls once nothing has happened for a while. */
export function afterQuiet(milliseconds, call) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
}

/** Throttle: calls at most once a frame, with the latest values. */
export function oncePerFrame(call) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      call();
    });
  };
}
