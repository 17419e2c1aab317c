// From an event to what belongs to it: its launch, its operators, its Python functions, its work on the GPU.
import {CAUSES, duration, grouped, quantity} from "./elements.js";
import {Painted} from "./timeline_draw.js";
import {
  addressOf,
  atAddress,
  boxSums,
  clamp,
  clearMatches,
  counterAt,
  fullLabel,
  idOf,
  insideOf,
  joined,
  kindsOfWork,
  lengthOf,
  lowerBound,
  markMatches,
  matchBeside,
  moment,
  partsBetween,
  roundStep,
  tickLabel,
  topNames,
  withId,
} from "./timeline_model.js";
import {
  causeIndex,
  cssColour,
  facts,
  HEADER,
  HIT_SLOP,
  LANE_PAD,
  make,
  NOTHING_SELECTED,
  ROW,
  ROW_GAP,
  shortened,
  STEP_BAND,
} from "./timeline_style.js";

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

// What the panel under the timeline says of the selection.
const MOST_LISTED = 12; // events of one list
const MOST_OF_A_NAME = 4000; // of a name in full
const STACK = "stack"; // the fact that holds the Python stack in traces without Python functions
const PER_CALL = new Set(["runtime", "kernel", "copy"]);

/** What the panel says of an event: elements. `go(event)` selects another. */
export function eventPanel(model, chosen, relations, go) {
  const {track, index} = chosen;
  const {lane} = track;
  const detail = detailOf(model, chosen);
  const stack = stackParts(relations, detail, go);
  const isCalled = PER_CALL.has(lane.kind); // then the first question is which line of code called it
  return [
    make("h3", "", shortened(model.names[track.name[index]], MOST_OF_A_NAME)),
    timesOf(model, chosen),
    ...(lane.kind === "idle" ? [gapFacts(detail, lane.palette)] : [launchFacts(chosen, relations, go)]),
    ...(isCalled ? stack : []),
    argumentsOf(lane, track.event[index], detail),
    ...pairParts(relations, go),
    ...workParts(relations, go),
    ...(isCalled ? [] : stack),
    ...(lane.kind === "finding" ? findingParts(model, chosen) : []),
  ].filter(Boolean);
}

function timesOf(model, {track, index}) {
  const {lane} = track;
  const [start, end] = [track.start[index], track.end[index]];
  const name = track.name[index];
  const own = ownTime(track, index);
  const step = model.steps.find((one) => one.start <= start && start < one.end);
  return facts([
    ["Duration", duration(end - start)],
    ...(own === null ? [] : [["Without nested", duration(own)]]),
    ["Start", moment(start, 6)],
    ["End", moment(end, 6)],
    ["Lane", shortened(fullLabel(lane))],
    ["Step", step ? shortened(step.name) : "none"],
    [model.loaded ? "In the loaded steps" : "In the whole trace",
      `${grouped(model.count[name])} ×, ${duration(model.us[name])} together, ` +
      `${duration(model.us[name] / model.count[name])} on average`],
  ]);
}

/** A CPU event's duration without the events nested in it; null on other lanes, whose levels may be overlaps. */
function ownTime({lane, level, start, end}, index) {
  if (lane.kind !== "cpu" && lane.kind !== "python") return null;
  const below = lane.tracks[level + 1];
  if (!below) return end[index] - start[index];
  const from = below.firstStarting(start[index]);
  const to = below.firstStarting(end[index]);
  return Math.max(0, end[index] - start[index] - (below.busy[to] - below.busy[from]));
}

/** An event's name as a button that selects it. */
function link(model, event, go) {
  const name = model.names[event.track.name[event.index]];
  const button = make("button", "wtl-link", shortened(name));
  button.type = "button";
  button.title = shortened(name, MOST_OF_A_NAME);
  button.addEventListener("click", () => go(event));
  return button;
}

function launchFacts(chosen, {launch, operator, model}, go) {
  const rows = [];
  if (launch) {
    const at = launch.track.start[launch.index];
    rows.push(["Launched by", link(model, launch, go)], ["Launched at", moment(at, 6)],
      ["Queue delay", `${duration(chosen.track.start[chosen.index] - at)} from the call to its begin`]);
  }
  if (operator) rows.push(["Operator", link(model, operator, go)]);
  return rows.length ? facts(rows) : null;
}

function argumentsOf(lane, number, detail) {
  const rows = Object.entries(detail)
    .filter(([key]) => key !== STACK && !(lane.kind === "idle"))
    .map(([key, value]) => [shortened(key), factOf(key, value)]);
  const correlation = lane.correlation?.[number] ?? -1;
  if (PER_CALL.has(lane.kind) && correlation >= 0) rows.push(["correlation", String(correlation)]);
  return rows.length ? part("Arguments", facts(rows)) : null;
}

function factOf(key, value) {
  const isSize = key === "bytes" && Number.isFinite(Number(value));
  return isSize ? quantity(Number(value), "bytes") : shortened(String(value), 600);
}

/** A gap's time by cause, and what ran on the CPU meanwhile. */
function gapFacts(detail, palette) {
  const causes = Object.entries(CAUSES).filter(([cause]) => cause in detail);
  const others = Object.entries(detail).filter(([key]) => !(key in CAUSES));
  const rows = causes.map(([cause, [, text]]) => {
    const value = make("span");
    make("i", "", "", value).style.background = cssColour(palette.rgb[causeIndex(cause)]);
    value.append(`${detail[cause]}: ${text}`);
    return [cause, value];
  });
  for (const [key, value] of others) rows.push([key, shortened(String(value), 600)]);
  return rows.length ? part("The GPU is idle: why", facts(rows)) : null;
}

function part(title, ...children) {
  const section = make("div", "wtl-part");
  make("h4", "", title, section);
  section.append(...children);
  return section;
}

/** Rows of a time, a small text and an element or text. */
function listOf(rows) {
  const list = make("ol");
  for (const [time, small, what] of rows) {
    const row = make("li", "", "", list);
    make("b", "", time, row);
    if (small) make("small", "", small, row);
    if (what instanceof Node) row.append(what);
    else make("span", "", shortened(what), row).title = shortened(what, MOST_OF_A_NAME);
  }
  return list;
}

function eventRows(model, events, go) {
  const rows = events.slice(0, MOST_LISTED).map((event) => [
    duration(event.track.end[event.index] - event.track.start[event.index]), "", link(model, event, go)]);
  return listOf(rows);
}

/** The backward of a forward operator, or its forward. */
function pairParts({pair, model}, go) {
  if (!pair.length) return [];
  return [part(isBackward(model, pair[0]) ? "Its backward" : "Its forward", eventRows(model, pair, go))];
}

/** The Python functions and operators around an event, innermost first. */
function stackParts({operators, stack, model}, detail, go) {
  const lines = stack.length ? stack.map((one) => link(model, one, go))
    : String(detail[STACK] ?? "").split(/[;\n]/).filter((line) => line.trim())
      .map((line) => make("span", "", shortened(line.trim(), 600)));
  const parts = [];
  if (lines.length) {
    const list = make("ol", "wtl-stack");
    for (const line of lines) make("li", "", "", list).append(line);
    const section = part("Python stack, innermost first", list);
    section.classList.add("wtl-lines");
    parts.push(section);
  }
  if (operators.length) parts.push(part("Operators around it, innermost first", eventRows(model, operators, go)));
  return parts;
}

/** What an event launched on the device. */
function workParts({work, inside, model}, go) {
  const parts = [];
  if (work.length) {
    const length = ({track, index}) => track.end[index] - track.start[index];
    const longest = [...work].sort((a, b) => length(b) - length(a));
    const union = unionOf(work);
    const start = union[0];
    const end = union.at(-1);
    parts.push(part("On the GPU", facts([
      ["Kernels and copies", grouped(work.length)],
      ["Their time", `${duration(work.reduce((sum, one) => sum + length(one), 0))}, ` +
        `${duration(lengthOf(union))} without overlaps`],
      ["From, to", `${moment(start)}, ${moment(end)}`],
    ])));
    const title = work.length > MOST_LISTED ? `The ${MOST_LISTED} longest` : "The longest first";
    parts.push(part(title, eventRows(model, longest, go)));
  }
  if (inside?.count) parts.push(part("Operators inside (nested time counts again)", listOf(sumRows(inside))));
  return parts;
}

function sumRows({top}) {
  return top.map(({us, count, name}) => [duration(us), `${grouped(count)} ×`, name]);
}

/** The work on the device during a finding's marks. */
function findingParts(model, chosen) {
  const {track} = chosen;
  const one = workOfMarks(model, chosen, false);
  const parts = [];
  if (one.count) parts.push(part(`In this mark: ${grouped(one.count)}, ${duration(one.us)}`, listOf(sumRows(one))));
  if (track.size > 1) {
    const all = workOfMarks(model, chosen, true);
    const title = `In all ${grouped(track.size)} marks: ${grouped(all.count)}, ${duration(all.us)}`;
    if (all.count) parts.push(part(title, listOf(sumRows(all))));
  }
  return parts.length ? parts : [make("p", "", "No kernel or copy lies inside these marks.")];
}

/** What it says of a box. */
export function boxPanel({start, end, lanes, count, us, wall, names, top}) {
  const share = wall / (end - start);
  return [
    make("h3", "", `${duration(end - start)} from ${tickLabel(start, roundStep((end - start) / 200))}, ` +
      (lanes.length === 1 ? shortened(lanes[0]) : `${lanes.length} lanes`)),
    facts([
      ["Events", `${grouped(count)} (different names: ${grouped(names)})`],
      ["Sum of their times", `${duration(us)} inside the box`],
      ["Wall time covered", `${duration(wall)} (${(100 * share).toFixed(1)} %)`],
    ]),
    listOf(sumRows({top})),
  ];
}

/** What it says of a measured range: `busy` is [{label, us}] of its lanes. */
export function rangePanel({start, end, busy}) {
  const length = end - start;
  return [
    make("h3", "", `${duration(length)} from ${moment(start, 6)} to ${moment(end, 6)}`),
    part("Busy in this range, by lane",
      listOf(busy.map(({label, us}) => [duration(us), `${((100 * us) / length).toFixed(1)} %`, label]))),
  ];
}

/** What belongs to an event, with its model. */
export function relatedTo(model, chosen) {
  return {...relationsOf(model, chosen), model};
}

// Which event of the timeline is meant: by the pointer, by a search, by an address; and what is then selected.
const MOST_ARROWS = 40;
const LEAST_SEEN = 3; // pixels: a narrower event is zoomed to when it is selected from elsewhere

export class Picking extends Painted {

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
    if (track.lit) {
      const match = lowerBound(track.lit, from, 0, track.lit.length);
      if (track.lit[match] < to) return track.lit[match];
    }
    return track.longest(from, to);
  }

  findHover() {
    const {x, y} = this.pointer;
    this.hover = this.eventAt(this.pointer);
    const axis = y >= STEP_BAND && y < HEADER;
    const cursor = axis ? "range" : this.boxMode ? "box" : this.hover || this.stepAt(x, y) ? "event" : "pan";
    if (this.canvas.dataset.cursor !== cursor) this.canvas.dataset.cursor = cursor;
    this.showTip();
  }

  /** What the tooltip adds where one pixel column stands for several events. */
  crowd({track, index}) {
    const {us} = this.grid();
    if (track.end[index] - track.start[index] >= us) return "";
    const low = Math.floor(track.start[index] / us) * us;
    const count = track.firstStarting(low + us) - track.firstStarting(low);
    return count > 1 ? ` · one of ${grouped(count)} events in this pixel` : "";
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

  /** The shown lane at a y on the canvas; pinned lanes lie over the others. */
  laneAt(y) {
    if (y < HEADER) return null;
    const fixed = y < HEADER + this.pinnedHeight;
    const inside = (lane) => y >= this.top(lane) && y < this.top(lane) + lane.height;
    return this.model.lanes.find((lane) => lane.shown && lane.fixed === fixed && inside(lane)) || null;
  }

  trackAt(y) {
    const lane = this.laneAt(y);
    const level = lane ? Math.floor((y - this.top(lane) - LANE_PAD) / ROW) : -1;
    return level >= 0 && level < lane.rows ? lane.tracks[level] : null;
  }

  showTip() {
    const {tip, hover, pointer} = this;
    const lines = hover ? this.eventTip(hover) : this.counterTip(pointer);
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(make("span", "", lines[0]), make("small", "", lines[1]));
    const x = pointer.x + this.labelWidth;
    const left = x + 14 + tip.offsetWidth < this.stage.clientWidth ? x + 14 : x - 10 - tip.offsetWidth;
    const down = pointer.y + 18 + tip.offsetHeight < this.tall ? pointer.y + 18 : pointer.y - 8 - tip.offsetHeight;
    tip.style.left = `${Math.max(2, left)}px`;
    tip.style.top = `${Math.max(2, down)}px`;
  }

  eventTip(hover) {
    const {name, start, duration: length, lane} = this.eventInfo(hover.track, hover.index);
    return [shortened(name), `${duration(length)} from ${moment(start)} · ${shortened(lane)}${this.crowd(hover)}`];
  }

  /** A counter's value under the pointer. */
  counterTip({x, y}) {
    const lane = this.laneAt(y);
    const index = lane?.counter ? counterAt(lane.counter, this.timeAt(x)) : -1;
    if (index < 0) return null;
    const {time, value, most} = lane.counter;
    return [`${shortened(lane.label)}: ${quantity(value[index], lane.unit)}`,
      `since ${moment(time[index])} · max. ${quantity(most, lane.unit)}`];
  }

  eventInfo(track, index) {
    return {
      kind: "event",
      name: this.model.names[track.name[index]],
      start: track.start[index],
      duration: track.end[index] - track.start[index],
      lane: track.lane.label,
      at: addressOf({track, index}),
    };
  }

  // ----------------------------------------------------------------------------------------------------- selecting

  selectEvent(track, index) {
    const chosen = {track, index};
    const relations = relatedTo(this.model, chosen);
    this.selection = {kind: "event", track, index};
    this.arrows = arrowsOf(this.model, chosen, relations, MOST_ARROWS);
    this.usePanel();
    this.showPanel(...eventPanel(this.model, chosen, relations, (event) => this.goTo(event)));
    this.request();
    this.onSelect(this.eventInfo(track, index));
  }

  /** Selects an event and brings it into sight; the view stays where the event is seen in it. */
  goTo({track, index}) {
    const {start, end} = this.goal || this.view;
    const pixels = ((track.end[index] - track.start[index]) / (end - start)) * this.width;
    if (track.start[index] < start || track.start[index] > end || pixels < LEAST_SEEN) this.reveal(track, index);
    else this.bringRow(track);
    this.selectEvent(track, index);
  }

  /** Unfolds and scrolls to a track's row. */
  bringRow(track) {
    if (!track.lane.shown || (!track.lane.open && track.level)) this.unfold(track);
    if (!track.lane.fixed) this.scrollTo(track.lane.y + LANE_PAD + track.level * ROW * Number(track.lane.open), ROW);
  }

  /** Brings an event to the middle; zooms where it would be too small to see, or wider than the view. */
  reveal(track, index) {
    this.bringRow(track);
    const {start, end} = this.goal || this.view;
    const length = track.end[index] - track.start[index];
    const pixels = (length / (end - start)) * this.width;
    let span = end - start;
    if (pixels < 16 || pixels > this.width * 0.9) span = Math.max(length, 1) * (this.width / 140);
    const middle = (track.start[index] + track.end[index]) / 2;
    this.show({start: middle - span / 2, end: middle + span / 2});
  }

  /** Selects the event at an address ("<lane id>@<start>") without moving the view; false where there is none. */
  selectAt(address) {
    const event = this.empty ? null : atAddress(this.model, address);
    if (!event) return false;
    this.bringRow(event.track);
    this.selectEvent(event.track, event.index);
    return true;
  }

  /** The tracks and times that a drag from one corner to the other covers. */
  boxOf({from, to, top}) {
    const times = [from.time, this.timeAt(clamp(to.x, 0, this.width))].sort((a, b) => a - b);
    const pinned = from.y < HEADER + this.pinnedHeight;
    const begun = pinned ? Math.max(from.y, HEADER) : from.y + top - this.scroll.scrollTop;
    const [upper, lower] = [begun, to.y].sort((a, b) => a - b);
    const tracks = [];
    for (const lane of this.model.lanes) {
      const under = lane.fixed ? HEADER : HEADER + this.pinnedHeight;
      for (let level = 0; lane.shown && level < lane.rows; level++) {
        const y = this.top(lane) + LANE_PAD + level * ROW;
        const seen = begun < under || y + ROW > under || !this.pinnedHeight;
        if (seen && y < lower && y + ROW - ROW_GAP > upper) tracks.push(lane.tracks[level]);
      }
    }
    return {kind: "box", tracks, low: times[0], high: times[1]};
  }

  selectBox(box) {
    if (!box.tracks.length || !(box.high > box.low)) return;
    this.selection = box;
    this.arrows = [];
    const lanes = [...new Set(box.tracks.map((track) => track.lane.label))];
    const info = {kind: "box", start: box.low, end: box.high, lanes,
      ...boxSums(this.model, box.tracks, box.low, box.high)};
    this.usePanel();
    this.showPanel(...boxPanel(info));
    this.request();
    this.onSelect(info);
  }

  /** The range that a drag on the time axis measures. */
  rangeOf({from, to}) {
    const [low, high] = [from.time, this.timeAt(clamp(to.x, 0, this.width))].sort((a, b) => a - b);
    return {kind: "range", low, high};
  }

  selectRange({low, high}) {
    if (!(high > low)) return;
    this.selection = {kind: "range", low, high};
    this.arrows = [];
    const lanes = this.groups.flatMap((group) => group.lanes).filter(({tracks}) => tracks.length);
    const busy = lanes.map((lane) => ({
      label: fullLabel(lane),
      us: lengthOf(lane.tracks.reduce((union, track) => joined(union, partsBetween(track, low, high)), [])),
    }));
    const info = {kind: "range", start: low, end: high, busy: busy.filter(({us}) => us > 0)};
    this.usePanel();
    this.showPanel(...rangePanel(info));
    this.request();
    this.onSelect(info);
  }

  /** The times of the selection: [low, high], or null. */
  selectedTimes() {
    const {selection} = this;
    if (!selection) return null;
    if (selection.kind !== "event") return [selection.low, selection.high];
    return [selection.track.start[selection.index], selection.track.end[selection.index]];
  }

  measureSelection() {
    const times = this.selectedTimes();
    if (times) this.selectRange({low: times[0], high: times[1]});
  }

  zoomToSelection() {
    const times = this.selectedTimes();
    if (times) this.show(this.around({start: times[0], end: times[1]}, 0.1));
  }

  clearSelection() {
    if (!this.selection) return;
    this.selection = null;
    this.arrows = [];
    this.showPanel(make("p", "", NOTHING_SELECTED));
    this.request();
    this.onSelect({kind: "none"});
  }

  /** Gives the panel its height at the first selection: then the lanes have less room. */
  usePanel() {
    if (!this.panel.classList.contains("wtl-unused")) return;
    this.panel.classList.remove("wtl-unused");
    this.resize();
    if (this.selection.kind === "event") this.bringRow(this.selection.track);
  }

  /** Fills the panel; the focus stays in it where it was in what is replaced. */
  showPanel(...children) {
    const focused = this.panel.contains(document.activeElement);
    this.panel.replaceChildren(...children);
    this.panel.scrollTop = 0;
    if (focused) this.panel.focus({preventScroll: true});
  }

  // -------------------------------------------------------------------------------------------------------- search

  /** Finds the events whose name contains `text`, or matches it as a regular expression, and that last at least `least`
   * µs; dims the others. Without both it clears. Returns {count, us}, and `error` where the expression is invalid. */
  search(text, {regex = false, least = 0} = {}) {
    const wanted = String(text ?? "");
    this.searching = null;
    clearMatches(this.model);
    this.changes++;
    this.request();
    if (!wanted && !least) return {count: 0, us: 0};
    let matches = (name) => name.toLowerCase().includes(wanted.toLowerCase());
    if (regex) {
      try {
        const expression = new RegExp(wanted, "i");
        matches = (name) => expression.test(name);
      } catch {
        return {count: 0, us: 0, error: "this is not a regular expression"};
      }
    }
    const match = Uint8Array.from(this.model.names, (name) => Number(matches(name)));
    this.searching = {...markMatches(this.model, match, least), at: null};
    return {count: this.searching.count, us: this.searching.us};
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
}
