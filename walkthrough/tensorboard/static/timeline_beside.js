// Two traces of a run as one: their answers merged, so that the timeline draws them as lanes of two ranks.

const NEAR = 60e6; // µs: clocks that differ by more are not of one moment
const NAMELESS = -1;

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
    name: lane.name.map((name) => nameOf[name] ?? NAMELESS),
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
