// Makes all elements of the page; data become text nodes, never markup.

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

/** Keeps a number between two others. */
export function between(low, value, high) {
  return Math.max(low, Math.min(high, value));
}

/** Arrow keys go along a list that was reached by keys; after a click into it they choose heads, as they do elsewhere. */
export function noteClicks(list) {
  list.addEventListener("click", (event) => list.toggleAttribute("data-clicked", event.detail > 0)); // Enter clicks, too: 0
  list.addEventListener("focusout", () => list.removeAttribute("data-clicked"));
}

/** Whether a key belongs to the list that has the focus, see above. */
export function isOwnKey(event, list) {
  return !list.hasAttribute("data-clicked") && !event.ctrlKey && !event.altKey && !event.metaKey;
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
