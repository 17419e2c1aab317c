// The timeline's measures, its style sheet, and what makes its elements and texts.
import {CAUSES} from "./elements.js";
import {clamp} from "./timeline_model.js";

export const ROW = 18; // height of one level, in CSS pixels, as all lengths here
export const ROW_GAP = 2; // empty part of a row, at its bottom
export const LANE_PAD = 4; // empty part of a lane, above and below its rows
export const HEADER = 42; // steps and time axis
export const STEP_BAND = 20; // the steps' part of the header
export const HEADING = 22; // height of a group's heading
export const COUNTER = 40; // height of a counter's curve
export const LABELS = 196; // width of the column of lane labels
export const NARROW = [680, 104]; // in a stage narrower than the first, that column has the second width
export const WIDE = [1600, 264]; // in a wider one, it has this one
export const SCROLLBAR = 16;
export const LEAST_LABEL = 26; // a narrower box shows no name
export const LEAST_SPAN = 0.02; // µs that the view shows at most zoom
export const CLICK_SLOP = 4; // a pointer that moves less than this has clicked
export const HIT_SLOP = 3; // how far beside a box a click still finds it
export const MOST_CHARACTERS = 240; // of a name, on the canvas and in the tooltip
export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

export const HINT = "Wheel: zoom. Drag: pan. Drag on the time axis: measure. Shift + drag: select a box. " +
  "Keys: W A S D, arrows, F, M, 0, Esc; ? for all.";
export const NOTHING_SELECTED = "Click an event to see its launch, its operators and its source lines here. " +
  "Shift + drag selects a box, a drag on the time axis measures.";

export const STYLE = `
.wtl { display: flex; flex-direction: column; min-width: 0; color: var(--wtl-text); background: var(--wtl-ground);
  font: 13px/1.45 ${FONT}; box-sizing: border-box; }
.wtl *, .wtl *::before { box-sizing: border-box; }
.wtl-stage { position: relative; flex: 1 1 auto; min-height: 160px; overflow: hidden; overflow: clip;
  background: var(--wtl-header); border: 1px solid var(--wtl-line); border-radius: 4px; }
.wtl-canvas { position: absolute; top: 0; left: var(--wtl-labels); display: block; touch-action: none; outline: none;
  cursor: grab; user-select: none; }
.wtl-canvas[data-cursor=box] { cursor: crosshair; }
.wtl-canvas[data-cursor=event] { cursor: pointer; }
.wtl-canvas[data-cursor=range] { cursor: col-resize; }
.wtl-canvas[data-cursor=drag] { cursor: grabbing; }
.wtl-ring { position: absolute; inset: 0; border-radius: 3px; pointer-events: none; z-index: 3; }
.wtl-canvas:focus-visible ~ .wtl-ring { box-shadow: inset 0 0 0 2px var(--wtl-focus); }
.wtl-corner { position: absolute; top: 0; left: 0; width: var(--wtl-labels); height: ${HEADER}px; z-index: 1;
  background: var(--wtl-header); border-right: 1px solid var(--wtl-line); border-bottom: 1px solid var(--wtl-line);
  display: flex; align-items: end; padding: 2px 8px; color: var(--wtl-soft); font-size: 11px; }
.wtl-labels { position: absolute; top: ${HEADER}px; bottom: 0; left: 0; width: var(--wtl-labels); overflow: hidden;
  overflow: clip; background: var(--wtl-header); border-right: 1px solid var(--wtl-line); }
.wtl-scrolled { position: absolute; top: var(--wtl-pinned); bottom: 0; left: 0; width: 100%; overflow: hidden;
  overflow: clip; }
.wtl-pinned.wtl-fixed { position: absolute; top: 0; left: 0; width: 100%; height: var(--wtl-pinned); z-index: 1;
  background: var(--wtl-header); }
.wtl-fixed:not(:empty) { border-bottom: 2px solid var(--wtl-soft); }
.wtl-lane, .wtl-group { position: absolute; left: 0; width: 100%; border-bottom: 1px solid var(--wtl-lane); }
.wtl-lane[hidden], .wtl-group[hidden] { display: none; }
.wtl-group { height: ${HEADING}px; padding-top: 2px; background: var(--wtl-heading); font-weight: 600; }
.wtl-lane:hover { background: var(--wtl-odd); }
.wtl-fold { display: flex; gap: 5px; align-items: start; width: 100%; height: 100%; padding: 0 6px 0 8px; margin: 0;
  border: 0; text-align: left; font: inherit; font-size: 12px; line-height: ${ROW}px; color: inherit;
  background: none; cursor: pointer; }
.wtl-lane .wtl-fold { padding-left: 16px; }
.wtl-fixed .wtl-fold { padding-left: 8px; }
.wtl-fold::before { content: "▾"; content: "▾" / ""; flex: none; width: 10px; color: var(--wtl-soft); }
.wtl-fold[aria-expanded=false]::before { content: "▸"; content: "▸" / ""; }
.wtl-fold i { flex: none; width: 9px; height: 9px; margin-top: 5px; border-radius: 2px; }
.wtl-fold span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.wtl-fold em { flex: none; max-width: 40%; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  color: var(--wtl-soft); font-style: normal; font-size: 11px; margin-left: auto; }
.wtl-fold em[hidden] { display: none; }
.wtl-tall .wtl-fold span { white-space: normal; overflow-wrap: anywhere; display: -webkit-box;
  -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.wtl-tools { position: absolute; right: 2px; bottom: 1px; visibility: hidden; display: flex; gap: 2px;
  background: var(--wtl-odd); border-radius: 3px; }
.wtl-lane:hover > .wtl-tools, .wtl-group:hover > .wtl-tools, .wtl-lane:focus-within > .wtl-tools,
.wtl-group:focus-within > .wtl-tools { visibility: visible; }
.wtl-tools button { min-width: 20px; height: 20px; padding: 0 4px; font: inherit; font-size: 11px; line-height: 16px;
  color: inherit; background: var(--wtl-button); border: 1px solid var(--wtl-line); border-radius: 3px;
  cursor: pointer; }
.wtl-tools button:hover { border-color: var(--wtl-soft); }
.wtl-scroll { position: absolute; top: calc(${HEADER}px + var(--wtl-pinned)); right: 0; bottom: 0;
  width: ${SCROLLBAR}px; overflow-x: hidden;
  overflow-y: auto; background: var(--wtl-header); }
.wtl-scroll div { width: 1px; }
.wtl-tip { position: absolute; z-index: 4; max-width: 460px; padding: 4px 8px; border-radius: 4px; font-size: 12px;
  pointer-events: none; background: var(--wtl-text); color: var(--wtl-ground); overflow-wrap: anywhere;
  box-shadow: 0 2px 8px rgba(0, 0, 0, 0.35); }
.wtl-tip small { display: block; font-size: 11px; opacity: 0.85; }
.wtl-foot { flex: none; display: flex; flex-wrap: wrap; gap: 6px; align-items: center; padding: 6px 0; }
.wtl-foot p { flex: 1 1 320px; margin: 0 0 0 4px; font-size: 12px; color: var(--wtl-soft); }
.wtl-foot button { font: inherit; font-size: 12px; min-width: 28px; padding: 2px 9px; color: inherit; cursor: pointer;
  background: var(--wtl-button); border: 1px solid var(--wtl-line); border-radius: 4px; }
.wtl-foot button:hover { border-color: var(--wtl-soft); }
.wtl-foot button[aria-pressed=true] { color: var(--wtl-ground); background: var(--wtl-text);
  border-color: var(--wtl-text); }
.wtl button:focus-visible { outline: 2px solid var(--wtl-focus); outline-offset: -2px; }
.wtl-panel { flex: 0 1 max(216px, 25vh); min-height: 96px; overflow: auto; padding: 8px 12px;
  border: 1px solid var(--wtl-line); border-radius: 4px; background: var(--wtl-header); display: flex;
  flex-wrap: wrap; gap: 6px 36px; align-content: start; align-items: start; }
.wtl-panel.wtl-unused { flex: none; min-height: 0; padding: 3px 12px; }
.wtl-unused > p { min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.wtl-panel > p { margin: 0; color: var(--wtl-soft); }
.wtl-panel h3 { flex: 1 1 100%; margin: 0; font-size: 13px; font-weight: 600; overflow-wrap: anywhere; }
.wtl-panel h4 { margin: 0; font-size: 12px; font-weight: 600; color: var(--wtl-soft); }
.wtl-panel dl { margin: 0; display: grid; grid-template-columns: auto auto; justify-content: start;
  gap: 0 12px; align-content: start; max-width: 100%; }
.wtl-panel dt { color: var(--wtl-soft); }
.wtl-panel dd { margin: 0; max-width: 560px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.wtl-panel dd i { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 5px; }
.wtl-part { flex: 0 1 auto; min-width: min(280px, 100%); max-width: min(620px, 100%); }
.wtl-lines { flex: 1 1 340px; }
.wtl-panel ol { min-width: 0; margin: 0; padding: 0; list-style: none; }
.wtl-panel > ol { flex: 1 1 420px; columns: 2 320px; column-gap: 28px; }
.wtl-panel li { display: flex; gap: 10px; break-inside: avoid; font-variant-numeric: tabular-nums; }
.wtl-panel li span, .wtl-panel li button { flex: 1 1 auto; min-width: 0; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; text-align: left; }
.wtl-panel li b { flex: none; min-width: 68px; text-align: right; font-weight: 500; }
.wtl-panel li small { flex: none; min-width: 64px; text-align: right; font-size: inherit; color: var(--wtl-soft); }
.wtl-link { font: inherit; color: var(--wtl-link); background: none; border: 0; padding: 0; cursor: pointer;
  text-decoration: underline; text-align: left; overflow-wrap: anywhere; }
.wtl-help { max-width: min(760px, calc(100vw - 32px)); max-height: calc(100vh - 32px); padding: 16px 24px;
  color: var(--wtl-text); background: var(--wtl-ground); border: 1px solid var(--wtl-soft); border-radius: 6px; }
.wtl-help::backdrop { background: rgba(0, 0, 0, 0.45); }
.wtl-help h2 { margin: 0 0 8px; font-size: 16px; }
.wtl-help h3 { margin: 12px 0 4px; font-size: 13px; }
.wtl-help dl { margin: 0; display: grid; grid-template-columns: max-content 1fr; gap: 2px 20px; }
.wtl-help dt { font-weight: 500; }
.wtl-help dd { margin: 0; color: var(--wtl-soft); }
.wtl-help > button { margin-top: 14px; font: inherit; padding: 3px 14px; color: inherit;
  background: var(--wtl-button); border: 1px solid var(--wtl-soft); border-radius: 4px; cursor: pointer; }
.wtl-empty { margin: 0; padding: 24px; color: var(--wtl-soft); }
`;

/** A new element; `text` only ever becomes text. */
export function make(tag, className = "", text = "", parent = null) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

/** A name as it is shown: not too long, and without characters that turn the direction of what follows. */
export function shortened(name, most = MOST_CHARACTERS) {
  const text = name.length > most ? `${name.slice(0, most)}…` : name;
  return text.replace(/[\u0000-\u001f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** `text`, cut with "…" so that it is at most `room` wide; "" where fewer than three characters would be left. */
export function fitText(context, text, room) {
  const width = context.measureText(text).width;
  if (width <= room) return text;
  let length = Math.floor((text.length * room) / width);
  while (length > 2 && context.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return length > 2 ? `${text.slice(0, length)}…` : "";
}

/** A kernel's name without what many kernels' names begin with. */
export function brief(name) {
  return name.replace(/^void /, "").replace(/at::native::|\(anonymous namespace\)::/g, "");
}

/** A list of names and values: texts or elements. */
export function facts(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) {
    make("dt", "", name, list);
    make("dd", "", "", list).append(value);
  }
  return list;
}

// The timeline's colours.
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
