// The events of a timeline as typed arrays.
import {shadeOf} from "./timeline_colours.js";
import {clamp, lowerBound} from "./timeline_numbers.js";

const MOST_LEVELS = 512; // deeper events are drawn in the last row

/** The events of one level of one lane, sorted by start. They should not overlap; all works where they do. */
export class Track {
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
export function sortedOrder(start, size) {
  let sorted = true;
  for (let i = 1; i < size && sorted; i++) sorted = start[i - 1] <= start[i];
  return sorted ? null : Uint32Array.from({length: size}, (_, i) => i).sort((a, b) => start[a] - start[b]);
}

/** One lane of the server's data as Tracks. Events without finite times are left out. */
export function readLane(lane, names) {
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
export function readModel(data) {
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

/** What lies between two times on some tracks; of an event partly inside, only that part's time counts. */
export function boxSums(model, tracks, low, high) {
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

/** The indices of a track's events whose name is marked in `match`. */
export function matchesOf(track, match) {
  const indices = new Uint32Array(track.size);
  let count = 0;
  for (let i = 0; i < track.size; i++) if (match[track.name[i]]) indices[count++] = i;
  return indices.slice(0, count);
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
