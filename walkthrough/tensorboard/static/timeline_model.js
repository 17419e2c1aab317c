// What a timeline shows, read from the server's answer into typed arrays; and the search over it.
import {causeIndex, idleName, shadeOf} from "./timeline_colours.js";
import {lowerBound} from "./timeline_numbers.js";
import {eventOf, joined, readLane} from "./timeline_tracks.js";

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
