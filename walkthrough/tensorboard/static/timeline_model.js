// What a timeline shows: the server's answer (see walkthrough/trace/timeline/lanes.py) as typed arrays, times in µs.
// The events of one lane and one level form a Track, and {track, index} is an event everywhere in these modules.
import {grouped} from "./elements.js";
import {causeIndex, idleName, shadeOf} from "./timeline_style.js";

const NEAR = 60e6; // µs: clocks that differ by more are not of one moment
const ROUNDED = 0.0015; // µs: the server rounds times to the nanosecond

export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** The first index in [low, high) of the sorted `array` whose value is at least `value`; `high` where none is. */
export function lowerBound(array, value, low = 0, high = array.length) {
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

/** A moment: in ms with `decimals`, or in µs to the nanosecond. */
export function moment(us, decimals = 3) {
  return Math.abs(us) >= 1e3 ? `${grouped(us / 1e3, decimals)} ms` : `${grouped(us, 3)} µs`;
}

/** µs as text that reads back as the same place. */
export function exact(us) {
  return String(Number(us.toFixed(6)));
}

/** The events of one level of one lane, sorted by start. They should not overlap; all works where they do. */
class Track {
  constructor(lane, level, size) {
    Object.assign(this, {lane, level, size, matches: null}); // matches: the indices of what a search found, or null
    this.start = new Float64Array(size);
    this.end = new Float64Array(size);
    this.name = new Uint32Array(size);
    this.event = new Uint32Array(size); // each event's number in its lane, as the server counts
  }

  /** To be called once, after the arrays are filled. */
  seal() {
    const {size, start, end} = this;
    this.busy = new Float64Array(size + 1); // busy[i]: the sum of the durations before event i
    this.reach = end; // reach[i]: the last end of the events 0..i, so sorted; `end` itself where that is sorted
    // A binary tree over the events: node k has the children 2k and 2k + 1, leaf size + i is event i. tree[k] is the
    // longest event under node k, most[k] its duration.
    this.tree = new Uint32Array(2 * size);
    this.most = new Float64Array(2 * size);
    for (let i = 0; i < size; i++) {
      this.busy[i + 1] = this.busy[i] + (end[i] - start[i]);
      if (i && end[i] < this.reach[i - 1]) {
        if (this.reach === end) this.reach = end.slice();
        this.reach[i] = this.reach[i - 1];
      }
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
    return lowerBound(this.reach, time);
  }

  /** The first event that starts at `time` or later. */
  firstStarting(time) {
    return lowerBound(this.start, time);
  }

  /** The last event that starts by `low` and reaches `high`, or -1. */
  containing(low, high) {
    let i = this.firstStarting(low + ROUNDED) - 1;
    while (i >= 0 && this.reach[i] >= high - ROUNDED && this.end[i] < high - ROUNDED) i--;
    return i >= 0 && this.end[i] >= high - ROUNDED ? i : -1;
  }
}

/** {names, shade (of each name), count, us (of each name), lanes, tracks, steps, events (how many), low, high (of all
 * times), details, loaded (null where all is), opening (the times to begin with, or null)}. */
export function readModel({lanes: answers, names: given, counters = [], steps: all = [], details = [], loaded, total}) {
  const names = [...given];
  const lanes = [];
  let events = 0;
  for (const answer of namesOfGaps(answers, names)) {
    lanes.push(readLane(answer, events));
    events += answer.start.length;
  }
  const tracks = lanes.flatMap((lane) => lane.tracks).filter(({size}) => size);
  const [count, us] = [new Uint32Array(names.length), new Float64Array(names.length)];
  for (const {size, start, end, name} of tracks) {
    for (let i = 0; i < size; i++) {
      count[name[i]]++;
      us[name[i]] += end[i] - start[i];
    }
  }
  const shades = {idle: Uint8Array.from(names, causeIndex), other: Uint8Array.from(names, shadeOf)};
  for (const lane of lanes) lane.shade = shades[lane.kind] || shades.other;
  lanes.push(...counters.map(readCounter));
  const steps = all.map((step, index) => ({...step, index}));
  const spans = [...tracks.map(({start, reach}) => ({start: start[0], end: reach.at(-1)})), ...steps, ...(total ? [total] : [])];
  if (!spans.length) {
    spans.push(...counters.filter(({time}) => time.length).map(({time}) => ({start: time[0], end: time.at(-1)})));
  }
  const low = spans.reduce((least, {start}) => Math.min(least, start), Infinity);
  const high = spans.reduce((most, {end}) => Math.max(most, end), -Infinity);
  const part = loaded && (loaded.start > low + 0.001 || loaded.end < high - 0.001) ? loaded : null;
  return {names, count, us, lanes, tracks, steps, events, low, high, details, loaded: part, opening: opening(steps, loaded)};
}

/** From the first loaded step to the end of the last one, and with the begin of the first one's mark, which may be long
 * before its work on the GPU; null where there is none. */
function opening(steps, loaded) {
  const shown = loaded ? steps.slice(loaded.first, loaded.last + 1) : steps;
  if (!shown.length) return null;
  return {start: shown[0].index ? shown[0].start : Math.min(0, shown[0].start), end: shown.at(-1).end};
}

/** The lanes, in which the gaps' names say that they are gaps. Adds these names to `names`. */
function namesOfGaps(lanes, names) {
  const renamed = new Map();
  const nameOf = (name) => {
    if (!renamed.has(name)) renamed.set(name, names.push(idleName(names[name])) - 1);
    return renamed.get(name);
  };
  return lanes.map((lane) => (lane.kind === "idle" ? {...lane, name: lane.name.map(nameOf)} : lane));
}

/** One lane of the server's data as Tracks. `first`: the id of its first event. */
function readLane({id, label, title = "", kind, group, thread, start, duration, name, level, ...rest}, first) {
  const size = start.length;
  const lane = {id, label, title, kind, group, thread, first, size, short: shortLabel(label, group, kind)};
  const sizes = [0];
  for (const one of level) sizes[one] = (sizes[one] || 0) + 1;
  lane.tracks = Array.from(sizes, (count = 0, at) => new Track(lane, at, count));
  lane.levels = Uint16Array.from(level); // of each event, as the server counts
  lane.at = new Uint32Array(size); // and its index in the level's track
  const filled = new Uint32Array(sizes.length);
  for (let i = 0; i < size; i++) {
    const track = lane.tracks[level[i]];
    const at = lane.at[i] = filled[level[i]]++;
    track.start[at] = start[i];
    track.end[at] = start[i] + duration[i];
    track.name[at] = name[i];
    track.event[at] = i;
  }
  for (const track of lane.tracks) track.seal();
  for (const key of ["detail", "correlation", "launch", "operator", "sequence"]) {
    lane[key] = rest[key] ? Float64Array.from(rest[key]) : null; // of each event a number, or -1
  }
  return lane;
}

function readCounter({label, unit, group, time, value}) {
  const [most, least] = [Math.max, Math.min].map((extreme) => value.reduce((a, b) => extreme(a, b), 0));
  return {id: `counter ${label}`, label, short: label, title: "", kind: "counter", group, thread: -1, tracks: [],
    first: 0, size: 0, unit, counter: {time: Float64Array.from(time), value, most, least}};
}

/** A lane's label without what its group's heading says already. */
function shortLabel(label, group, kind) {
  if (group && label.startsWith(`${group}, `)) return label.slice(group.length + 2);
  if (group && group.endsWith(label)) return kind === "cpu" ? "operators" : label;
  const [first, ...rest] = label.split(", ");
  return rest.length && group.endsWith(first) ? rest.join(", ") : label;
}

/** A lane's label with its group's. */
export function fullLabel({group, short}) {
  return [group, short].filter(Boolean).join(", ");
}

export function nameOf(model, {track, index}) {
  return model.names[track.name[index]];
}

/** [start, end, duration] of an event. */
export function timesOf({track, index}) {
  return [track.start[index], track.end[index], track.end[index] - track.start[index]];
}

/** The event with an id, which counts all events of all lanes; null for -1. */
export function withId(model, id = -1) {
  const lane = id < 0 ? null : model.lanes.find(({first, size}) => id < first + size);
  return lane ? {track: lane.tracks[lane.levels[id - lane.first]], index: lane.at[id - lane.first]} : null;
}

/** What the server sends of an event in a lane's list `key`; -1 where it sends nothing. */
export function numberOf({track, index}, key) {
  return track.lane[key]?.[track.event[index]] ?? -1;
}

/** "<lane id>@<start in µs>": an event in an address. */
export function addressOf({track, index}) {
  return `${track.lane.id}@${Number(track.start[index].toFixed(3))}`;
}

/** The event at such an address: the nearest to its time, of those the outermost; null where the lane is not there. */
export function atAddress(model, address) {
  const [, id, start] = /^(.*?)@(-?[\d.e+-]+)(?:@\d+)?$/.exec(address) || [];
  let best = null;
  for (const track of model.lanes.find((lane) => lane.id === id)?.tracks || []) {
    const after = track.firstStarting(Number(start) - 0.0006);
    for (const index of [after - 1, after]) {
      const away = Math.abs(track.start[index] - Number(start)); // NaN where there is none
      if (away < (best?.away ?? Infinity)) best = {track, index, away};
    }
  }
  return best && {track: best.track, index: best.index};
}

// -------------------------------------------------------------------------------------------- search and sums

/** Marks in each track what a search finds: names that `test`, and at least `least` µs. Returns {count, us}. */
export function markMatches({names, tracks}, test, least) {
  const match = Uint8Array.from(names, test);
  let [count, us] = [0, 0];
  for (const track of tracks) {
    const {size, start, end, name} = track;
    const found = new Uint32Array(size);
    let many = 0;
    for (let i = 0; i < size; i++) {
      if (!match[name[i]] || end[i] - start[i] < least) continue;
      found[many++] = i;
      us += end[i] - start[i];
    }
    track.matches = found.slice(0, many);
    count += many;
  }
  return {count, us};
}

/** The order of time; events of the same start come in the order of their tracks (`place`). */
function inTime(a, b) {
  return a.track.start[a.index] - b.track.start[b.index] || a.place - b.place || a.index - b.index;
}

/** All events found, in the order of time. */
export function matchesInOrder({tracks}) {
  return tracks.flatMap((track, place) => Array.from(track.matches, (index) => ({track, index, place}))).sort(inTime);
}

/** The place in `found` (see matchesInOrder) of the first after an event (direction 1), or of the last before it (-1);
 * where there is none, and without an event, the first or the last of all. */
export function matchBeside({tracks}, found, event, direction) {
  const here = event && {...event, place: tracks.indexOf(event.track)};
  const at = !here ? -1 : direction > 0 ? found.findIndex((one) => inTime(one, here) > 0)
    : found.findLastIndex((one) => inTime(one, here) < 0);
  return at >= 0 ? at : direction > 0 ? 0 : found.length - 1;
}

/** The union of intervals, pairs in a flat array, as the same, sorted and without overlaps. */
export function union(pairs) {
  const order = Array.from({length: pairs.length / 2}, (_, i) => 2 * i).sort((a, b) => pairs[a] - pairs[b]);
  const out = [];
  for (const at of order) {
    if (out.length && pairs[at] <= out.at(-1)) out.push(Math.max(out.pop(), pairs[at + 1]));
    else out.push(pairs[at], pairs[at + 1]);
  }
  return out;
}

/** The length of a union of intervals. */
export function lengthOf(intervals) {
  return intervals.reduce((sum, time, at) => sum + (at % 2 ? time : -time), 0);
}

/** How long something runs on some tracks between two times. */
export function busyOf(tracks, low, high) {
  const parts = [];
  for (const track of tracks) {
    for (let i = track.firstReaching(low); i < track.size && track.start[i] < high; i++) {
      if (track.end[i] > low) parts.push(Math.max(low, track.start[i]), Math.min(high, track.end[i]));
    }
  }
  return lengthOf(union(parts));
}

/** What lies inside some intervals on some tracks, by half at least: {count, us, top: [{name, count, us}]}, the ten
 * names with the most time. Of an event partly inside, that part's time counts; all of it where `whole`. */
export function sumsInside(model, tracks, intervals, whole = false) {
  const sums = new Map();
  let [count, us] = [0, 0];
  for (const track of tracks) {
    let last = -1; // an event that reaches into two intervals counts once
    for (let k = 0; k < intervals.length; k += 2) {
      const [low, high] = [intervals[k], intervals[k + 1]];
      for (let i = track.firstReaching(low); i < track.size && track.start[i] < high; i++) {
        const [start, end] = [track.start[i], track.end[i]];
        const inside = Math.min(end, high) - Math.max(start, low);
        if (i <= last || inside < 0.5 * Math.min(end - start, high - low)) continue;
        last = i;
        const name = model.names[track.name[i]];
        if (!sums.has(name)) sums.set(name, {name, count: 0, us: 0});
        const sum = sums.get(name);
        const length = whole ? end - start : inside;
        sum.count++;
        sum.us += length;
        count++;
        us += length;
      }
    }
  }
  return {count, us, top: [...sums.values()].sort((a, b) => b.us - a.us || b.count - a.count).slice(0, 10)};
}

// ------------------------------------------------------------------------------------------------- two traces

/** How much later the second trace's time 0 is than the first's by their clocks, in µs; null where that is unknown. */
export function clockOffset(one, other) {
  const offset = (other.clock_us ?? NaN) - (one.clock_us ?? NaN);
  return Math.abs(offset) <= NEAR ? offset : null;
}

/** The answers of two traces as one, drawn as lanes of two ranks. `offset`: the time of the second one's zero in the
 * first one, in µs. */
export function merged(one, other, offset) {
  const ranks = [one.rank, other.rank];
  const known = ranks.every((rank) => (rank ?? null) !== null) && ranks[0] !== ranks[1];
  const titles = known ? ranks.map((rank) => `rank ${rank}`) : ["first trace", "second trace"];
  const titled = (title) => (lane) => ({...lane, group: `${title}: ${lane.group}`,
    ...(lane.id === undefined ? {label: `${title}: ${lane.label}`} : {id: `${title}: ${lane.id}`})});
  const events = one.lanes.reduce((sum, {start}) => sum + start.length, 0);
  const threads = 1 + Math.max(-1, ...one.lanes.map(({thread}) => thread));
  const moved = (list, by) => list?.map((number) => (number < 0 ? number : number + by));
  const names = [...one.names];
  const numbers = new Map(names.map((name, number) => [name, number]));
  const renumbered = other.names.map((name) => numbers.get(name) ?? names.push(name) - 1);
  const later = (list) => list.map((time) => time + offset);
  const lanes = other.lanes.map((lane) => ({
    ...lane,
    thread: moved([lane.thread], threads)[0],
    start: later(lane.start),
    name: lane.name.map((name) => renumbered[name]),
    detail: moved(lane.detail, one.details.length),
    launch: moved(lane.launch, events),
    operator: moved(lane.operator, events),
    sequence: undefined, // the ranks count alike
  }));
  const counters = other.counters.map((counter) => ({...counter, time: later(counter.time)}));
  const start = Math.max(one.loaded.start, other.loaded.start + offset);
  const end = Math.min(one.loaded.end, other.loaded.end + offset);
  return {
    ...one,
    names,
    details: [...one.details, ...other.details],
    lanes: [...one.lanes.map(titled(titles[0])), ...lanes.map(titled(titles[1]))],
    counters: [...one.counters.map(titled(titles[0])), ...counters.map(titled(titles[1]))],
    loaded: end > start ? {...one.loaded, start, end} : one.loaded, // where both are
    total: {start: Math.min(one.total.start, other.total.start + offset), end: Math.max(one.total.end, other.total.end + offset)},
    left_out: one.left_out + other.left_out,
    partial: one.partial || other.partial,
    warnings: [one, other].flatMap(({warnings}, at) => warnings.map((text) => `${titles[at]}: ${text}`)),
  };
}
