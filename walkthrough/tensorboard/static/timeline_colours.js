// The timeline's colours.
import {CAUSES} from "./elements.js";
import {clamp} from "./timeline_numbers.js";

// One hue for each kind of lane; its shades differ mostly in lightness, which every kind of colour vision can see.
// The lanes' labels name the kinds too, so no meaning depends on a hue alone.
export const KINDS = new Map([ // each kind's hue and chroma in OKLCH
  ["finding", [355, 0.15]],
  ["mark", [160, 0.1]],
  ["python", [90, 0.1]],
  ["cpu", [255, 0.12]],
  ["runtime", [305, 0.12]],
  ["loader", [122, 0.11]],
  ["kernel", [52, 0.13]],
  ["copy", [192, 0.09]],
  ["collective", [20, 0.14]],
  ["counter", [230, 0.08]],
]);
export const SHADES = 8;

// The lightness keeps a contrast of 3:1 between boxes and ground, and black or white on a box has 4.5:1 at least.
export const THEMES = {
  light: {
    lightness: [0.42, 0.62], ground: "#ffffff", odd: "#f1f4f8", lane: "#dfe3e8", header: "#f7f8fa", text: "#1d2127",
    soft: "#59616b", line: "#c9ced6", grid: "rgba(20, 30, 45, 0.07)", accent: "#b3005e", halo: "#ffffff",
    heading: "#e4e8ee", hatch: "#aab1bb", link: "#8a3200",
    box: "rgba(179, 0, 94, 0.10)", dim: 46, button: "#ffffff", focus: "#0b57d0",
  },
  dark: {
    lightness: [0.56, 0.86], ground: "#15181d", odd: "#1d2229", lane: "#2c323b", header: "#1b1f26", text: "#e6e9ee",
    soft: "#a3acb8", line: "#3d444f", grid: "rgba(220, 230, 245, 0.07)", accent: "#ff7ac0", halo: "#000000",
    heading: "#272d36", hatch: "#4d5663", link: "#ffab66",
    box: "rgba(255, 122, 192, 0.14)", dim: 42, button: "#242a33", focus: "#8ab4f8",
  },
};

export const THEME_PROPERTIES = [
  "ground", "odd", "lane", "header", "text", "soft", "line", "button", "focus", "heading", "link",
];

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

const LEAST_CONTRAST = 3; // between a box and the ground
const IDLE = "idle: "; // what a gap's name begins with, so that a search for "idle" finds the gaps

const luminanceOf = ([red, green, blue]) => 0.2126 * red + 0.7152 * green + 0.0722 * blue;
const toLinear = (byte) => (byte <= 10.31 ? byte / 3294.6 : ((byte / 255 + 0.055) / 1.055) ** 2.4);
const toByte = (v) => Math.round(255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055));

/** "#rrggbb" as [red, green, blue] in 0..1, linear light. */
function linearOf(hex) {
  return [1, 3, 5].map((at) => toLinear(parseInt(hex.slice(at, at + 2), 16)));
}

/** The same hue, darker on a light ground or lighter on a dark one, until it stands out from the ground. */
function contrasting(colour, ground) {
  const behind = luminanceOf(linearOf(ground));
  const towards = behind > 0.5 ? 0 : 1;
  let linear = colour;
  const contrast = () => {
    const [low, high] = [luminanceOf(linear), behind].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  while (contrast() < LEAST_CONTRAST) linear = linear.map((v) => v + (towards - v) * 0.04);
  return linear;
}

/** Colours in linear light as a palette: `rgb` as 0xBBGGRR (the order in a canvas's pixels), `ink` for text on them: 0
 * black, 1 white. */
function paletteOf(colours) {
  const rgb = Uint32Array.from(colours, (linear) => {
    const [red, green, blue] = linear.map(toByte);
    return red | (green << 8) | (blue << 16);
  });
  return {rgb, ink: Uint8Array.from(colours, (linear) => (luminanceOf(linear) < 0.179 ? 1 : 0))};
}

/** The palette of one kind of lane: of idle gaps the colours of `CAUSES` in their order, else `SHADES` shades. */
export function palette(kind, {lightness: [darkest, lightest], ground}) {
  if (kind === "idle") return paletteOf(Object.values(CAUSES).map(([hex]) => contrasting(linearOf(hex), ground)));
  const [hue, chroma] = KINDS.get(kind) || [0, 0.01];
  return paletteOf(Array.from({length: SHADES}, (_, shade) => {
    const lightness = darkest + ((lightest - darkest) * shade) / (SHADES - 1);
    return oklch(lightness, chroma, hue + (shade % 2 ? 14 : -14));
  }));
}

/** A colour of a palette as CSS. */
export function cssColour(rgb) {
  return `rgb(${rgb & 255}, ${(rgb >> 8) & 255}, ${rgb >> 16})`;
}

/** What a lane's label shows of its colours: one, or those of the causes of gaps. */
export function swatchOf({kind, palette: {rgb}}) {
  if (kind !== "idle") return cssColour(rgb[SHADES >> 1]);
  const colours = [...rgb].slice(0, 4).map((colour, at) => `${cssColour(colour)} ${25 * at}% ${25 * at + 25}%`);
  return `linear-gradient(${colours.join(", ")})`;
}

export function idleName(cause) {
  return IDLE + cause;
}

/** The place of a gap's cause in `CAUSES`; a name without one counts as "other". */
export function causeIndex(name) {
  const causes = Object.keys(CAUSES);
  const at = causes.indexOf(name.startsWith(IDLE) ? name.slice(IDLE.length) : name);
  return at < 0 ? causes.length - 1 : at;
}

/** A name's shade: the same for the same name in every trace (FNV-1a, its bits mixed once more). */
export function shadeOf(name) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
  return ((hash ^ (hash >>> 13)) >>> 0) % SHADES;
}
