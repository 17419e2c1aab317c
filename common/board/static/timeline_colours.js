// The timeline's colours.
import {clamp} from "./timeline_numbers.js";

// One hue for each kind of lane; its shades differ mostly in lightness, which every kind of colour vision can see.
// The lanes' labels name the kinds too, so no meaning depends on a hue alone.
export const KINDS = new Map([ // each kind's hue and chroma in OKLCH
  ["finding", [355, 0.15]],
  ["cpu", [255, 0.12]],
  ["runtime", [305, 0.12]],
  ["loader", [122, 0.11]],
  ["kernel", [52, 0.13]],
  ["copy", [192, 0.09]],
]);
export const SHADES = 8;

// The lightness keeps a contrast of 3:1 between boxes and ground, and black or white on a box has 4.5:1 at least.
export const THEMES = {
  light: {
    lightness: [0.42, 0.62], ground: "#ffffff", odd: "#f1f4f8", lane: "#dfe3e8", header: "#f7f8fa", text: "#1d2127",
    soft: "#59616b", line: "#c9ced6", grid: "rgba(20, 30, 45, 0.07)", accent: "#b3005e", halo: "#ffffff",
    box: "rgba(179, 0, 94, 0.10)", dim: 46, button: "#ffffff", focus: "#0b57d0",
  },
  dark: {
    lightness: [0.56, 0.86], ground: "#15181d", odd: "#1d2229", lane: "#2c323b", header: "#1b1f26", text: "#e6e9ee",
    soft: "#a3acb8", line: "#3d444f", grid: "rgba(220, 230, 245, 0.07)", accent: "#ff7ac0", halo: "#000000",
    box: "rgba(255, 122, 192, 0.14)", dim: 42, button: "#242a33", focus: "#8ab4f8",
  },
};

export const THEME_PROPERTIES = ["ground", "odd", "lane", "header", "text", "soft", "line", "button", "focus"];

/** An OKLCH colour as [red, green, blue] in 0..1, linear light. */
export function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((value) => clamp(value, 0, 1));
}

/** The shades of one kind: `rgb` as 0xBBGGRR (the order in a canvas's pixels), `ink` for text: 0 black, 1 white. */
export function palette(kind, [darkest, lightest]) {
  const [hue, chroma] = KINDS.get(kind) || [0, 0.01];
  const rgb = new Uint32Array(SHADES);
  const ink = new Uint8Array(SHADES);
  for (let shade = 0; shade < SHADES; shade++) {
    const lightness = darkest + ((lightest - darkest) * shade) / (SHADES - 1);
    const linear = oklch(lightness, chroma, hue + (shade % 2 ? 14 : -14));
    const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    const bytes = linear.map((v) => Math.round(255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055)));
    rgb[shade] = bytes[0] | (bytes[1] << 8) | (bytes[2] << 16);
    ink[shade] = luminance < 0.179 ? 1 : 0;
  }
  return {rgb, ink};
}

/** A name's shade: the same for the same name in every trace (FNV-1a, its bits mixed once more). */
export function shadeOf(name) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
  return ((hash ^ (hash >>> 13)) >>> 0) % SHADES;
}
