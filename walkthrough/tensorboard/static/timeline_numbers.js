// Numbers, times and sorted arrays of the timeline.
import {grouped} from "./elements.js";

/** A moment: in ms with `decimals`, or in µs to the nanosecond. */
export function moment(us, decimals = 3) {
  return Math.abs(us) >= 1e3 ? `${grouped(us / 1e3, decimals)} ms` : `${grouped(us, 3)} µs`;
}

/** µs as text that reads back as the same place. */
export function exact(us) {
  return String(Number(us.toFixed(6)));
}

/** The least of 1, 2, 5 x 10^n that is at least `least`. */
export function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999999);
}

/** What the axis says at `us`, where its ticks are `step` µs apart. */
export function tickLabel(us, step) {
  const [size, unit] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return `${grouped(us / size, decimals).replace(/^-(0(\.0+)?)$/, "$1")} ${unit}`;
}

/** The first index in [low, high) of the sorted `array` whose value is at least `value`; `high` where none is. */
export function lowerBound(array, value, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (array[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The same where the answer is likely near `low`: it doubles its stride, then bisects. */
export function gallop(array, value, low, high) {
  let stride = 1;
  while (low + stride < high && array[low + stride] < value) {
    low += stride;
    stride *= 2;
  }
  return lowerBound(array, value, low, Math.min(high, low + stride + 1));
}

export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** "50" or "1.5 ms" in µs, which is the unit where none is given; "" is 0. null where it is no duration. */
export function readDuration(text) {
  const [, number, unit] = /^\s*(\d+(?:[.,]\d*)?|[.,]\d+)\s*(ns|us|[µμ]s|ms|s)?\s*$/i.exec(text) || [];
  if (number === undefined) return String(text).trim() ? null : 0;
  const sizes = {ns: 1e-3, ms: 1e3, s: 1e6};
  return Number(number.replace(",", ".")) * (sizes[unit?.toLowerCase()] || 1);
}

/** Whether a sorted array holds `value`. */
export function holds(array, value) {
  return array[lowerBound(array, value, 0, array.length)] === value;
}
