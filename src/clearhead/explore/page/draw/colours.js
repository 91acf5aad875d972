// Colours: scales whose lightness changes evenly, so that they can be read without colour; roles of heads; the theme.

// From weight 0 to the full colour. One hue, or cividis, which is the same for the colour-blind.
const SCALES = {
  ember: {
    light: ["#fcf8f4", "#f5e1d6", "#eac3b0", "#dc9c81", "#ca7150", "#b24c2b", "#8a2e13"],
    dark: ["#1a1c22", "#33251f", "#5c3321", "#8f4a25", "#c46a2e", "#eb9a4b", "#ffd9a0"],
  },
  cividis: {
    light: ["#fdf6d3", "#ecd878", "#c3b369", "#948e77", "#666970", "#35456c", "#00224e"],
    dark: ["#0d1a30", "#20355f", "#4d566d", "#7c7b78", "#aca06f", "#dcc954", "#fff07a"],
  },
  ink: {
    light: ["#faf9f6", "#e4e3df", "#c6c5c1", "#9d9c99", "#706f6d", "#434342", "#161616"],
    dark: ["#191b20", "#2c2f36", "#474a53", "#6d717a", "#989ca6", "#c7cad1", "#f6f7f9"],
  },
};

// On light and dark ground, in the order of the legend; as in explore/head_summaries.py (a test compares).
export const ROLE_COLOURS = {
  "alignment": ["#bd4a1f", "#f08a55"],
  "induction": ["#c23f86", "#ee86bb"],
  "duplicate": ["#7d5339", "#c0977a"],
  "previous": ["#2362b5", "#6aa5f0"],
  "itself": ["#2b9bc7", "#62c4ec"],
  "next": ["#00806d", "#3fc4ae"],
  "first": ["#2f8a4c", "#6cc685"],
  "delimiter": ["#8650ab", "#bb8be0"],
  "local": ["#7a86a1", "#a3aec6"],
  "broad": ["#b8860b", "#e0b64a"],
  "none of these": ["#9a978e", "#83868e"],
  "no numbers": ["#5b2a86", "#7fd6ff"],
};

// Hues of lines from the first key to the last, on light and dark ground.
const LINE_COLOURS = [
  ["#4263eb", "#1098ad", "#37b24d", "#f59f00", "#e8590c", "#a61e4d"],
  ["#7d9bff", "#3cc4d6", "#6bd47f", "#ffc14d", "#ff8f57", "#f07ba6"],
];

/** Whether the page is dark: as chosen, or as the system is. */
export function isDark(theme) {
  if (theme !== "auto") return theme === "dark";
  return window.matchMedia?.("(prefers-color-scheme: dark)").matches ?? false;
}

function rgbOf(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

function mixColours(start, other, share) {
  return start.map((value, i) => Math.round(value + (other[i] - value) * share));
}

/** The colour at a share of the way from the first stop to the last. */
function colourBetween(stops, share) {
  const position = share * (stops.length - 1);
  const low = Math.min(Math.floor(position), stops.length - 2);
  return mixColours(stops[low], stops[low + 1], position - low);
}

function hexOf(colour) {
  return `#${colour.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

const INKS = ["#1d2433", "#ffffff", "#000000"]; // one of them is readable on any ground

/** The contrast of two colours, as WCAG defines it. */
function contrast(colour, other) {
  const [dark, light] = [luminance(colour), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

/** A scale of 256 colours. */
export class Scale {
  constructor(name, dark) {
    const stops = SCALES[name][dark ? "dark" : "light"].map(rgbOf);
    this.key = `${name}${dark}`;
    this.colours = Array.from({ length: 256 }, (_, i) => colourBetween(stops, i / 255));
    this.packed = Uint32Array.from(
      this.colours,
      ([red, green, blue]) => (255 << 24) | (blue << 16) | (green << 8) | red,
    );
    this.texts = this.colours.map(([red, green, blue]) => `rgb(${red},${green},${blue})`);
    this.odd = dark ? "#7fd6ff" : "#5b2a86"; // NaN and infinities, in no hue of a scale
    this.oddInk = dark ? "#101820" : "#ffffff";
    const [oddRed, oddGreen, oddBlue] = rgbOf(this.odd);
    this.oddPacked = ((255 << 24) | (oddBlue << 16) | (oddGreen << 8) | oddRed) >>> 0;
    this.inks = this.colours.map((colour) => INKS.find((ink) => contrast(rgbOf(ink), colour) >= 4.5) ?? INKS[2]);
  }

  /** The colour of an intensity between 0 and 1, as CSS. */
  css(share) {
    return this.texts[level(share)];
  }

  /** The colour of text that is readable on it. */
  ink(share) {
    return this.inks[level(share)];
  }

  /** The hex colour, for files. */
  hex(share) {
    return hexOf(this.colours[level(share)]);
  }
}

function level(share) {
  return Math.max(0, Math.min(255, Math.round(share * 255)));
}

function luminance(colour) {
  const [red, green, blue] = colour.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** A hue for each key, as hex. */
export function lineColours(count, dark) {
  const stops = LINE_COLOURS[dark ? 1 : 0].map(rgbOf);
  return Array.from({ length: count }, (_, i) => hexOf(colourBetween(stops, count > 1 ? i / (count - 1) : 0)));
}

/** The colour of a role. */
export function roleColour(role, dark) {
  return ROLE_COLOURS[role][dark ? 1 : 0];
}

/** The intensity of a share of attention: linear, square root, or logarithm over four decades. */
export function intensity(curve, value, full) {
  const share = value / full;
  if (share <= 0) return 0;
  if (share >= 1) return 1;
  if (curve === "root") return Math.sqrt(share);
  if (curve === "log") return Math.max(0, 1 + Math.log10(share) / 4);
  return share;
}

/** 256 packed colours from the background to a role's colour, for thumbnails. */
export function tint(role, dark) {
  const paper = rgbOf(dark ? "#22252c" : "#efede7");
  const ink = rgbOf(roleColour(role, dark));
  return Uint32Array.from({ length: 256 }, (_, i) => {
    const [red, green, blue] = mixColours(paper, ink, i / 255);
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  });
}

/** What canvases need: the colours and fonts of style.css, which is the only list of them, and the chosen scale. */
export function readLook(colours) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const family = colour("sans") || "sans-serif";
  const dark = document.documentElement.dataset.theme === "dark";
  const names = ["ink", "soft", "line", "accent", "second", "paper", "hidden", "hatch", "beam", "veil", "word"];
  return {
    ...Object.fromEntries([...names, "chip", "doubt"].map((name) => [name, colour(name)])),
    dark,
    scale: new Scale(colours, dark),
    family,
    font: `13px ${family}`,
    strongFont: `600 13px ${family}`,
    smallFont: `11px ${family}`,
    tinyFont: `10px ${family}`,
  };
}
