// The timeline's measures and colours (those of its elements are in timeline.css), and how names are cut.
import {CAUSES} from "./elements.js";

export const ROW = 18; // height of one level, in CSS pixels, as all lengths here
export const ROW_GAP = 2; // empty part of a row, at its bottom
export const LANE_PAD = 4; // empty part of a lane, above and below its rows
export const HEADER = 42; // steps and time axis
export const STEP_BAND = 20; // the steps' part of the header
export const HEADING = 22; // height of a group's heading
export const COUNTER = 40; // height of a counter's curve
export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

const SHADES = 8; // of each kind of lane
const MOST_CHARACTERS = 240; // of a name on the canvas and in lists
const IDLE = "idle: "; // what a gap's name begins with, so that a search for "idle" finds the gaps

// What a box is drawn in, on a light and on a dark ground: of each kind of lane one hue, whose shades differ mostly in
// lightness, which every kind of colour vision can see; of idle gaps the colours of CAUSES, in their order. Each has a
// contrast of 3:1 with the ground (tests/tensorboard/test_browser_timeline.py).
const COLOURS = {
  finding: ["7f1f65 942243 913275 a83653 a44386 bb4863 b75598 cf5973", "ac4b8e c9546e c965a9 e76f87 e67fc4 ff8aa1 ff9ae0 ffa5bc"],
  idle: ["c38600 009e73 d55e00 cc79a7 a79600 0072b2 939393", "e69f00 009e73 d55e00 cc79a7 c8b400 0072b2 999999"],
  mark: ["215b29 006651 336b39 007760 437c48 1b8871 548e59 349a82", "4b8450 2d947c 649e68 4daf96 7eb982 6acbb1 99d59c 86e7cc"],
  python: ["6c4400 5f5700 7d5401 6f6712 8e641d 7f7828 a07531 90893b", "966b26 8b8435 b18542 a59e50 cc9f5d c0b96b e9bb77 dcd586"],
  cpu: ["005287 3a4f97 006399 495fa9 0f74ab 5970bc 2a85be 6982ce", "1d7cb4 647cc9 3e96d0 7c97e5 5bb1ec 96b2ff 77cdff b1ceff"],
  runtime: ["4f3e88 713c7e 5e4e9a 824c90 6e5ead 935ca2 7f6fbf a56db4", "7566b5 a068ae 8f80d1 bb82ca a89aee d79ce6 c3b5ff f3b8ff"],
  loader: ["545000 36621d 636000 46732f 747110 57843f 848228 679550", "7b791c 62904b 94933b 7baa65 afad57 95c67f cac972 b0e299"],
  kernel: ["852b09 834100 973c1e 955200 aa4d30 a76300 bd5e41 ba7419", "b35537 b46f0f d06f51 d18936 ed896a eda453 ffa485 ffbf6f"],
  copy: ["005c4d 00626d 006d5d 00737e 1d7e6d 1b848f 348f7e 3495a1", "288674 2d909b 47a08e 4cabb6 63bba8 69c6d2 7fd7c3 85e2ee"],
  collective: ["871f41 922d17 9a3251 a53f29 ad4360 b9513a c05571 cc624a", "b54b68 c65d45 d36581 e4775f f0809b ff9279 ff9bb5 ffae93"],
  counter: ["005769 29597e 116879 3a6a8f 29788b 4a7aa1 3d8a9c 5b8cb3", "328092 5686ae 4e9aad 6fa1c9 69b5c8 89bce5 85d1e4 a4d8ff"],
  other: ["514b4e 5a5353 615b5e 6a6363 726b6e 7b7373 827b7f 8c8484", "797276 877f7f 938b8f a19899 ada6a9 bcb3b3 c8c1c4 d7cecf"],
};

/** A kind's colours: `css`; `pixels` as 0xBBGGRR, the order in a canvas's memory; `ink`: whether white reads better on
 * it than black. */
export function paletteOf(kind, dark) {
  const hex = (COLOURS[kind] || COLOURS.other)[Number(dark)].split(" ");
  const parts = hex.map((colour) => [0, 2, 4].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  const light = ([red, green, blue]) => 0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2;
  return {
    css: hex.map((colour) => `#${colour}`),
    pixels: Uint32Array.from(parts, ([red, green, blue]) => red | (green << 8) | (blue << 16)),
    ink: parts.map((colour) => light(colour) < 0.179),
  };
}

/** What a lane's label shows of its colours: one, or those of the causes of gaps. */
export function swatchOf({kind, palette: {css}}) {
  if (kind !== "idle") return css[SHADES >> 1];
  return `linear-gradient(${css.slice(0, 4).map((colour, at) => `${colour} ${25 * at}% ${25 * at + 25}%`).join(", ")})`;
}

/** A name's shade: the same for the same name in every trace (FNV-1a, its bits mixed once more). */
export function shadeOf(name) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
  return ((hash ^ (hash >>> 13)) >>> 0) % SHADES;
}

export function idleName(cause) {
  return IDLE + cause;
}

/** The place of a gap's cause in `CAUSES`, from its name; a name without one counts as "other". */
export function causeIndex(name) {
  const causes = Object.keys(CAUSES);
  const at = causes.indexOf(name.replace(IDLE, ""));
  return at < 0 ? causes.length - 1 : at;
}

/** A name as it is shown: not too long, and without characters that turn the direction of what follows. */
export function shortened(name, most = MOST_CHARACTERS) {
  const text = name.length > most ? `${name.slice(0, most)}…` : name;
  return text.replace(/[\u0000-\u001f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** A name, cut with "…" so that it is at most `room` wide, first of what many kernels' names begin with; "" where fewer
 * than three characters would be left. */
export function fitted(context, name, room) {
  const full = shortened(name);
  if (context.measureText(full).width <= room) return full;
  const text = full.replace(/^void /, "").replace(/at::native::|\(anonymous namespace\)::/g, "");
  const width = context.measureText(text).width;
  if (width <= room) return text;
  let length = Math.floor((text.length * room) / width);
  while (length > 2 && context.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return length > 2 ? `${text.slice(0, length)}…` : "";
}
