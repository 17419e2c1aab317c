// What a timeline shows, read from the server's answer into typed arrays; and the search over it.
import {grouped} from "./elements.js";
import {causeIndex, idleName, shadeOf} from "./timeline_style.js";

// Numbers, times and sorted arrays of the timeline.
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

// The events of a timeline's lane as typed arrays, and what is computed from those.
const MOST_LEVELS = 512; // deeper events are drawn in the last row
const NOWHERE = 0xffffffff; // in `Lane.at`: an event that was left out

/** The events of one level of one lane, sorted by start. They should not overlap; all works where they do. */
export class Track {
  constructor(size) {
    this.size = size;
    this.start = new Float64Array(size);
    this.end = new Float64Array(size);
    this.name = new Uint32Array(size);
    this.event = new Uint32Array(size); // each event's number in its lane, as the server counts
    this.matches = null; // the indices of the events a search found, sorted; null where there is no search
    this.lit = null; // the indices of the events that keep their colour then
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

  /** The last event that starts by `low` and reaches `high`, or -1; to the nanosecond, as the times are rounded. */
  containing(low, high) {
    const slack = 0.0015;
    let i = lowerBound(this.start, low + slack, 0, this.size) - 1;
    while (i >= 0 && this.reach[i] >= high - slack && this.end[i] < high - slack) i--;
    return i >= 0 && this.end[i] >= high - slack ? i : -1;
  }
}

/** Indices in the order of `start`, or null where it is sorted as it is. */
function sortedOrder(start, size) {
  let sorted = true;
  for (let i = 1; i < size && sorted; i++) sorted = start[i - 1] <= start[i];
  return sorted ? null : Uint32Array.from({length: size}, (_, i) => i).sort((a, b) => start[a] - start[b]);
}

/** One lane of the server's data as Tracks. `first`: the id of its first event. Events without finite times are left
 * out, but keep their ids. */
export function readLane(lane, names, first) {
  const {start = [], duration: lengths = [], name = [], level = []} = lane;
  const size = Math.min(start.length, lengths.length);
  const levelOf = (i) => clamp(Math.floor(level[i]) || 0, 0, MOST_LEVELS - 1);
  const good = (i) => Number.isFinite(start[i]) && Number.isFinite(lengths[i]);
  const sizes = [0];
  for (let i = 0; i < size; i++) if (good(i)) sizes[levelOf(i)] = (sizes[levelOf(i)] || 0) + 1;
  const tracks = Array.from(sizes, (count) => new Track(count || 0));
  const filled = new Uint32Array(tracks.length);
  const levels = new Uint16Array(size); // of each event, as the server counts
  const at = new Uint32Array(size).fill(NOWHERE); // and its index in the level's track
  const order = sortedOrder(start, size);
  for (let k = 0; k < size; k++) {
    const i = order ? order[k] : k;
    if (!good(i)) continue;
    levels[i] = levelOf(i);
    const track = tracks[levels[i]];
    at[i] = filled[levels[i]]++;
    track.start[at[i]] = start[i];
    track.end[at[i]] = start[i] + Math.max(0, lengths[i]);
    track.name[at[i]] = name[i] >= 0 && name[i] < names.length - 1 ? name[i] : names.length - 1;
    track.event[at[i]] = i;
  }
  // correlations and sequence numbers are the trace's own, so they may be large
  const numbers = (list, Kind = Int32Array) => (
    Array.isArray(list) ? Kind.from({length: size}, (_, i) => list[i] ?? -1) : null);
  const label = String(lane.label || "unnamed");
  const group = String(lane.group ?? "");
  const read = {
    id: String(lane.id ?? label), label, title: String(lane.title ?? ""), kind: String(lane.kind ?? ""),
    group, short: shortLabel(label, group, lane.kind), thread: lane.thread ?? -1, tracks, first, size, levels, at,
    detail: numbers(lane.detail), correlation: numbers(lane.correlation, Float64Array), launch: numbers(lane.launch),
    operator: numbers(lane.operator), sequence: numbers(lane.sequence, Float64Array),
  };
  tracks.forEach((track, index) => {
    track.lane = read;
    track.level = index;
    track.seal();
  });
  return read;
}

/** A lane's label with its group's. */
export function fullLabel({group, short}) {
  return [group, short].filter(Boolean).join(", ");
}

/** A lane's label without what its group's heading says already. */
function shortLabel(label, group, kind) {
  if (group && label.startsWith(`${group}, `)) return label.slice(group.length + 2);
  if (group && group.endsWith(label)) return kind === "cpu" ? "operators" : label;
  const [first, ...rest] = label.split(", ");
  return rest.length && group.endsWith(first) ? rest.join(", ") : label;
}

/** The event that the server counts as `number` in a lane: {track, index}, or null where it was left out. */
export function eventOf(lane, number) {
  const index = lane.at[number];
  return index === undefined || index === NOWHERE ? null : {track: lane.tracks[lane.levels[number]], index};
}

/** Adds the intervals (pairs in a flat array, sorted) to `union` (the same, without overlaps) and returns the union. */
export function joined(union, intervals) {
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

/** The length of a union of intervals. */
export function lengthOf(union) {
  let length = 0;
  for (let i = 0; i < union.length; i += 2) length += union[i + 1] - union[i];
  return length;
}

/** The parts of a track's events that lie between two times, as pairs in a flat array. */
export function partsBetween(track, low, high) {
  const parts = [];
  for (let i = track.firstReaching(low); i < track.size && track.start[i] < high; i++) {
    const [start, end] = [Math.max(low, track.start[i]), Math.min(high, track.end[i])];
    if (end > start) parts.push(start, end);
  }
  return parts;
}

/** What lies between two times on some tracks; of an event partly inside, only that part's time counts. */
export function boxSums(model, tracks, low, high) {
  const counts = new Uint32Array(model.names.length);
  const times = new Float64Array(model.names.length);
  let [union, count, us] = [[], 0, 0];
  for (const track of tracks) {
    for (let i = track.firstReaching(low); i < track.size && track.start[i] < high; i++) {
      if (track.end[i] <= low && track.start[i] < low) continue;
      const part = Math.min(high, track.end[i]) - Math.max(low, track.start[i]);
      counts[track.name[i]]++;
      times[track.name[i]] += part;
      count++;
      us += part;
    }
    union = joined(union, partsBetween(track, low, high));
  }
  return {count, us, wall: lengthOf(union), ...topNames(model, counts, times)};
}

/** {names: how many, top: [{name, count, us}]} of sums by name, the longest first. */
export function topNames(model, counts, times, most = 10) {
  const present = [...counts.keys()].filter((name) => counts[name]);
  present.sort((a, b) => times[b] - times[a] || counts[b] - counts[a]);
  const top = present.slice(0, most).map((name) => ({name: model.names[name], count: counts[name], us: times[name]}));
  return {names: present.length, top};
}

const ON_THE_DEVICE = new Set(["kernel", "copy", "collective"]);
const NAMELESS = "(no name)"; // for events whose index is out of range

/** The server's data as typed arrays; see the head of timeline.js. */
export function readModel(data) {
  const names = Array.from(data?.names || [], String);
  const answers = namesOfGaps(data?.lanes || [], names);
  names.push(NAMELESS);
  const lanes = [];
  let events = 0;
  for (const lane of answers) {
    lanes.push(readLane(lane, names, events));
    events += lanes.at(-1).size;
  }
  const tracks = lanes.flatMap((lane) => lane.tracks);
  const count = new Uint32Array(names.length);
  const us = new Float64Array(names.length);
  let [low, high] = [Infinity, -Infinity];
  for (const track of tracks) {
    if (!track.size) continue;
    low = Math.min(low, track.start[0]);
    high = Math.max(high, track.reach[track.size - 1]);
    for (let i = 0; i < track.size; i++) {
      count[track.name[i]]++;
      us[track.name[i]] += track.end[i] - track.start[i];
    }
  }
  const steps = Array.from(data?.steps || [])
    .map((step, index) => ({name: String(step?.name ?? ""), start: step?.start, end: step?.end, index}))
    .filter((step) => Number.isFinite(step.start) && step.end > step.start && Number.isFinite(step.end))
    .sort((a, b) => a.start - b.start);
  const {loaded = null, total = null} = data || {};
  for (const span of [...steps, ...(total ? [total] : [])]) {
    [low, high] = [Math.min(low, span.start), Math.max(high, span.end)];
  }
  const counters = (data?.counters || []).map(readCounter);
  for (const {counter: {time}} of low > high ? counters.filter(({counter}) => counter.time.length) : []) {
    [low, high] = [Math.min(low, time[0]), Math.max(high, time.at(-1))];
  }
  const idleShade = Uint8Array.from(names, causeIndex);
  for (const lane of lanes) if (lane.kind === "idle") lane.shade = idleShade;
  lanes.push(...counters);
  return {names, shade: Uint8Array.from(names, shadeOf), lanes, tracks, steps, count, us, low, high, events,
    details: data?.details || [], loaded: partLoaded(loaded, low, high), opening: loadedSteps(steps, loaded),
    linked: null};
}

/** From the first loaded step to the end of the last one, and with the begin of the first one's mark, which may be long
 * before its work on the GPU; null where there is none. */
function loadedSteps(steps, loaded) {
  const shown = loaded ? steps.filter(({index}) => loaded.first <= index && index <= loaded.last) : steps;
  if (!shown.length) return null;
  const end = shown.reduce((latest, step) => Math.max(latest, step.end), -Infinity);
  return {start: shown[0].index ? shown[0].start : Math.min(0, shown[0].start), end};
}

/** The lanes, in which the gaps' names say that they are gaps. Adds these names to `names`. */
function namesOfGaps(lanes, names) {
  const renamed = new Map();
  const nameOf = (name) => {
    if (!renamed.has(name)) renamed.set(name, names.push(idleName(names[name] ?? "other")) - 1);
    return renamed.get(name);
  };
  return Array.from(lanes, (lane) =>
    (lane?.kind === "idle" ? {...lane, name: (lane.name || []).map(nameOf)} : lane || {}));
}

/** The loaded part of the trace; null where that is all of it. */
function partLoaded(loaded, low, high) {
  return loaded && (loaded.start > low + 0.001 || loaded.end < high - 0.001) ? loaded : null;
}

function readCounter({label, unit, group, time, value}) {
  const size = Math.min(time?.length || 0, value?.length || 0);
  const values = Float64Array.from({length: size}, (_, i) => Number(value[i]) || 0);
  const [most, least] = [values.reduce((a, b) => Math.max(a, b), 0), values.reduce((a, b) => Math.min(a, b), 0)];
  return {
    id: `counter ${label}`, label: String(label), short: String(label), title: "", kind: "counter",
    group: String(group ?? ""), thread: -1, tracks: [], first: 0, size: 0, unit: String(unit ?? ""),
    counter: {time: Float64Array.from({length: size}, (_, i) => time[i]), value: values, most, least},
  };
}

/** The index of a counter's value at a time, or -1 before the first. */
export function counterAt({time}, at) {
  const next = lowerBound(time, at, 0, time.length);
  return time[next] === at ? next : next - 1;
}

/** The id of an event. */
export function idOf({track, index}) {
  return track.lane.first + track.event[index];
}

/** The event with an id: {track, index}; null for -1, and where it was left out. */
export function withId(model, id) {
  if (!(id >= 0)) return null;
  const lane = model.lanes.find(({first, size}) => id >= first && id < first + size);
  return lane ? eventOf(lane, id - lane.first) : null;
}

/** "<lane id>@<start in µs>", with "@<level>" where that is not the lane's first: an event in an address. */
export function addressOf({track, index}) {
  return `${track.lane.id}@${Number(track.start[index].toFixed(3))}${track.level ? `@${track.level}` : ""}`;
}

/** The event at such an address, the nearest to its time; null where the lane is not there. */
export function atAddress(model, address) {
  const [, id, start, level] = /^(.*?)@(-?[\d.e+-]+)(?:@(\d+))?$/.exec(address) || [];
  const lane = model.lanes.find((one) => one.id === id);
  const tracks = lane?.tracks.filter((track) => track.size && (level === undefined || track.level === Number(level)));
  let best = null;
  for (const track of tracks || []) {
    const after = track.firstStarting(Number(start) - 0.0006);
    for (const index of [after - 1, after]) {
      const away = Math.abs(track.start[index] - Number(start));
      if (index >= 0 && index < track.size && !(away >= best?.away)) best = {track, index, away};
    }
  }
  return best && {track: best.track, index: best.index};
}

// ----------------------------------------------------------------------------------------------------------- search

/** Marks in each track what a search finds: names that `match`, and at least `least` µs. Returns {count, us, marks}:
 * marks is true where only findings match. Then the kernels inside the marked times keep their colour. */
export function markMatches(model, match, least) {
  let [count, us, marks] = [0, 0, true];
  for (const track of model.tracks) {
    track.matches = track.lit = matchesOf(track, match, least);
    count += track.matches.length;
    for (const i of track.matches) us += track.end[i] - track.start[i];
    if (track.matches.length && track.lane.kind !== "finding") marks = false;
  }
  if (marks && count) lightInside(model);
  return {count, us, marks: marks && count > 0};
}

export function clearMatches(model) {
  for (const track of model.tracks) track.matches = track.lit = null;
}

/** The indices of a track's events whose name is marked in `match` and that last at least `least` µs. */
function matchesOf(track, match, least) {
  const indices = new Uint32Array(track.size);
  let count = 0;
  for (let i = 0; i < track.size; i++) {
    if (match[track.name[i]] && track.end[i] - track.start[i] >= least) indices[count++] = i;
  }
  return indices.slice(0, count);
}

/** Lights the device's events inside the marks that match; where the trace has no device, the operators. */
function lightInside(model) {
  let marked = [];
  for (const track of model.tracks) {
    const pairs = [];
    for (const i of track.matches) pairs.push(track.start[i], track.end[i]);
    marked = joined(marked, pairs);
  }
  const lit = kindsOfWork(model);
  for (const track of model.tracks) if (lit.has(track.lane.kind)) track.lit = insideOf(track, marked);
}

/** The kinds of lanes whose events a finding is about. */
export function kindsOfWork(model) {
  const hasDevice = model.lanes.some(({kind}) => kind === "kernel" || kind === "copy");
  return hasDevice ? ON_THE_DEVICE : new Set(["cpu", "loader", "collective"]);
}

/** The events of a track of which at least half lies inside the intervals, or that hold most of one. */
export function insideOf(track, intervals) {
  const indices = [];
  for (let k = 0; k < intervals.length; k += 2) {
    const [low, high] = [intervals[k], intervals[k + 1]];
    for (let i = track.firstReaching(low); i < track.size && track.start[i] < high; i++) {
      const [start, end] = [track.start[i], track.end[i]];
      const common = Math.min(end, high) - Math.max(start, low);
      if (common < 0.5 * Math.min(end - start, high - low) || common < 0) continue;
      if (!(indices.at(-1) >= i)) indices.push(i);
    }
  }
  return Uint32Array.from(indices);
}

/** Where in track.matches the first one after (or last one before) an origin lies, or -1. Matches that start at the
 * same time come in the order of their tracks: `order` is this track's place, less that of the origin's. */
export function matchBeside({matches, start, size}, direction, origin, order, index) {
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

// Two traces of a run as one: their answers merged, so that the timeline draws them as lanes of two ranks.
const NEAR = 60e6; // µs: clocks that differ by more are not of one moment
const NO_NAME = -1;

/** How much later the second trace's time 0 is than the first's by their clocks, in µs; null where that is unknown. */
export function clockOffset(one, other) {
  const offset = (other.clock_us ?? NaN) - (one.clock_us ?? NaN);
  return Math.abs(offset) <= NEAR ? offset : null;
}

/** The answers of two traces as one. `offset`: the time of the second one's zero in the first one, in µs. */
export function merged(one, other, offset) {
  const titles = titlesOf(one, other);
  const names = [...one.names];
  const numbers = new Map(names.map((name, number) => [name, number]));
  const nameOf = other.names.map((name) => {
    if (!numbers.has(name)) numbers.set(name, names.push(name) - 1);
    return numbers.get(name);
  });
  const events = one.lanes.reduce((sum, {start}) => sum + start.length, 0);
  const threads = one.lanes.reduce((most, {thread = -1}) => Math.max(most, thread), -1) + 1;
  const details = (one.details || []).length;
  const moved = (list, by) => list?.map((number) => (number < 0 ? number : number + by));
  const lanes = other.lanes.map((lane) => ({
    ...lane,
    thread: (lane.thread ?? -1) < 0 ? -1 : lane.thread + threads,
    start: lane.start.map((start) => start + offset),
    name: lane.name.map((name) => nameOf[name] ?? NO_NAME),
    detail: moved(lane.detail, details),
    launch: moved(lane.launch, events),
    operator: moved(lane.operator, events),
    sequence: undefined, // the ranks count alike
  }));
  const counters = (other.counters || []).map((counter) => (
    {...counter, time: counter.time.map((time) => time + offset)}));
  return {
    ...one, names,
    lanes: [...one.lanes.map(titled(titles[0])), ...lanes.map(titled(titles[1]))],
    counters: [...(one.counters || []).map(titled(titles[0])), ...counters.map(titled(titles[1]))],
    details: [...(one.details || []), ...(other.details || [])],
    loaded: bothLoaded(one.loaded, other.loaded, offset),
    total: union(one.total, other.total, offset),
    left_out: (one.left_out || 0) + (other.left_out || 0),
    partial: one.partial || other.partial,
    warnings: [one, other].flatMap(({warnings = []}, at) => warnings.map((text) => `${titles[at]}: ${text}`)),
  };
}

function titlesOf(one, other) {
  const ranks = [one.rank ?? null, other.rank ?? null];
  if (ranks.includes(null) || ranks[0] === ranks[1]) return ["first trace", "second trace"];
  return ranks.map((rank) => `rank ${rank}`);
}

/** Puts a lane or a counter under a title: its id and its group begin with that. */
function titled(title) {
  return (lane) => ({
    ...lane,
    id: lane.id === undefined ? undefined : `${title}: ${lane.id}`,
    group: `${title}: ${lane.group || "other"}`,
    label: lane.id === undefined ? `${title}: ${lane.label}` : lane.label,
  });
}

/** Where both traces are loaded. */
function bothLoaded(one, other, offset) {
  if (!one || !other) return one;
  const common = {...one, start: Math.max(one.start, other.start + offset), end: Math.min(one.end, other.end + offset)};
  return common.end > common.start ? common : one;
}

function union(one, other, offset) {
  if (!one || !other) return one;
  return {start: Math.min(one.start, other.start + offset), end: Math.max(one.end, other.end + offset)};
}
