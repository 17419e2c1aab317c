// From an event to what belongs to it: its launch, its operators, its Python functions, its work on the GPU.
import {idOf, insideOf, kindsOfWork, withId} from "./timeline_model.js";
import {boxSums, joined, topNames} from "./timeline_tracks.js";

const OPERATORS = new Set(["cpu", "loader", "mark", "collective"]);
const PYTHON = new Set(["python"]);
const BACKWARD = /^(autograd::engine::evaluate_function|torch::autograd::)/;
const NONE = -1;

/** What belongs to an event:
 *  launch, operator: events, or null; operators, stack: events around it, innermost first;
 *  pair: the backward operators of a forward one, or the forward one of a backward operator;
 *  work: what it launched on the device, sorted by start; inside: sums of the operators in a Python function. */
export function relationsOf(model, chosen) {
  const {track, index} = chosen;
  const {lane} = track;
  const number = track.event[index];
  const [start, end] = [track.start[index], track.end[index]];
  const relations = {launch: null, operator: null, operators: [], stack: [], work: [], inside: null,
    pair: pairOf(model, chosen)};
  if (lane.launch || lane.operator) {
    relations.launch = withId(model, lane.launch?.[number] ?? NONE);
    relations.operator = withId(model, lane.operator?.[number] ?? NONE);
    const call = relations.launch || relations.operator;
    if (call) Object.assign(relations, surroundings(model, call, relations.operator));
    return relations;
  }
  if (lane.thread < 0) return relations;
  Object.assign(relations, surroundings(model, chosen, null));
  if (lane.kind === "runtime") {
    relations.work = launchedBy(model, idOf(chosen));
    relations.operator = relations.operators[0] || null;
    return relations;
  }
  relations.work = workInside(model, lane.thread, start, end);
  if (PYTHON.has(lane.kind)) {
    const tracks = model.tracks.filter((one) => one.lane.kind === "cpu" && one.lane.thread === lane.thread);
    relations.inside = boxSums(model, tracks, start, end);
  }
  return relations;
}

/** Whether an event is the backward pass of an operator. */
export function isBackward(model, event) {
  const name = model.names[event.track.name[event.index]];
  return BACKWARD.test(name) || "forward thread" in detailOf(model, event);
}

/** The outermost backward operators of a forward one, or the forward one of a backward operator. Autograd gives its
 * nodes numbers; every operator that begins before the next node is made has the number of that node. */
function pairOf(model, chosen) {
  const sequence = chosen.track.lane.sequence?.[chosen.track.event[chosen.index]] ?? NONE;
  if (sequence < 0) return [];
  const numbered = [];
  for (const lane of model.lanes) {
    for (let number = 0; lane.sequence && number < lane.size; number++) {
      const event = lane.sequence[number] === sequence ? withId(model, lane.first + number) : null;
      if (event) numbered.push({...event, start: event.track.start[event.index], end: event.track.end[event.index]});
    }
  }
  numbered.sort((a, b) => a.start - b.start || b.end - a.end);
  const forward = numbered.filter((event) => !isBackward(model, event));
  if (isBackward(model, chosen)) return [forwardOf(model, chosen, forward)].filter(Boolean);
  let until = -Infinity;
  return numbered.filter((event) => {
    if (!isBackward(model, event) || event.end <= until) return false; // in another one
    until = event.end;
    const maker = forwardOf(model, event, forward);
    return maker && (same(maker, chosen) || around(model, OPERATORS, maker).some((one) => same(one, chosen)));
  }).map(({track, index}) => ({track, index}));
}

/** The operator that made a node, of those with its number: the last that begins before the node's backward. Operators
 * inside a backward count only where there is no other: another thread's numbers are its own. */
function forwardOf(model, backward, candidates) {
  const start = backward.track.start[backward.index];
  const before = candidates.filter((one) => one.start < start);
  const inside = (one) => around(model, OPERATORS, one).some((other) => isBackward(model, other));
  const found = before.findLast((one) => !inside(one)) ?? before.at(-1);
  return found ? {track: found.track, index: found.index} : null;
}

/** The operators and Python functions around a call on the CPU, innermost first; `known`: the innermost operator. */
function surroundings(model, call, known) {
  const operators = around(model, OPERATORS, call);
  if (known && !operators.some((one) => same(one, known))) {
    operators.unshift(known, ...around(model, OPERATORS, known).filter((one) => !operators.some((o) => same(o, one))));
  }
  return {operators, stack: around(model, PYTHON, call)};
}

export function same(a, b) {
  return Boolean(a && b) && a.track === b.track && a.index === b.index;
}

/** The events of the given kinds, on the same thread, that contain an event, innermost first. */
function around(model, kinds, event) {
  const {thread} = event.track.lane;
  const [low, high] = [event.track.start[event.index], event.track.end[event.index]];
  const found = [];
  for (const track of model.tracks) {
    if (!kinds.has(track.lane.kind) || track.lane.thread !== thread || thread < 0) continue;
    if (track.lane === event.track.lane && track.level >= event.track.level) continue;
    const index = track.containing(low, high);
    if (index >= 0) found.push({track, index});
  }
  const length = ({track, index}) => track.end[index] - track.start[index];
  return found.sort((a, b) => length(a) - length(b) || b.track.level - a.track.level);
}

/** For each event the first device event that it launched (`head`), and for each of those the next (`next`). */
function linksOf(model) {
  if (model.linked) return model.linked;
  const lists = {};
  for (const key of ["launch", "operator"]) {
    const head = new Int32Array(model.events).fill(NONE);
    const next = new Int32Array(model.events).fill(NONE);
    for (const lane of model.lanes) {
      if (!lane[key]) continue;
      for (let number = lane.size - 1; number >= 0; number--) {
        const by = lane[key][number];
        if (!(by >= 0) || by >= model.events || (key === "operator" && lane.launch?.[number] >= 0)) continue;
        next[lane.first + number] = head[by];
        head[by] = lane.first + number;
      }
    }
    lists[key] = {head, next};
  }
  model.linked = lists;
  return lists;
}

function launchedBy(model, id, key = "launch") {
  const {head, next} = linksOf(model)[key];
  const work = [];
  for (let one = head[id] ?? NONE; one >= 0; one = next[one]) work.push(withId(model, one));
  return work.filter(Boolean);
}

/** What the calls of a thread between two times launched, by start. */
function workInside(model, thread, low, high) {
  const work = [];
  for (const track of model.tracks) {
    if (track.lane.thread !== thread || PYTHON.has(track.lane.kind)) continue;
    const key = track.lane.kind === "runtime" ? "launch" : "operator";
    const {head} = linksOf(model)[key];
    for (let i = track.firstStarting(low - 0.0015); i < track.size && track.start[i] < high; i++) {
      const id = track.lane.first + track.event[i];
      if (head[id] >= 0) work.push(...launchedBy(model, id, key));
    }
  }
  return work.sort((a, b) => a.track.start[a.index] - b.track.start[b.index]);
}

/** The union of the times of some events, as pairs in a flat array. */
export function unionOf(events) {
  const pairs = events.map(({track, index}) => [track.start[index], track.end[index]]).sort((a, b) => a[0] - b[0]);
  return joined([], pairs.flat());
}

function pairsOf({start, end, size}) {
  const pairs = [];
  for (let i = 0; i < size; i++) pairs.push(start[i], end[i]);
  return pairs;
}

/** The device's work inside a finding's marks, by name: {count, us, names, top} of one mark, or of all its lane. */
export function workOfMarks(model, {track, index}, all) {
  const marks = all ? joined([], pairsOf(track)) : [track.start[index], track.end[index]];
  const counts = new Uint32Array(model.names.length);
  const times = new Float64Array(model.names.length);
  const kinds = kindsOfWork(model);
  let [count, us] = [0, 0];
  for (const one of model.tracks) {
    if (!kinds.has(one.lane.kind) || (one.lane.kind === "cpu" && one.level)) continue;
    for (const i of insideOf(one, marks)) {
      const length = one.end[i] - one.start[i];
      counts[one.name[i]]++;
      times[one.name[i]] += length;
      count++;
      us += length;
    }
  }
  return {count, us, ...topNames(model, counts, times)};
}

/** The facts that the trace has of an event: {fact: value}. */
export function detailOf(model, {track, index}) {
  return model.details[track.lane.detail?.[track.event[index]]] || {};
}

/** The call and the device work to be joined by arrows, at most `most`, the longest first. */
export function arrowsOf(model, chosen, {launch, work, pair}, most) {
  if (launch) return [{from: launch, to: chosen}];
  const startOf = ({track, index}) => track.start[index];
  const pairs = pair.map((one) => (startOf(one) < startOf(chosen) ? {from: one, to: chosen} : {from: chosen, to: one}));
  const length = ({track, index}) => track.end[index] - track.start[index];
  return pairs.concat([...work].sort((a, b) => length(b) - length(a)).slice(0, most).map((to) => {
    const by = to.track.lane.launch?.[to.track.event[to.index]] ?? NONE;
    return {from: withId(model, by) || chosen, to};
  }));
}
