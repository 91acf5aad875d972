// The legend below the map: the scale of its colours, or of the thickness of lines.

import { byId, make, makeSvg, refill, sharpen } from "../draw/elements.js";
import { say } from "../words/languages.js";

const BAR = 88; // pixels of the scale

/** The colours from one end to the other, and the patterns of what has no colour. */
export function drawLegend(explorer, curve, ends, single, { hides, odd } = {}) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const context = sharpen(canvas, BAR, 9);
  for (let x = 0; x < BAR; x++) {
    context.fillStyle = explorer.look.scale.css(x / (BAR - 1));
    context.fillRect(x, 0, 1.5, 9);
  }
  const what = [say(single ? "weight" : "shareOf"), ...(curve === "linear" ? [] : [say(curve)])].join(" · ");
  refill(
    byId("legend"),
    make("span", { text: what }),
    make("span", { text: ends[0] }),
    canvas,
    make("span", { text: ends[1] }),
    hides
      ? make(
          "span",
          { class: "swatch-label" },
          make("span", { class: "swatch hatched", "aria-hidden": "true" }),
          say("hiddenKey"),
        )
      : null,
    odd
      ? make(
          "span",
          { class: "swatch-label" },
          make("span", { class: "swatch odd", "aria-hidden": "true" }),
          say("oddKey"),
        )
      : null,
  );
}

/** The thickness of lines from weight 0 to that of the thickest. */
export function drawLineLegend(full, thick) {
  const wedge = makeSvg(
    "svg",
    { width: BAR, height: thick, class: "wedge", "aria-hidden": "true" },
    makeSvg("path", { d: `M0 ${thick / 2}L${BAR} 0V${thick}Z` }),
  );
  refill(
    byId("legend"),
    make("span", { text: say("weight") }),
    make("span", { text: "0" }),
    wedge,
    make("span", { text: full === 1 ? "1" : full.toFixed(2) }),
  );
}
