// A timeline of a profiler trace, drawn on one canvas.
//
//     import {Timeline} from "./timeline.js";
//     const timeline = new Timeline(element, data, {onSelect(info) {}, dark: false});
//
// `data`: {names: [string],
//          steps: [{name, start, end}],
//          lanes: [{label, kind: "finding" | "cpu" | "runtime" | "loader" | "kernel" | "copy",
//                   start: [], duration: [], name: [], level: []}]}
// with times in µs, `name` an index into `names`, `level` the row of a nested event. onSelect gets one of
//     {kind: "event", name, start, duration, lane}
//     {kind: "box", start, end, lanes, count, us, wall, names, top: [{name, count, us}]}
//     {kind: "none"}
// A box counts the events that reach into it, and of each the part inside: `us` is the sum of these parts over all
// levels (so nested time counts again at each level), `wall` the time in which at least one of them runs, `names` how
// many names differ. Of a folded lane only the row in sight counts.
//
// How a frame stays cheap with 500,000 events: the events of one lane and one level form a Track, held in typed arrays
// sorted by start. A frame paints each visible Track into one line of pixels (`paintTrack`): boxes wider than a pixel
// one by one, and all narrower events that start in the same pixel column at once, found by binary search. So a frame
// costs about (columns x visible rows), however many events there are. Each line is then stretched to its row's height.
//
// Names come from a trace, so from strangers: they reach the page only by `textContent` and `fillText`.

const ROW = 18; // height of one level, in CSS pixels, as all lengths here
const ROW_GAP = 2; // empty part of a row, at its bottom
const LANE_PAD = 4; // empty part of a lane, above and below its rows
const HEADER = 42; // steps and time axis
const STEP_BAND = 20; // the steps' part of the header
const LABELS = 184; // width of the column of lane labels
const NARROW = [680, 104]; // in a stage narrower than the first, that column has the second width
const SCROLLBAR = 16;
const LEAST_LABEL = 26; // a narrower box shows no name
const LEAST_SPAN = 0.02; // µs that the view shows at most zoom
const CLICK_SLOP = 4; // a pointer that moves less than this has clicked
const HIT_SLOP = 3; // how far beside a box a click still finds it
const MOST_LEVELS = 512; // deeper events are drawn in the last row
const MOST_CHARACTERS = 240; // of a name, on the canvas and in the tooltip
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

const HINT = "Wheel: zoom. Shift + wheel: scroll. Drag: pan. Shift + drag: select a box. " +
  "Keys: arrows, W A S D, + −, F, 0, Esc.";
const HINT_MORE = "A click selects an event, or zooms to a step by its name; a double click zooms to an event. " +
  "Arrows or A and D pan, W and S or + and − zoom, F zooms to the selection, 0 or Home shows all, Escape clears.";
const NOTHING_SELECTED = "Click an event, or select a box with Shift + drag, to see its numbers here.";

// ---------------------------------------------------------------------------------------------------------- numbers

/** 1234567.5 with 1 decimal -> "1,234,567.5" */
function grouped(value, decimals = 0) {
  const [whole, fraction] = value.toFixed(decimals).split(".");
  const groups = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return fraction ? `${groups}.${fraction}` : groups;
}

/** A duration in the unit that suits it, with 4 significant digits: "12.34 ms". */
function duration(us) {
  if (!us) return "0 µs";
  const [size, unit] = Math.abs(us) >= 1e6 ? [1e6, "s"] : Math.abs(us) >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  const value = us / size;
  const digits = Math.max(1, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
  return `${grouped(value, Math.min(3, Math.max(0, 4 - digits)))} ${unit}`;
}

/** A moment: in ms with `decimals`, or in µs to the nanosecond. */
function moment(us, decimals = 3) {
  return Math.abs(us) >= 1e3 ? `${grouped(us / 1e3, decimals)} ms` : `${grouped(us, 3)} µs`;
}

/** The least of 1, 2, 5 x 10^n that is at least `least`. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999999);
}

/** What the axis says at `us`, where its ticks are `step` µs apart. */
function tickLabel(us, step) {
  const [size, unit] = step >= 1e6 ? [1e6, "s"] : step >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
  return `${grouped(us / size, decimals).replace(/^-(0(\.0+)?)$/, "$1")} ${unit}`;
}

/** The first index in [low, high) of the sorted `array` whose value is at least `value`; `high` where none is. */
function lowerBound(array, value, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (array[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The same where the answer is likely near `low`: it doubles its stride, then bisects. */
function gallop(array, value, low, high) {
  let stride = 1;
  while (low + stride < high && array[low + stride] < value) {
    low += stride;
    stride *= 2;
  }
  return lowerBound(array, value, low, Math.min(high, low + stride + 1));
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// ---------------------------------------------------------------------------------------------------------- colours

// One hue for each kind of lane; its shades differ mostly in lightness, which every kind of colour vision can see.
// The lanes' labels name the kinds too, so no meaning depends on a hue alone.
const KINDS = new Map([ // each kind's hue and chroma in OKLCH
  ["finding", [355, 0.15]],
  ["cpu", [255, 0.12]],
  ["runtime", [305, 0.12]],
  ["loader", [122, 0.11]],
  ["kernel", [52, 0.13]],
  ["copy", [192, 0.09]],
]);
const SHADES = 8;

// The lightness keeps a contrast of 3:1 between boxes and ground, and black or white on a box has 4.5:1 at least.
const THEMES = {
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

const THEME_PROPERTIES = ["ground", "odd", "lane", "header", "text", "soft", "line", "button", "focus"];

/** An OKLCH colour as [red, green, blue] in 0..1, linear light. */
function oklch(lightness, chroma, hue) {
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
function palette(kind, [darkest, lightest]) {
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
function shadeOf(name) {
  let hash = 0x811c9dc5;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
  return ((hash ^ (hash >>> 13)) >>> 0) % SHADES;
}

// ------------------------------------------------------------------------------------------------------------- data

/** The events of one level of one lane, sorted by start. They should not overlap; all works where they do. */
class Track {
  constructor(size) {
    this.size = size;
    this.start = new Float64Array(size);
    this.end = new Float64Array(size);
    this.name = new Uint32Array(size);
    this.matches = null; // the indices of the events a search found, sorted; null where there is no search
  }

  /** To be called once, after the arrays are filled. */
  seal() {
    const {size, start, end} = this;
    this.busy = new Float64Array(size + 1); // busy[i]: the sum of the durations before event i
    this.reach = end; // reach[i]: the last end of the events 0..i, so sorted; `end` itself where that is sorted
    for (let i = 0; i < size; i++) {
      this.busy[i + 1] = this.busy[i] + (end[i] - start[i]);
      if (i && end[i] < this.reach[i - 1]) {
        if (this.reach === end) this.reach = end.slice();
        this.reach[i] = this.reach[i - 1];
      }
    }
    // A binary tree over the events: node k has the children 2k and 2k + 1, leaf size + i is event i. tree[k] is the
    // longest event under node k, most[k] its duration.
    this.tree = new Uint32Array(2 * size);
    this.most = new Float64Array(2 * size);
    for (let i = 0; i < size; i++) {
      this.tree[size + i] = i;
      this.most[size + i] = end[i] - start[i];
    }
    for (let k = size - 1; k > 0; k--) {
      const child = this.most[2 * k + 1] > this.most[2 * k] ? 2 * k + 1 : 2 * k;
      this.tree[k] = this.tree[child];
      this.most[k] = this.most[child];
    }
  }

  /** The longest event of [low, high), which must not be empty. */
  longest(low, high) {
    const {size, most} = this;
    let best = low + size; // a node
    for (let l = low + size, h = high + size; l < h; l >>= 1, h >>= 1) {
      if (l & 1) {
        if (most[l] > most[best]) best = l;
        l++;
      }
      if (h & 1) {
        h--;
        if (most[h] > most[best]) best = h;
      }
    }
    return this.tree[best];
  }

  /** The first event that may reach `time`. */
  firstReaching(time) {
    return lowerBound(this.reach, time, 0, this.size);
  }

  /** The first event that starts at `time` or later. */
  firstStarting(time) {
    return lowerBound(this.start, time, 0, this.size);
  }
}

/** Indices in the order of `start`, or null where it is sorted as it is. */
function sortedOrder(start, size) {
  let sorted = true;
  for (let i = 1; i < size && sorted; i++) sorted = start[i - 1] <= start[i];
  return sorted ? null : Uint32Array.from({length: size}, (_, i) => i).sort((a, b) => start[a] - start[b]);
}

/** One lane of the server's data as Tracks. Events without finite times are left out. */
function readLane(lane, names) {
  const {start = [], duration: lengths = [], name = [], level = []} = lane;
  const size = Math.min(start.length, lengths.length);
  const levelOf = (i) => clamp(Math.floor(level[i]) || 0, 0, MOST_LEVELS - 1);
  const good = (i) => Number.isFinite(start[i]) && Number.isFinite(lengths[i]);
  const sizes = [0];
  for (let i = 0; i < size; i++) if (good(i)) sizes[levelOf(i)] = (sizes[levelOf(i)] || 0) + 1;
  const tracks = Array.from(sizes, (count) => new Track(count || 0));
  const filled = new Uint32Array(tracks.length);
  const order = sortedOrder(start, size);
  for (let k = 0; k < size; k++) {
    const i = order ? order[k] : k;
    if (!good(i)) continue;
    const track = tracks[levelOf(i)];
    const at = filled[levelOf(i)]++;
    track.start[at] = start[i];
    track.end[at] = start[i] + Math.max(0, lengths[i]);
    track.name[at] = name[i] >= 0 && name[i] < names.length - 1 ? name[i] : names.length - 1;
  }
  const read = {label: String(lane.label || "unnamed"), kind: String(lane.kind ?? ""), tracks, open: true};
  tracks.forEach((track, index) => {
    track.lane = read;
    track.level = index;
    track.seal();
  });
  return read;
}

/** The server's data as typed arrays; see the head of the file. */
function readModel(data) {
  const names = Array.from(data?.names || [], String);
  names.push("(no name)"); // for events whose index is out of range
  const lanes = Array.from(data?.lanes || [], (lane) => readLane(lane || {}, names));
  const tracks = lanes.flatMap((lane) => lane.tracks);
  const count = new Uint32Array(names.length);
  const us = new Float64Array(names.length);
  let [low, high, events] = [Infinity, -Infinity, 0];
  for (const track of tracks) {
    if (!track.size) continue;
    events += track.size;
    low = Math.min(low, track.start[0]);
    high = Math.max(high, track.reach[track.size - 1]);
    for (let i = 0; i < track.size; i++) {
      count[track.name[i]]++;
      us[track.name[i]] += track.end[i] - track.start[i];
    }
  }
  const steps = Array.from(data?.steps || [])
    .map((step) => ({name: String(step?.name ?? ""), start: step?.start, end: step?.end}))
    .filter((step) => Number.isFinite(step.start) && step.end > step.start && Number.isFinite(step.end))
    .sort((a, b) => a.start - b.start);
  for (const step of steps) [low, high] = [Math.min(low, step.start), Math.max(high, step.end)];
  return {names, shade: Uint8Array.from(names, shadeOf), lanes, tracks, steps, count, us, low, high, events};
}

/** Adds the intervals (pairs in a flat array, sorted) to `union` (the same, without overlaps) and returns the union. */
function joined(union, intervals) {
  const out = [];
  let i = 0;
  let j = 0;
  while (i < union.length || j < intervals.length) {
    const first = j >= intervals.length || (i < union.length && union[i] <= intervals[j]);
    const start = first ? union[i] : intervals[j];
    const end = first ? union[i + 1] : intervals[j + 1];
    if (first) i += 2;
    else j += 2;
    if (out.length && start <= out[out.length - 1]) out[out.length - 1] = Math.max(out[out.length - 1], end);
    else out.push(start, end);
  }
  return out;
}

/** What lies between two times on some tracks; of an event partly inside, only that part's time counts. */
function boxSums(model, tracks, low, high) {
  const counts = new Uint32Array(model.names.length);
  const times = new Float64Array(model.names.length);
  let [union, count, us] = [[], 0, 0];
  for (const track of tracks) {
    const intervals = [];
    for (let i = track.firstReaching(low); i < track.size && track.start[i] < high; i++) {
      if (track.end[i] <= low && track.start[i] < low) continue;
      const start = Math.max(low, track.start[i]);
      const end = Math.min(high, track.end[i]);
      counts[track.name[i]]++;
      times[track.name[i]] += end - start;
      count++;
      us += end - start;
      if (end > start) intervals.push(start, end);
    }
    union = joined(union, intervals);
  }
  let wall = 0;
  for (let i = 0; i < union.length; i += 2) wall += union[i + 1] - union[i];
  const present = [...counts.keys()].filter((name) => counts[name]);
  present.sort((a, b) => times[b] - times[a] || counts[b] - counts[a]);
  const top = present.slice(0, 10).map((name) => ({name: model.names[name], count: counts[name], us: times[name]}));
  return {count, us, wall, names: present.length, top};
}

// ------------------------------------------------------------------------------------------------------------- page

const STYLE = `
.wtl { display: flex; flex-direction: column; min-width: 0; color: var(--wtl-text); background: var(--wtl-ground);
  font: 13px/1.45 ${FONT}; box-sizing: border-box; }
.wtl *, .wtl *::before { box-sizing: border-box; }
.wtl-stage { position: relative; flex: 1 1 auto; min-height: 160px; overflow: hidden; overflow: clip;
  background: var(--wtl-header); border: 1px solid var(--wtl-line); border-radius: 4px; }
.wtl-canvas { position: absolute; top: 0; left: var(--wtl-labels); display: block; touch-action: none; outline: none;
  cursor: grab; user-select: none; }
.wtl-canvas[data-cursor=box] { cursor: crosshair; }
.wtl-canvas[data-cursor=event] { cursor: pointer; }
.wtl-canvas[data-cursor=drag] { cursor: grabbing; }
.wtl-ring { position: absolute; inset: 0; border-radius: 3px; pointer-events: none; z-index: 3; }
.wtl-canvas:focus-visible ~ .wtl-ring { box-shadow: inset 0 0 0 2px var(--wtl-focus); }
.wtl-corner { position: absolute; top: 0; left: 0; width: var(--wtl-labels); height: ${HEADER}px; z-index: 1;
  background: var(--wtl-header); border-right: 1px solid var(--wtl-line); border-bottom: 1px solid var(--wtl-line);
  display: flex; align-items: end; padding: 2px 8px; color: var(--wtl-soft); font-size: 11px; }
.wtl-labels { position: absolute; top: ${HEADER}px; bottom: 0; left: 0; width: var(--wtl-labels); overflow: hidden;
  overflow: clip; background: var(--wtl-header); border-right: 1px solid var(--wtl-line); }
.wtl-lane { position: absolute; left: 0; width: 100%; padding: 0 6px 0 8px; margin: 0; border: 0; display: flex;
  gap: 5px; align-items: start; text-align: left; font: inherit; font-size: 12px; line-height: ${ROW}px;
  color: inherit; background: none; border-bottom: 1px solid var(--wtl-lane); cursor: pointer; }
.wtl-lane:hover { background: var(--wtl-odd); }
.wtl-lane::before { content: "▾"; flex: none; width: 10px; color: var(--wtl-soft); }
.wtl-lane[aria-expanded=false]::before { content: "▸"; }
.wtl-lane i { flex: none; width: 9px; height: 9px; margin-top: 5px; border-radius: 2px; }
.wtl-lane span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.wtl-tall span { white-space: normal; overflow-wrap: anywhere; display: -webkit-box; -webkit-box-orient: vertical;
  -webkit-line-clamp: 2; }
.wtl-scroll { position: absolute; top: ${HEADER}px; right: 0; bottom: 0; width: ${SCROLLBAR}px; overflow-x: hidden;
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
.wtl-panel { flex: 0 1 168px; min-height: 96px; overflow: auto; padding: 8px 12px; border: 1px solid var(--wtl-line);
  border-radius: 4px; background: var(--wtl-header); display: flex; flex-wrap: wrap; gap: 4px 32px;
  align-content: start; }
.wtl-panel > p { margin: 0; color: var(--wtl-soft); }
.wtl-panel h3 { flex: 1 1 100%; margin: 0; font-size: 13px; font-weight: 600; overflow-wrap: anywhere; }
.wtl-panel dl { margin: 0; display: grid; grid-template-columns: auto auto; gap: 0 12px; align-content: start;
  max-width: 100%; }
.wtl-panel dt { color: var(--wtl-soft); }
.wtl-panel dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.wtl-panel ol { flex: 1 1 420px; min-width: 0; margin: 0; padding: 0; columns: 2 320px; column-gap: 28px;
  list-style: none; }
.wtl-panel li { display: flex; gap: 10px; break-inside: avoid; font-variant-numeric: tabular-nums; }
.wtl-panel li span { flex: 1 1 auto; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.wtl-panel li b { flex: none; min-width: 68px; text-align: right; font-weight: 500; }
.wtl-panel li small { flex: none; min-width: 64px; text-align: right; font-size: inherit; color: var(--wtl-soft); }
.wtl-empty { margin: 0; padding: 24px; color: var(--wtl-soft); }
`;

/** A new element; `text` only ever becomes text. */
function make(tag, className = "", text = "", parent = null) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

/** A name as it is shown: not too long, and without characters that turn the direction of what follows. */
function shortened(name, most = MOST_CHARACTERS) {
  const text = name.length > most ? `${name.slice(0, most)}…` : name;
  return text.replace(/[\u0000-\u001f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

export class Timeline {
  /** Fills `element`. `data`: {names, steps, lanes} as the server sends it. */
  constructor(element, data, {onSelect = () => {}, dark = false} = {}) {
    this.element = element;
    this.onSelect = onSelect;
    this.model = readModel(data);
    this.empty = !this.model.events;
    this.view = {start: 0, end: 1}; // µs at the canvas's left and right edges
    this.goal = null; // the view that an animation moves to
    this.selection = null; // {kind: "event", track, index} or {kind: "box", tracks, low, high}
    this.hover = null; // {track, index}
    this.pointer = null; // where the mouse is over the canvas
    this.drag = null; // what the pressed pointer does
    this.searching = null; // {match: for each name 0 or 1, count, us, marks: only findings match, at: the last match}
    this.boxMode = false;
    this.pending = 0; // the animation frame asked for
    this.changes = 0; // counts what changes the rows' pixels, besides the view
    this.labels = [[], [], []]; // names to draw in this frame: in black, in white, in the dim colour
    this.texts = new Map(); // names cut to a width
    this.touches = new Map(); // the pressed pointers' places, by their id
    this.listeners = new AbortController();
    this.build();
    this.setDark(dark);
    if (this.empty) return;
    this.resizes = new ResizeObserver(() => this.resize());
    this.resizes.observe(this.stage);
    this.layout();
    this.resize();
    this.fit();
  }

  // ------------------------------------------------------------------------------------------ what others may call

  /** Marks the events whose name contains `text`, and dims the others; "" clears. Returns their {count, us}. */
  search(text) {
    const wanted = String(text ?? "").toLowerCase();
    if (!wanted) {
      this.searching = null;
      for (const track of this.model.tracks) track.matches = null;
      this.changes++;
      this.request();
      return {count: 0, us: 0};
    }
    const match = Uint8Array.from(this.model.names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0));
    let [count, us] = [0, 0];
    for (let name = 0; name < match.length; name++) {
      if (!match[name]) continue;
      count += this.model.count[name];
      us += this.model.us[name];
    }
    for (const track of this.model.tracks) track.matches = matchesOf(track, match);
    const marks = count > 0 && this.model.tracks.every(({lane, matches}) => lane.kind === "finding" || !matches.length);
    this.searching = {match, count, us, marks, at: null};
    this.changes++;
    this.request();
    return {count, us};
  }

  /** Selects and centres the next match (+1) or the one before (-1), in the order of time, round the end. Returns what
   * onSelect gets, and `at` and `of`: that this is match 3 (`at`) of 20 (`of`). Without matches: null. */
  next(direction = 1) {
    if (!this.searching?.count) return null;
    const match = this.neighbour(direction < 0 ? -1 : 1) || this.neighbour(direction < 0 ? -1 : 1, true);
    this.searching.at = match;
    this.reveal(match.track, match.index);
    this.selectEvent(match.track, match.index);
    return {...this.eventInfo(match.track, match.index), at: this.rankOf(match), of: this.searching.count};
  }

  setDark(dark) {
    this.dark = Boolean(dark);
    this.changes++;
    this.theme = THEMES[this.dark ? "dark" : "light"];
    for (const key of THEME_PROPERTIES) this.element.style.setProperty(`--wtl-${key}`, this.theme[key]);
    this.element.style.colorScheme = this.dark ? "dark" : "light";
    for (const lane of this.model.lanes) {
      lane.palette = palette(lane.kind, this.theme.lightness);
      const rgb = lane.palette.rgb[SHADES >> 1];
      if (lane.swatch) lane.swatch.style.background = `rgb(${rgb & 255}, ${(rgb >> 8) & 255}, ${rgb >> 16})`;
    }
    this.request();
  }

  /** Shows the whole trace. */
  fit() {
    if (this.empty) return;
    this.show(this.limits());
  }

  destroy() {
    this.listeners.abort();
    this.resizes?.disconnect();
    cancelAnimationFrame(this.pending);
    this.empty = true; // nothing is drawn from here on
    this.element.replaceChildren();
    this.element.classList.remove("wtl");
    this.element.style.removeProperty("color-scheme");
    for (const key of THEME_PROPERTIES) this.element.style.removeProperty(`--wtl-${key}`);
  }

  // -------------------------------------------------------------------------------------------------- the elements

  build() {
    this.element.classList.add("wtl");
    this.element.replaceChildren();
    make("style", "", STYLE, this.element);
    if (this.empty) {
      make("p", "wtl-empty", "This trace has no events to draw.", this.element);
      return;
    }
    this.stage = make("div", "wtl-stage", "", this.element);
    this.canvas = make("canvas", "wtl-canvas", "", this.stage);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `Timeline of ${grouped(this.model.events)} events. Arrows pan, plus and ` +
      "minus zoom, 0 shows all, F zooms to the selection, Escape clears it.");
    this.context = this.canvas.getContext("2d", {alpha: false});
    this.strips = document.createElement("canvas"); // one line of pixels for each visible row
    this.stripsContext = this.strips.getContext("2d", {willReadFrequently: true}); // kept in main memory
    make("div", "wtl-ring", "", this.stage);
    make("div", "wtl-corner", "Click a lane to fold it", this.stage);
    this.buildLanes();
    this.scroll = make("div", "wtl-scroll", "", this.stage);
    this.scroll.tabIndex = -1; // the canvas's keys scroll too
    this.spacer = make("div", "", "", this.scroll);
    this.tip = make("div", "wtl-tip", "", this.stage);
    this.tip.hidden = true;
    this.buildFoot();
    this.panel = make("div", "wtl-panel", "", this.element);
    this.panel.setAttribute("aria-live", "polite");
    this.showPanel(make("p", "", NOTHING_SELECTED));
    this.listen();
  }

  buildLanes() {
    this.laneList = make("div", "wtl-labels", "", this.stage);
    for (const lane of this.model.lanes) {
      lane.button = make("button", "wtl-lane", "", this.laneList);
      lane.button.type = "button";
      lane.button.title = shortened(lane.label);
      lane.swatch = make("i", "", "", lane.button);
      make("span", "", shortened(lane.label), lane.button);
      const {signal} = this.listeners;
      lane.button.addEventListener("click", () => this.fold(lane), {signal});
      lane.button.addEventListener("focus", () => this.scrollTo(lane.y, Math.min(lane.height, 2 * ROW)), {signal});
    }
  }

  buildFoot() {
    const foot = make("div", "wtl-foot", "", this.element);
    const button = (text, title, action) => {
      const node = make("button", "", text, foot);
      node.type = "button";
      node.title = title;
      node.setAttribute("aria-label", title);
      node.addEventListener("click", action, {signal: this.listeners.signal});
      return node;
    };
    this.modeButton = button("Select a box", "Select a box by dragging", () => this.setBoxMode(!this.boxMode));
    this.modeButton.setAttribute("aria-pressed", "false");
    button("−", "Zoom out", () => this.zoom(1.6));
    button("+", "Zoom in", () => this.zoom(1 / 1.6));
    button("Fit", "Show the whole trace", () => this.fit());
    make("p", "", HINT, foot).title = HINT_MORE;
  }

  listen() {
    const {signal} = this.listeners;
    const on = (target, type, handler, options = {}) =>
      target.addEventListener(type, handler.bind(this), {...options, signal});
    on(this.canvas, "wheel", this.onWheel, {passive: false});
    on(this.canvas, "pointerdown", this.onDown);
    on(this.canvas, "pointermove", this.onMove);
    on(this.canvas, "pointerup", this.onUp);
    on(this.canvas, "pointercancel", this.onCancel);
    on(this.canvas, "lostpointercapture", this.onCancel);
    on(this.canvas, "pointerleave", this.onLeave);
    on(this.canvas, "dblclick", this.onDouble);
    on(this.canvas, "keydown", this.onKey);
    on(this.laneList, "wheel", this.onLabelWheel, {passive: false});
    on(this.scroll, "scroll", this.request);
    on(window, "resize", this.resize); // also when the browser's zoom changes the pixel ratio
  }

  /** Sets each lane's place; to be called when one is folded. */
  layout() {
    let y = 0;
    for (const lane of this.model.lanes) {
      lane.y = y;
      lane.rows = lane.open ? lane.tracks.length : 1;
      lane.height = lane.rows * ROW + 2 * LANE_PAD;
      lane.button.style.top = `${y}px`;
      lane.button.style.height = `${lane.height}px`;
      lane.button.setAttribute("aria-expanded", String(lane.open));
      lane.button.classList.toggle("wtl-tall", lane.rows > 1); // room for a label of two lines
      y += lane.height;
    }
    this.height = y;
    this.changes++;
    this.spacer.style.height = `${y}px`;
    // The height where `element` has none of its own; in an element with one, the stage takes what is left.
    this.stage.style.flexBasis = `min(70vh, ${HEADER + y + 2}px)`;
    this.request();
  }

  resize() {
    if (this.empty) return;
    this.labelWidth = this.stage.clientWidth < NARROW[0] ? NARROW[1] : LABELS;
    this.stage.style.setProperty("--wtl-labels", `${this.labelWidth}px`);
    this.width = Math.max(1, this.stage.clientWidth - this.labelWidth - SCROLLBAR);
    this.tall = Math.max(1, this.stage.clientHeight);
    this.ratio = window.devicePixelRatio || 1;
    this.columns = Math.max(1, Math.round(this.width * this.ratio));
    const lines = Math.max(1, Math.round(this.tall * this.ratio));
    if (this.canvas.width !== this.columns || this.canvas.height !== lines) {
      this.canvas.width = this.columns;
      this.canvas.height = lines;
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${this.tall}px`;
      this.texts.clear();
      if (this.context) this.draw(); // now: a resized canvas is blank
    }
  }

  fold(lane) {
    lane.open = !lane.open;
    this.hover = null;
    this.layout();
  }

  // ------------------------------------------------------------------------------------------------------ the view

  /** The widest view: the whole trace and a little on both sides. */
  limits() {
    const {low, high} = this.model;
    const margin = Math.max((high - low) * 0.01, LEAST_SPAN);
    return {start: low - margin, end: high + margin};
  }

  /** The nearest allowed view: neither too wide nor too narrow, nor far beside the trace. */
  allowed({start, end}) {
    const limits = this.limits();
    const whole = limits.end - limits.start;
    const span = clamp(end - start, Math.min(LEAST_SPAN, whole), whole);
    const beside = 0.5 * span * (1 - span / whole); // so that the first event can be centred
    const middle = (start + end) / 2;
    const from = clamp(middle - span / 2, limits.start - beside, limits.end + beside - span);
    return {start: from, end: from + span};
  }

  /** Moves to a view: smoothly where `glide`. */
  show(view, glide = true) {
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (!this.goal) this.glided = performance.now();
    this.goal = this.allowed(view);
    if (!glide || still || !this.shown) {
      this.view = this.goal;
      this.goal = null;
    }
    this.request();
  }

  /** Makes the view `factor` times as wide, about the time at canvas x (its middle where null). */
  zoom(factor, x = this.width / 2, glide = true) {
    const {start, end} = this.goal || this.view;
    const fixed = start + ((end - start) * x) / this.width;
    const span = clamp((end - start) * factor, LEAST_SPAN, this.limits().end - this.limits().start);
    const from = fixed - (span * x) / this.width;
    this.show({start: from, end: from + span}, glide);
  }

  /** Moves the view by a part of its width. */
  pan(part, glide = true) {
    const {start, end} = this.goal || this.view;
    const by = (end - start) * part;
    this.show({start: start + by, end: end + by}, glide);
  }

  zoomToSelection() {
    const chosen = this.selection;
    if (!chosen) return;
    const low = chosen.kind === "box" ? chosen.low : chosen.track.start[chosen.index];
    const high = chosen.kind === "box" ? chosen.high : chosen.track.end[chosen.index];
    const margin = Math.max((high - low) * 0.1, LEAST_SPAN);
    this.show({start: low - margin, end: high + margin});
  }

  /** Scrolls so that [y, y + height) of the lanes is seen, in the middle where it was hidden. */
  scrollTo(y, height) {
    const room = this.tall - HEADER;
    const top = this.scroll.scrollTop;
    if (y < top || y + height > top + room) this.scroll.scrollTop = y + height / 2 - room / 2;
    this.request();
  }

  /** Brings an event to the middle; zooms where it would be too small to see, or wider than the view. */
  reveal(track, index) {
    if (!track.lane.open && track.level) this.fold(track.lane);
    this.scrollTo(this.rowTop(track), ROW);
    const {start, end} = this.goal || this.view;
    const length = track.end[index] - track.start[index];
    const pixels = (length / (end - start)) * this.width;
    let span = end - start;
    if (pixels < 16 || pixels > this.width * 0.9) span = Math.max(length, 1) * (this.width / 140);
    const middle = (track.start[index] + track.end[index]) / 2;
    this.show({start: middle - span / 2, end: middle + span / 2});
  }

  /** Asks for one frame; nothing is drawn between frames. */
  request() {
    if (!this.pending && !this.empty) this.pending = requestAnimationFrame((now) => this.frame(now));
  }

  frame(now) {
    this.pending = 0;
    if (this.goal) this.glide(now);
    if (this.pointer && !this.drag) this.findHover();
    this.draw();
    if (this.goal) this.request();
  }

  /** One step towards the goal: the rest shrinks by e every 55 ms. */
  glide(now) {
    const elapsed = clamp(now - this.glided, 4, 50);
    this.glided = now;
    const part = 1 - Math.exp(-elapsed / 55);
    const start = this.view.start + (this.goal.start - this.view.start) * part;
    const end = this.view.end + (this.goal.end - this.view.end) * part;
    const rest = Math.abs(this.goal.start - start) + Math.abs(this.goal.end - end);
    this.view = {start, end};
    if (rest < (this.goal.end - this.goal.start) * 0.002) [this.view, this.goal] = [this.goal, null];
  }

  // ------------------------------------------------------------------------------------------------------- drawing

  /** µs in one pixel column, and the number of columns before the canvas's first: columns start at multiples of the
   * former, so that panning does not change which events share a column. */
  grid() {
    const us = (this.view.end - this.view.start) / this.columns;
    return {us, first: Math.floor(this.view.start / us)};
  }

  /** The device pixel line of a y in the lanes. */
  line(y) {
    return Math.round((HEADER + y - this.scroll.scrollTop) * this.ratio);
  }

  /** The y of a track's row; of the lane's first row where the lane is folded. */
  rowTop(track) {
    return track.lane.y + LANE_PAD + (track.lane.open ? track.level * ROW : 0);
  }

  draw() {
    if (this.empty) return;
    this.shown = true;
    this.drawGround();
    this.drawTracks();
    this.drawLabels();
    this.drawMarks();
    this.drawHeader();
    this.placeLanes();
  }

  drawGround() {
    const {context, theme, columns, canvas} = this;
    context.fillStyle = theme.ground;
    context.fillRect(0, 0, columns, canvas.height);
    context.fillStyle = theme.odd;
    this.eachStep((step, left, right, index) => {
      if (index % 2) context.fillRect(left, 0, Math.max(1, right - left), canvas.height);
    });
    context.fillStyle = theme.grid;
    this.ticks = this.findTicks();
    for (const {x} of this.ticks) context.fillRect(x, 0, Math.max(1, Math.round(this.ratio)), canvas.height);
  }

  /** Calls back for each visible step with its device pixel columns. */
  eachStep(callback) {
    const {us, first} = this.grid();
    this.model.steps.forEach((step, index) => {
      const left = Math.floor(step.start / us) - first;
      const right = Math.floor(step.end / us) - first;
      if (right > 0 && left < this.columns) callback(step, Math.max(-2, left), Math.min(this.columns, right), index);
    });
  }

  findTicks() {
    const {us, first} = this.grid();
    const {context, ratio, view} = this;
    context.font = `${11 * ratio}px ${FONT}`;
    let step = roundStep(us * 80 * ratio);
    const width = context.measureText(tickLabel(view.end, step)).width;
    step = roundStep(us * Math.max(80 * ratio, width + 24 * ratio));
    const ticks = [];
    for (let k = Math.ceil(view.start / step); k * step <= view.end; k++) {
      ticks.push({x: Math.round((k * step) / us - first), text: tickLabel(k * step, step)});
    }
    return ticks;
  }

  /** Paints the rows that are in sight into `strips`, a line for each, and stretches each line to its row. */
  drawTracks() {
    const {context, strips, columns, ratio} = this;
    const seen = this.visibleTracks();
    const state = [this.view.start, this.view.end, columns, this.tall, this.scroll.scrollTop, this.changes].join();
    if (state !== this.painted) this.paintTracks(seen); // else only a mark or the hover has changed
    this.painted = state;
    context.imageSmoothingEnabled = false;
    const gap = Math.max(1, Math.round(ROW_GAP * ratio));
    seen.forEach((track, row) => {
      const y = this.line(this.rowTop(track));
      const height = this.line(this.rowTop(track) + ROW) - y - gap;
      context.drawImage(strips, 0, row, columns, 1, 0, y, columns, height);
    });
  }

  paintTracks(seen) {
    const {strips, columns} = this;
    for (const list of this.labels) list.length = 0;
    if (!seen.length) return;
    if (strips.width !== columns || strips.height < seen.length) {
      strips.width = columns;
      strips.height = Math.max(seen.length, strips.height);
      this.image = this.stripsContext.createImageData(columns, strips.height);
      this.pixels = new Uint32Array(this.image.data.buffer); // 0xAABBGGRR on every machine a browser runs on
    }
    this.pixels.fill(0, 0, columns * seen.length);
    const grid = this.grid();
    seen.forEach((track, row) => this.paintTrack(track, row * columns, grid));
    this.stripsContext.putImageData(this.image, 0, 0, 0, 0, columns, seen.length);
  }

  visibleTracks() {
    const top = this.scroll.scrollTop;
    const bottom = top + this.tall - HEADER;
    const seen = [];
    for (const lane of this.model.lanes) {
      if (lane.y > bottom || lane.y + lane.height < top) continue;
      for (let level = 0; level < lane.rows; level++) {
        const y = lane.y + LANE_PAD + level * ROW;
        if (y < bottom && y + ROW > top && lane.tracks[level].size) seen.push(lane.tracks[level]);
      }
    }
    return seen;
  }

  /** Paints one track into the pixels from `offset` on. */
  paintTrack(track, offset, {us, first}) {
    const {columns, pixels} = this;
    const {start, end, name, busy, size, lane} = track;
    // Who goes from mark to mark wants to see what is marked: that is not dimmed.
    const searching = this.searching?.marks && lane.kind !== "finding" ? null : this.searching;
    const matches = searching && track.matches;
    const {rgb} = lane.palette;
    const {shade} = this.model;
    const low = first * us;
    const high = (first + columns) * us;
    let match = 0; // where in `matches` the search for this column's begins
    let next = 0;
    const paint = (at, alpha, index) => {
      pixels[offset + at] = ((alpha << 24) | rgb[shade[name[index]]]) >>> 0;
    };
    for (let i = track.firstReaching(low); i < size && start[i] < high; i = next) {
      next = i + 1;
      const column = Math.floor(start[i] / us) - first;
      let wide = i; // the event to be drawn as a box
      let shownMatch = -1; // the match to be seen in this column
      if (end[i] - start[i] < us) {
        if (column < 0) continue;
        next = Math.max(next, gallop(start, (first + column + 1) * us, i, size));
        wide = track.longest(i, next);
        if (matches) {
          match = gallop(matches, i, match, matches.length);
          if (match < matches.length && matches[match] < next) shownMatch = matches[match];
        }
        const density = Math.min(1, (busy[next] - busy[i]) / us);
        if (shownMatch >= 0) paint(column, 255, shownMatch);
        else paint(column, matches ? this.theme.dim : 100 + 155 * density, wide);
        if (end[wide] - start[wide] < us) continue;
      }
      const dim = searching && !searching.match[name[wide]];
      this.paintBox(track, wide, offset, {us, first}, dim);
      if (shownMatch >= 0) paint(column, 255, shownMatch); // the box must not hide it
    }
  }

  /** Paints an event that is wider than a pixel, and keeps its name for `drawLabels` where that may fit. */
  paintBox(track, index, offset, {us, first}, dim) {
    const {columns, pixels, theme, ratio} = this;
    const shade = this.model.shade[track.name[index]];
    const {rgb, ink} = track.lane.palette;
    const left = Math.max(0, Math.floor(track.start[index] / us) - first);
    const right = Math.floor(track.end[index] / us) - first;
    const stop = Math.min(columns, right);
    const colour = rgb[shade];
    const alpha = dim ? theme.dim : 255;
    if (stop <= left) return;
    pixels.fill(((alpha << 24) | colour) >>> 0, offset + left, offset + stop);
    // A fine line between neighbours: the box's last column is left out, or fainter where the box is narrow.
    if (right <= columns && right - left > 1) {
      pixels[offset + right - 1] = right - left > 3 ? 0 : (((alpha * 0.6) << 24) | colour) >>> 0;
    }
    if (stop - left >= LEAST_LABEL * ratio) {
      this.labels[dim ? 2 : ink[shade]].push(track, index, left, stop);
    }
  }

  drawLabels() {
    const {context, ratio, theme} = this;
    context.font = `${11 * ratio}px ${FONT}`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    ["#000000", "#ffffff", theme.soft].forEach((colour, list) => {
      const labels = this.labels[list];
      context.fillStyle = colour;
      for (let k = 0; k < labels.length; k += 4) {
        const [track, index, left, right] = [labels[k], labels[k + 1], labels[k + 2], labels[k + 3]];
        const text = this.cut(track.name[index], right - left - 9 * ratio);
        if (!text) continue;
        const y = this.line(this.rowTop(track) + (ROW - ROW_GAP) / 2);
        context.fillText(text, left + 4 * ratio, y + 0.5);
      }
    });
  }

  /** A name, cut to `width` device pixels; "" where not even three characters fit. Widths go in steps of 4 pixels. */
  cut(name, width) {
    const room = width < 600 * this.ratio ? Math.floor(width / 4) * 4 : Math.floor(width / 64) * 64;
    const key = name * 65536 + room;
    let text = this.texts.get(key);
    if (text === undefined) {
      const full = shortened(this.model.names[name]);
      text = this.context.measureText(full).width <= room ? full : fitText(this.context, brief(full), room);
      if (this.texts.size > 20000) this.texts.clear();
      this.texts.set(key, text);
    }
    return text;
  }

  /** Lane borders, what is hovered over or selected, and the box being drawn. */
  drawMarks() {
    const {context, theme, columns, ratio} = this;
    context.fillStyle = theme.lane;
    for (const lane of this.model.lanes) {
      context.fillRect(0, this.line(lane.y + lane.height) - 1, columns, Math.max(1, Math.round(ratio)));
    }
    if (this.hover) this.outline(this.hover, theme.text, 1);
    if (this.selection?.kind === "event") this.outline(this.selection, theme.accent, 2);
    if (this.selection?.kind === "box") this.drawBox(this.selection);
    if (this.drag?.kind === "box" && this.drag.moved) this.drawBox(this.boxOf(this.drag));
  }

  /** A frame round an event, at least 3 pixels wide so that it is seen at every zoom. */
  outline({track, index}, colour, thick) {
    if (!track.lane.open && track.level) return;
    const {context, ratio, columns, theme} = this;
    const {us, first} = this.grid();
    const line = Math.max(1, Math.round(thick * ratio));
    const left = Math.floor(track.start[index] / us) - first;
    const right = Math.max(left + 3 * ratio, Math.floor(track.end[index] / us) - first);
    if (right < 0 || left > columns) return;
    const x = Math.max(-2 * line, left) - line / 2;
    const width = Math.min(columns + 2 * line, right) - x + line / 2 - 1;
    const y = this.line(this.rowTop(track)) - line / 2;
    const height = this.line(this.rowTop(track) + ROW - ROW_GAP) - y + line / 2;
    context.strokeStyle = theme.halo;
    context.lineWidth = line + 2 * ratio;
    context.strokeRect(x, y, width, height);
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(x, y, width, height);
  }

  /** A selected box: from the first to the last of its rows. */
  drawBox({tracks, low, high}) {
    const {context, theme, ratio} = this;
    const {us, first} = this.grid();
    const left = clamp(Math.round(low / us - first), -10, this.columns + 10);
    const right = clamp(Math.round(high / us - first), -10, this.columns + 10);
    const rows = tracks.map((track) => this.rowTop(track));
    if (!rows.length || right < 0 || left > this.columns) return;
    const top = this.line(rows.reduce((a, b) => Math.min(a, b)) - 2);
    const bottom = this.line(rows.reduce((a, b) => Math.max(a, b)) + ROW);
    context.fillStyle = theme.box;
    context.fillRect(left, top, right - left, bottom - top);
    context.strokeStyle = theme.accent;
    context.lineWidth = Math.max(1, Math.round(1.5 * ratio));
    context.strokeRect(left, top, right - left, bottom - top);
  }

  /** Steps and time axis; drawn last, over what is scrolled under them. */
  drawHeader() {
    const {context, theme, columns, ratio} = this;
    const height = Math.round(HEADER * ratio);
    const band = Math.round(STEP_BAND * ratio);
    const hair = Math.max(1, Math.round(ratio));
    context.fillStyle = theme.header;
    context.fillRect(0, 0, columns, height);
    context.textBaseline = "middle";
    this.drawSteps(band, hair);
    context.fillStyle = theme.line;
    context.fillRect(0, height - hair, columns, hair);
    context.font = `${11 * ratio}px ${FONT}`;
    context.textAlign = "left";
    for (const {x, text} of this.ticks) {
      context.fillStyle = theme.line;
      context.fillRect(x, height - Math.round(8 * ratio), hair, Math.round(8 * ratio));
      context.fillStyle = theme.soft;
      const left = x + 4 * ratio;
      if (left + context.measureText(text).width < columns) context.fillText(text, left, height - 11 * ratio);
    }
  }

  drawSteps(band, hair) {
    const {context, theme, ratio} = this;
    context.font = `600 ${11 * ratio}px ${FONT}`;
    context.textAlign = "center";
    this.eachStep((step, left, right, index) => {
      context.fillStyle = index % 2 ? theme.lane : theme.odd;
      context.fillRect(left, 0, Math.max(1, right - left), band);
      context.fillStyle = theme.line;
      if (right - left > 6) context.fillRect(left, 0, hair, band);
      const from = Math.max(0, left);
      const room = right - from - 8 * ratio;
      if (room < 6 * ratio) return;
      const full = /^\d+$/.test(step.name) ? `step ${step.name}` : shortened(step.name);
      const text = context.measureText(full).width <= room ? full : fitText(context, shortened(step.name), room);
      context.fillStyle = theme.text;
      context.fillText(text, (from + right) / 2, band / 2 + 0.5);
    });
    context.fillStyle = theme.line;
    context.fillRect(0, band, this.columns, hair);
  }

  /** Moves the labels with the lanes; a label stays in sight while any of its lane is. */
  placeLanes() {
    const top = this.scroll.scrollTop;
    if (top === this.placedAt && this.height === this.placedHeight) return;
    [this.placedAt, this.placedHeight] = [top, this.height];
    for (const lane of this.model.lanes) {
      lane.button.style.transform = `translateY(${-top}px)`;
      lane.button.style.paddingTop = `${LANE_PAD - 1 + clamp(top - lane.y, 0, lane.height - ROW - 2 * LANE_PAD)}px`;
    }
  }

  // ----------------------------------------------------------------------------------------- finding and selecting

  /** The canvas x and y of a pointer event, in CSS pixels. */
  place(event) {
    const frame = this.canvas.getBoundingClientRect();
    return {x: event.clientX - frame.left, y: event.clientY - frame.top};
  }

  timeAt(x) {
    const {us, first} = this.grid();
    return (first + x * this.ratio) * us;
  }

  trackAt(y) {
    const at = y - HEADER + this.scroll.scrollTop;
    if (y < HEADER) return null;
    const lane = this.model.lanes.find((one) => at >= one.y && at < one.y + one.height);
    const level = lane ? Math.floor((at - lane.y - LANE_PAD) / ROW) : -1;
    return lane && level >= 0 && level < lane.rows ? lane.tracks[level] : null;
  }

  stepAt(x, y) {
    if (y >= STEP_BAND || y < 0) return null;
    const time = this.timeAt(x);
    return this.model.steps.find((step) => step.start <= time && time < step.end) || null;
  }

  /** The event drawn at a place, or a few pixels beside it: {track, index} or null. */
  eventAt({x, y}) {
    const track = this.trackAt(y);
    if (!track) return null;
    const column = Math.floor(x * this.ratio);
    for (let off = 0; off <= HIT_SLOP * this.ratio; off++) {
      for (const at of off ? [column - off, column + off] : [column]) {
        const index = this.eventInColumn(track, at);
        if (index >= 0) return {track, index};
      }
    }
    return null;
  }

  /** The event that `paintTrack` shows in a pixel column, or -1. */
  eventInColumn(track, column) {
    const {us, first} = this.grid();
    const low = (first + column) * us;
    const from = track.firstStarting(low);
    const to = lowerBound(track.start, low + us, from, track.size);
    let before = from - 1; // the last event that starts before the column and reaches into it
    while (before >= 0 && track.reach[before] > low && track.end[before] <= low) before--;
    if (before < 0 || track.end[before] <= low) before = -1;
    if (before >= 0 && Math.floor(track.end[before] / us) - first > column) return before;
    if (from === to) return before;
    if (track.matches) {
      const match = lowerBound(track.matches, from, 0, track.matches.length);
      if (track.matches[match] < to) return track.matches[match];
    }
    return track.longest(from, to);
  }

  findHover() {
    const {x, y} = this.pointer;
    this.hover = this.eventAt(this.pointer);
    const cursor = this.boxMode ? "box" : this.hover || this.stepAt(x, y) ? "event" : "pan";
    if (this.canvas.dataset.cursor !== cursor) this.canvas.dataset.cursor = cursor;
    this.showTip();
  }

  showTip() {
    const {tip, hover, pointer} = this;
    tip.hidden = !hover;
    if (!hover) return;
    const {name, start, duration: length, lane} = this.eventInfo(hover.track, hover.index);
    tip.replaceChildren(make("span", "", shortened(name)), make("small", "",
      `${duration(length)} from ${moment(start)} · ${shortened(lane)}${this.crowd(hover)}`));
    const x = pointer.x + this.labelWidth;
    const left = x + 14 + tip.offsetWidth < this.stage.clientWidth ? x + 14 : x - 10 - tip.offsetWidth;
    const down = pointer.y + 18 + tip.offsetHeight < this.tall ? pointer.y + 18 : pointer.y - 8 - tip.offsetHeight;
    tip.style.left = `${Math.max(2, left)}px`;
    tip.style.top = `${Math.max(2, down)}px`;
  }

  /** What the tooltip adds where one pixel column stands for several events. */
  crowd({track, index}) {
    const {us} = this.grid();
    if (track.end[index] - track.start[index] >= us) return "";
    const low = Math.floor(track.start[index] / us) * us;
    const count = track.firstStarting(low + us) - track.firstStarting(low);
    return count > 1 ? ` · one of ${grouped(count)} events in this pixel` : "";
  }

  eventInfo(track, index) {
    return {
      kind: "event",
      name: this.model.names[track.name[index]],
      start: track.start[index],
      duration: track.end[index] - track.start[index],
      lane: track.lane.label,
    };
  }

  /** A CPU event's duration without the events nested in it; null on other lanes, whose levels may be overlaps. */
  ownTime({lane, level, start, end}, index) {
    if (lane.kind !== "cpu") return null;
    const below = lane.tracks[level + 1];
    if (!below) return end[index] - start[index];
    const from = below.firstStarting(start[index]);
    const to = lowerBound(below.start, end[index], from, below.size);
    return Math.max(0, end[index] - start[index] - (below.busy[to] - below.busy[from]));
  }

  selectEvent(track, index) {
    this.selection = {kind: "event", track, index};
    const info = this.eventInfo(track, index);
    this.showEvent(info, track.name[index], this.ownTime(track, index));
    this.request();
    this.onSelect(info);
  }

  /** The tracks and times that a drag from one corner to the other covers. */
  boxOf({from, to}) {
    const times = [from.time, this.timeAt(clamp(to.x, 0, this.width))].sort((a, b) => a - b);
    const [top, bottom] = [from.at, to.y - HEADER + this.scroll.scrollTop].sort((a, b) => a - b);
    const tracks = [];
    for (const lane of this.model.lanes) {
      for (let level = 0; level < lane.rows; level++) {
        const y = lane.y + LANE_PAD + level * ROW;
        if (y < bottom && y + ROW - ROW_GAP > top) tracks.push(lane.tracks[level]);
      }
    }
    return {kind: "box", tracks, low: times[0], high: times[1]};
  }

  selectBox(box) {
    if (!box.tracks.length || !(box.high > box.low)) return;
    this.selection = box;
    const lanes = [...new Set(box.tracks.map((track) => track.lane.label))];
    const info = {kind: "box", start: box.low, end: box.high, lanes,
      ...boxSums(this.model, box.tracks, box.low, box.high)};
    this.showSums(info);
    this.request();
    this.onSelect(info);
  }

  clearSelection() {
    if (!this.selection) return;
    this.selection = null;
    this.showPanel(make("p", "", NOTHING_SELECTED));
    this.request();
    this.onSelect({kind: "none"});
  }

  /** The match next to the selected event, or to the view's left edge; with `wrap` the first or last of all. */
  neighbour(direction, wrap = false) {
    const {tracks} = this.model;
    const from = wrap ? null : this.searching.at || (this.selection?.kind === "event" ? this.selection : null);
    const origin = from ? from.track.start[from.index] : direction > 0 ? -Infinity : Infinity;
    const place = from ? tracks.indexOf(from.track) : -1;
    let best = null;
    tracks.forEach((track, order) => {
      const at = matchBeside(track, direction, origin, order - place, from?.index);
      if (at < 0) return;
      const index = track.matches[at];
      const nearer = best && (track.start[index] - best.track.start[best.index]) * direction;
      if (!best || nearer < 0 || (nearer === 0 && direction < 0)) best = {track, index};
    });
    return best;
  }

  /** How many matches come no later than this one. */
  rankOf({track, index}) {
    const {tracks} = this.model;
    const place = tracks.indexOf(track);
    return tracks.reduce((sum, one, order) => {
      const after = matchBeside(one, 1, track.start[index], order - place, index);
      return sum + (after < 0 ? one.matches.length : after);
    }, 0);
  }

  // ---------------------------------------------------------------------------------------------------- the panel

  showPanel(...children) {
    this.panel.replaceChildren(...children);
    this.panel.scrollTop = 0;
  }

  showEvent({name, start, duration: length, lane}, id, own) {
    const {count, us, steps} = this.model;
    const step = steps.find((one) => one.start <= start && start < one.end);
    this.showPanel(
      make("h3", "", shortened(name, 4000)),
      facts([["Duration", duration(length)], ...(own === null ? [] : [["Without nested", duration(own)]])]),
      facts([["Start", moment(start, 6)], ["End", moment(start + length, 6)]]),
      facts([["Lane", shortened(lane)], ["Step", step ? shortened(step.name) : "none"]]),
      facts([["In the whole trace", `${grouped(count[id])} ×, ${duration(us[id])} together`],
        ["On average", duration(us[id] / count[id])]]),
    );
  }

  showSums({start, end, lanes, count, us, wall, names, top}) {
    const list = make("ol");
    for (const one of top) {
      const row = make("li", "", "", list);
      make("b", "", duration(one.us), row);
      make("small", "", `${grouped(one.count)} ×`, row);
      make("span", "", shortened(one.name), row).title = shortened(one.name, 4000);
    }
    const share = wall / (end - start);
    this.showPanel(
      make("h3", "", `${duration(end - start)} from ${tickLabel(start, roundStep((end - start) / 200))}, ` +
        (lanes.length === 1 ? shortened(lanes[0]) : `${lanes.length} lanes`)),
      facts([
        ["Events", `${grouped(count)} (different names: ${grouped(names)})`],
        ["Sum of their times", `${duration(us)} inside the box`],
        ["Wall time covered", `${duration(wall)} (${(100 * share).toFixed(1)} %)`],
      ]),
      list,
    );
  }

  // ------------------------------------------------------------------------------------------------------- input

  onWheel(event) {
    event.preventDefault();
    if (this.drag) return;
    const unit = [1, 16, this.tall][event.deltaMode] || 1;
    const [across, along] = [event.deltaX * unit, event.deltaY * unit];
    if (event.shiftKey) this.scroll.scrollTop += along || across; // browsers turn Shift + wheel sideways
    else if (Math.abs(across) > Math.abs(along)) this.pan(across / this.width, false);
    else {
      const speed = event.ctrlKey ? 0.01 : 0.0018; // Ctrl: a pinch on a touchpad, in small steps
      this.zoom(Math.exp(clamp(along, -400, 400) * speed), this.place(event).x, false);
    }
    this.pointer = this.place(event);
    this.request();
  }

  /** Over the labels the plain wheel scrolls. */
  onLabelWheel(event) {
    const before = this.scroll.scrollTop;
    this.scroll.scrollTop += (event.deltaY || event.deltaX) * (event.deltaMode ? 16 : 1);
    if (this.scroll.scrollTop !== before) event.preventDefault();
  }

  onDown(event) {
    if (event.button > 1) return;
    this.touches.set(event.pointerId, this.place(event));
    if (this.touches.size === 2) this.startPinch();
    if (this.drag) return;
    event.preventDefault(); // no text selection; so the focus is ours to set
    this.canvas.focus({preventScroll: true, focusVisible: false});
    this.canvas.setPointerCapture(event.pointerId);
    const {x, y} = this.place(event);
    const top = this.scroll.scrollTop;
    const box = event.button === 0 && (event.shiftKey || this.boxMode);
    this.goal = null;
    this.drag = {
      kind: box ? "box" : "pan", id: event.pointerId, moved: false, view: this.view, top,
      from: {x, y, time: this.timeAt(x), at: Math.max(0, y - HEADER) + top}, to: {x, y},
    };
  }

  onMove(event) {
    this.pointer = this.place(event);
    const {drag} = this;
    if (this.touches.has(event.pointerId)) this.touches.set(event.pointerId, this.pointer);
    if (drag?.kind === "pinch") this.pinch();
    else if (drag && event.pointerId === drag.id) {
      drag.to = this.pointer;
      const [across, along] = [drag.to.x - drag.from.x, drag.to.y - drag.from.y];
      if (!drag.moved && Math.hypot(across, along) >= CLICK_SLOP) this.startDrag();
      if (drag.moved && drag.kind === "pan") {
        const by = (across / this.width) * (drag.view.end - drag.view.start);
        this.show({start: drag.view.start - by, end: drag.view.end - by}, false);
        this.scroll.scrollTop = drag.top - along;
      }
    }
    this.request();
  }

  startDrag() {
    this.drag.moved = true;
    this.hover = null;
    this.tip.hidden = true;
    this.canvas.dataset.cursor = this.drag.kind === "box" ? "box" : "drag";
  }

  /** Two fingers: each keeps the time that was under it. */
  startPinch() {
    const times = [...this.touches.values()].map(({x}) => this.timeAt(x));
    this.drag = {kind: "pinch", times, moved: true, id: this.drag?.id};
  }

  pinch() {
    const [a, b] = [...this.touches.values()].map(({x}) => x);
    const [from, to] = this.drag.times;
    const us = (to - from) / (b - a); // in one CSS pixel
    if (us > 0 && Number.isFinite(us)) this.show({start: from - a * us, end: from + (this.width - a) * us}, false);
  }

  onUp(event) {
    const {drag} = this;
    this.touches.delete(event.pointerId);
    if (drag?.kind === "pinch") {
      this.endDrag();
      return;
    }
    if (!drag || event.pointerId !== drag.id) return;
    const place = this.place(event);
    this.endDrag();
    if (drag.moved) {
      if (drag.kind === "box") this.selectBox(this.boxOf({from: drag.from, to: place}));
    } else if (event.button === 0) this.click(place);
  }

  click(place) {
    const step = this.stepAt(place.x, place.y);
    if (step) {
      const margin = (step.end - step.start) * 0.02;
      this.show({start: step.start - margin, end: step.end + margin});
      return;
    }
    const clicked = this.eventAt(place);
    if (clicked) this.selectEvent(clicked.track, clicked.index);
    else this.clearSelection();
  }

  onCancel(event) {
    this.touches.delete(event.pointerId);
    this.endDrag();
  }

  onDouble(event) {
    if (this.eventAt(this.place(event))) this.zoomToSelection();
  }

  endDrag() {
    this.drag = null;
    this.request();
  }

  onLeave() {
    this.pointer = null;
    this.hover = null;
    this.tip.hidden = true;
    this.request();
  }

  setBoxMode(on) {
    this.boxMode = on;
    this.modeButton.setAttribute("aria-pressed", String(on));
    this.canvas.dataset.cursor = on ? "box" : "pan";
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const zoomAt = this.pointer ? this.pointer.x : this.width / 2;
    const page = this.tall - HEADER - ROW;
    const actions = {
      ArrowLeft: () => this.pan(-0.15), a: () => this.pan(-0.15),
      ArrowRight: () => this.pan(0.15), d: () => this.pan(0.15),
      ArrowUp: () => this.scrollBy(-3 * ROW), ArrowDown: () => this.scrollBy(3 * ROW),
      PageUp: () => this.scrollBy(-page), PageDown: () => this.scrollBy(page),
      "+": () => this.zoom(1 / 1.4, zoomAt), "=": () => this.zoom(1 / 1.4, zoomAt), w: () => this.zoom(1 / 1.4, zoomAt),
      "-": () => this.zoom(1.4, zoomAt), "_": () => this.zoom(1.4, zoomAt), s: () => this.zoom(1.4, zoomAt),
      0: () => this.fit(), Home: () => this.fit(), f: () => this.zoomToSelection(),
      Escape: () => this.escape(),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  scrollBy(pixels) {
    this.scroll.scrollTop += pixels;
  }

  /** Ends a drag without effect, or else clears the selection. */
  escape() {
    if (this.drag) this.endDrag();
    else this.clearSelection();
  }
}

// ---------------------------------------------------------------------------------------------------------- helpers

/** The indices of a track's events whose name is marked in `match`. */
function matchesOf(track, match) {
  const indices = new Uint32Array(track.size);
  let count = 0;
  for (let i = 0; i < track.size; i++) if (match[track.name[i]]) indices[count++] = i;
  return indices.slice(0, count);
}

/** Where in track.matches the first one after (or last one before) an origin lies, or -1. Matches that start at the
 * same time come in the order of their tracks: `order` is this track's place, less that of the origin's. */
function matchBeside({matches, start, size}, direction, origin, order, index) {
  let edge = 0; // the first event after the origin; for -1 the first that is not before it
  if (order === 0 && index !== undefined) edge = direction > 0 ? index + 1 : index;
  else {
    edge = lowerBound(start, origin, 0, size);
    if (order < 0) while (edge < size && start[edge] === origin) edge++;
  }
  const at = lowerBound(matches, edge, 0, matches.length);
  if (direction > 0) return at < matches.length ? at : -1;
  return at - 1;
}

/** `text`, cut with "…" so that it is at most `room` wide; "" where fewer than three characters would be left. */
function fitText(context, text, room) {
  const width = context.measureText(text).width;
  if (width <= room) return text;
  let length = Math.floor((text.length * room) / width);
  while (length > 2 && context.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return length > 2 ? `${text.slice(0, length)}…` : "";
}

/** A kernel's name without what many kernels' names begin with. */
function brief(name) {
  return name.replace(/^void /, "").replace(/at::native::|\(anonymous namespace\)::/g, "");
}

/** A list of names and values. */
function facts(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) {
    make("dt", "", name, list);
    make("dd", "", value, list);
  }
  return list;
}
