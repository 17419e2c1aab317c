// The events of a timeline's lane as typed arrays, and what is computed from those.
import {clamp, lowerBound} from "./timeline_numbers.js";

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
