// Numbers as text: in cells one format for a whole view, in tips as many digits as are known.

import { say } from "../words/languages.js";

const MOST_DIGITS = 6;
const LETTER = 0.58; // the width of a digit, in font sizes
const SMALLEST = 7.5; // pixels of a font that can still be read
const LARGEST = 13;

/** Whether a weight is that of a key which the mask hides. */
export function isHidden(weight) {
  return Object.is(weight, -0);
}

/** "NaN", "∞" or "−∞"; null for a finite number. */
export function oddText(value) {
  if (Number.isFinite(value)) return null;
  return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
}

/** The decimals that are known of numbers that may be wrong by `precision`, at most `most`. */
function knownDigits(precision, most) {
  return precision > 0 ? Math.max(1, Math.min(most, Math.floor(-Math.log10(2 * precision) + 1e-9))) : most;
}

/** A weight for a tip: four decimals, or a power of ten below that; fewer where the file rounds more. */
export function formatWeight(weight, precision = 0) {
  const odd = oddText(weight);
  if (odd) return odd;
  const digits = knownDigits(precision, 4);
  if (precision > 0 && weight < precision) return `<${Number(precision.toPrecision(1))}`;
  if (weight === 0) return "0";
  if (precision === 0 && weight < 0.00005) return powerOfTen(weight);
  return weight.toFixed(digits);
}

/** Whether an error of `precision` is too small to be seen: below a hundredth of the even weight of these keys. */
export function isExact(precision, keys) {
  return precision < Math.min(0.00005, 0.01 / keys);
}

/** By how much numbers may be wrong, with one digit, never less than it is. */
export function formatError(precision) {
  const unit = 10 ** Math.floor(Math.log10(precision) + 1e-9);
  return String(Number((Math.ceil(precision / unit - 1e-9) * unit).toPrecision(1)));
}

function powerOfTen(weight) {
  const [number, power] = weight.toExponential(1).split("e-");
  return `${number}·10⁻${Array.from(power, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]).join("")}`;
}

/**
 * The format of all weights of a view: two digits of the largest of them; null if cells are too small for that.
 * Weights that it would round to zero are "<0.01", and zero is "0".
 * @returns {{size: number, text: (share: number) => string, least: number} | null} `least`: smaller ones are "<0.01"
 */
export function cellFormat(high, wide, largest, precision = 0) {
  if (!(largest > 0)) return null;
  const wanted = largest >= 0.1 ? 2 : Math.min(MOST_DIGITS, Math.floor(-Math.log10(largest)) + 2);
  const digits = knownDigits(precision, wanted);
  const fit = (letters) => Math.min(LARGEST, (wide - 3) / (letters * LETTER), (high - 1) * 0.8);
  const whole = fit(digits + 2) >= SMALLEST + 1.5; // room for the 0 in front
  const size = fit(digits + (whole ? 2 : 1));
  if (size < SMALLEST) return null;
  const shorten = (text) => (whole ? text : text.replace("0.", "."));
  const least = 0.5 * 10 ** -digits;
  const small = shorten(`<${(10 ** -digits).toFixed(digits)}`);
  const roomy = small.length * LETTER * size <= wide - 2;
  const text = (share) => {
    const odd = oddText(share);
    if (odd) return odd;
    if (share < least) return share === 0 && precision === 0 ? "0" : roomy ? small : "";
    return whole ? share.toFixed(digits) : share >= 1 - least ? "1" : shorten(share.toFixed(digits));
  };
  return { size, text, least };
}

/** The decimals of a list of weights: three, or two digits of the largest if that is more, but no unknown ones. */
export function listDigits(largest, precision = 0) {
  return knownDigits(
    precision,
    largest > 0 ? Math.max(3, Math.min(MOST_DIGITS, Math.floor(-Math.log10(largest)) + 2)) : 3,
  );
}

/** A weight of a list: "<0.001" if small or rounded to 0 by the file, "0" for zero, "–" if hidden or unknown. */
export function formatListed(weight, digits, precision) {
  if (weight === null || isHidden(weight)) return "–";
  const odd = oddText(weight);
  if (odd) return odd;
  if (weight === 0 && precision === 0) return "0";
  return weight < 0.5 * 10 ** -digits ? `<${(10 ** -digits).toFixed(digits)}` : weight.toFixed(digits);
}

/**
 * A share in percent: whole numbers, with a decimal below 10 and near 100, and one digit below 0.1.
 * Digits that an error of `precision` makes unknown are left out.
 */
export function formatShare(share, precision = 0) {
  const odd = oddText(share);
  if (odd) return odd;
  const percent = 100 * share;
  if (precision > 0.0005 && share < precision) return "<1";
  if ((percent === 0 && precision === 0) || share === 1) return String(percent);
  if (precision > 0.0005) return percent < 0.5 ? "<1" : percent.toFixed(0);
  if (percent >= 99.5) return percent >= 99.95 ? ">99.9" : percent.toFixed(1);
  if (percent >= 9.95) return percent.toFixed(0);
  if (percent >= 0.095) return percent.toFixed(1);
  const mostDigits = Math.max(1, knownDigits(precision, 6) - 2);
  const digits = percent > 0 ? Math.min(mostDigits, Math.ceil(-Math.log10(percent))) : mostDigits;
  return percent < 0.5 * 10 ** -digits || share < precision
    ? `<${(10 ** -digits).toFixed(digits)}`
    : percent.toFixed(digits);
}

/** A number with `digits` decimals; "<0.001" for smaller ones, "–" for none. */
export function formatNumber(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return `<${(10 ** -digits).toFixed(digits)}`;
  return value.toFixed(digits);
}

/** A probability as a percentage: "93 %", "2.4 %", "<0.1 %"; without the space in Chinese. */
export function formatPercent(share) {
  const short = share === 0 || share === 1 || (share >= 0.0995 && share < 0.985);
  const number =
    share > 0 && share < 0.001 ? "<0.1" : share < 1 && share >= 0.9995 ? ">99.9" : (share * 100).toFixed(short ? 0 : 1);
  return say("percentOf", { number });
}

/** A whole number with thin spaces: 100 000. */
export function formatCount(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");
}

/** The number nearest to `value` from `low` to `high`. */
export function clamp(low, value, high) {
  return Math.max(low, Math.min(high, value));
}
