// What belongs to an event of the timeline (its launch, its operators, its Python functions, its work on the GPU), and
// what the panel says of what is selected. An event is {track, index}.
import {CAUSES, duration, grouped, h, quantity} from "./elements.js";
import {busyOf, fullLabel, lengthOf, moment, nameOf, numberOf, sumsInside, timesOf, union, withId} from "./timeline_model.js";
import {causeIndex, shortened} from "./timeline_style.js";

const MOST_LISTED = 12; // events of one list
const MOST_ARROWS = 40;
const MOST_CHARACTERS = 4000; // of a name in full
const STACK = "stack"; // the argument that holds the Python stack in traces without Python functions
const OPERATORS = new Set(["cpu", "loader", "mark", "collective"]);
const PYTHON = new Set(["python"]);
const ON_THE_DEVICE = new Set(["kernel", "copy", "collective"]);
const WITHOUT_A_DEVICE = new Set(["cpu", "loader", "collective"]);
const PER_CALL = new Set(["runtime", "kernel", "copy"]);
const PAUSE = 100; // ms until the arguments of an event are asked for: not of those that are only passed by

const lengthOfEvent = ({track, index}) => track.end[index] - track.start[index];
const startOf = ({track, index}) => track.start[index];
const longestFirst = (events) => [...events].sort((a, b) => lengthOfEvent(b) - lengthOfEvent(a));
const same = (a, b) => a.track === b.track && a.index === b.index;

/** What belongs to an event: {launch, operator: events or null; operators, stack: the events around it or its launch,
 * innermost first; work: what it launched on the device, by start}. */
export function relationsOf(model, event) {
  const {lane} = event.track;
  if (lane.launch || lane.operator) {
    const launch = withId(model, numberOf(event, "launch"));
    const operator = withId(model, numberOf(event, "operator"));
    const call = launch || operator;
    const operators = call ? around(model, OPERATORS, call) : [];
    if (operator && !operators.some((one) => same(one, operator))) { // it ran on another thread
      operators.unshift(operator, ...around(model, OPERATORS, operator).filter((one) => !operators.some((o) => same(o, one))));
    }
    return {launch, operator, operators, stack: call ? around(model, PYTHON, call) : [], work: []};
  }
  const operators = around(model, OPERATORS, event);
  const operator = lane.kind === "runtime" ? operators[0] || null : null;
  return {launch: null, operator, operators, stack: around(model, PYTHON, event), work: workOf(model, event)};
}

/** The events of the given kinds, on the same thread, that contain an event, innermost first. */
function around(model, kinds, event) {
  const {lane, level} = event.track;
  const [low, high] = timesOf(event);
  const found = [];
  for (const track of model.tracks) {
    if (!kinds.has(track.lane.kind) || track.lane.thread !== lane.thread || lane.thread < 0) continue;
    const index = track.lane === lane && track.level >= level ? -1 : track.containing(low, high);
    if (index >= 0) found.push({track, index});
  }
  return found.sort((a, b) => lengthOfEvent(a) - lengthOfEvent(b) || b.track.level - a.track.level);
}

/** What an event of a thread launched on the device: itself if it is a call, else the calls and operators inside it. */
function workOf(model, event) {
  const {lane} = event.track;
  const [low, high] = timesOf(event);
  const isInside = (by) => by && by.track.lane.thread === lane.thread && startOf(by) > low - 0.0015 && startOf(by) < high;
  const work = [];
  if (lane.thread < 0) return work;
  for (const {first, size, launch, operator} of model.lanes) {
    for (let number = 0; launch && number < size; number++) {
      const by = withId(model, launch[number] < 0 ? operator[number] : launch[number]);
      if (lane.kind === "runtime" ? by && same(by, event) : isInside(by)) work.push(withId(model, first + number));
    }
  }
  return work.sort((a, b) => startOf(a) - startOf(b));
}

/** The call and the device work to be joined by arrows, the longest first. */
export function arrowsOf(model, event, {launch, work}) {
  if (launch) return [{from: launch, to: event}];
  return longestFirst(work).slice(0, MOST_ARROWS).map((to) => ({from: withId(model, numberOf(to, "launch")) || event, to}));
}

// ---------------------------------------------------------------------------------------------------- the panel

/** What the panel says of an event: elements. `go(event)` selects another; `ask(trace, question)` fetches its arguments. */
export function eventPanel(model, event, relations, go, ask) {
  const {lane} = event.track;
  const stack = stackParts(model, relations, go);
  const isCalled = PER_CALL.has(lane.kind); // then the first question is which line of code called it
  return [
    h("h3", {}, shortened(nameOf(model, event), MOST_CHARACTERS)),
    list(timeFacts(model, event)),
    ...(lane.kind === "idle" ? gapParts(event) : launchParts(model, event, relations, go)),
    ...(isCalled ? stack : []),
    ...(lane.pid && lane.kind !== "python" ? [argumentsPart(model, event, relations, ask)] : []),
    ...workParts(model, relations.work, go),
    ...(lane.kind === "python" ? insideParts(model, event) : []),
    ...(isCalled ? [] : stack),
    ...(lane.kind === "finding" ? findingParts(model, event) : []),
  ];
}

/** What it says of a measured range: how long each lane is busy in it. */
export function rangePanel(lanes, {low, high}) {
  const busy = lanes.map((lane) => ({label: fullLabel(lane), us: busyOf(lane.tracks, low, high)})).filter(({us}) => us > 0);
  return [
    h("h3", {}, `${duration(high - low)} from ${moment(low, 6)} to ${moment(high, 6)}`),
    part("Busy in this range, by lane",
      rows(busy.map(({label, us}) => [duration(us), `${((100 * us) / (high - low)).toFixed(1)} %`, label]))),
  ];
}

function timeFacts(model, event) {
  const [start, end, length] = timesOf(event);
  const name = event.track.name[event.index];
  const own = ownTime(event);
  const step = model.steps.find((one) => one.start <= start && start < one.end);
  return [
    ["Duration", duration(length)],
    ...(own === null ? [] : [["Without nested", duration(own)]]),
    ["Start", moment(start, 6)],
    ["End", moment(end, 6)],
    ["Lane", shortened(fullLabel(event.track.lane))],
    ["Step", step ? shortened(step.name) : "none"],
    [model.loaded ? "In the loaded steps" : "In the whole trace",
      `${grouped(model.count[name])} ×, ${duration(model.us[name])} together, ` +
      `${duration(model.us[name] / model.count[name])} on average`],
  ];
}

/** A CPU event's duration without the events nested in it; null on other lanes, whose levels may be overlaps. */
function ownTime({track: {lane, level, start, end}, index}) {
  if (lane.kind !== "cpu" && lane.kind !== "python") return null;
  const below = lane.tracks[level + 1];
  const nested = below ? below.busy[below.firstStarting(end[index])] - below.busy[below.firstStarting(start[index])] : 0;
  return Math.max(0, end[index] - start[index] - nested);
}

function launchParts(model, event, {launch, operator}, go) {
  const rowsOf = [];
  if (launch) {
    rowsOf.push(["Launched by", link(model, launch, go)], ["Launched at", moment(startOf(launch), 6)],
      ["Queue delay", `${duration(startOf(event) - startOf(launch))} from the call to its begin`]);
  }
  if (operator) rowsOf.push(["Operator", link(model, operator, go)]);
  return rowsOf.length ? [list(rowsOf)] : [];
}

/** The arguments of an event, "…" until the server has found them in the file; and the Python stack among them, where the
 * trace has no Python functions. What has left the panel meanwhile is not filled. */
function argumentsPart(model, event, {stack}, ask) {
  const {lane} = event.track;
  const [start, , length] = timesOf(event);
  const correlation = numberOf(event, "correlation");
  const known = correlation < 0 ? [] : [["correlation", String(correlation)]];
  const waiting = part("Arguments", list([["…", ""], ...known]));
  const answer = async () => {
    if (!waiting.isConnected) return;
    const question = {name: nameOf(model, event), pid: lane.pid, tid: lane.tid, at: lane.file_us + start, duration: length};
    const {[STACK]: written, ...facts} = await ask(lane.trace, question);
    const pairs = [...Object.entries(facts).map(([key, value]) => [shortened(key), argument(key, value)]), ...known];
    const lines = stack.length ? [] : String(written ?? "").split(/[;\n]/).map((line) => line.trim()).filter(Boolean);
    waiting.replaceWith(...(pairs.length ? [part("Arguments", list(pairs))] : []),
      ...stackPart(lines.map((line) => h("span", {}, shortened(line, 600)))));
  };
  setTimeout(() => answer().catch(({message}) =>
    waiting.replaceWith(part("Arguments", list([["not read", message], ...known])))), PAUSE);
  return waiting;
}

function argument(key, value) {
  return key === "bytes" && Number.isFinite(Number(value)) ? quantity(Number(value), "bytes") : shortened(String(value), 600);
}

/** A gap's time by cause, and what ran on the CPU meanwhile. */
function gapParts({track: {lane: {facts: all, palette}, event: numbers}, index}) {
  const facts = all[numbers[index]] ?? {};
  const causes = Object.entries(CAUSES).filter(([cause]) => cause in facts).map(([cause, [, text]]) => [cause,
    h("span", {}, h("i", {style: `background:${palette.css[causeIndex(cause)]}`}), `${facts[cause]}: ${text}`)]);
  const others = Object.entries(facts).filter(([key]) => !(key in CAUSES));
  const pairs = [...causes, ...others.map(([key, value]) => [key, shortened(String(value), 600)])];
  return pairs.length ? [part("The GPU is idle: why", list(pairs))] : [];
}

/** The Python functions and operators around an event, innermost first. */
function stackParts(model, {operators, stack}, go) {
  return [
    ...stackPart(stack.map((one) => link(model, one, go))),
    ...(operators.length ? [part("Operators around it, innermost first", eventRows(model, operators, go))] : []),
  ];
}

function stackPart(lines) {
  return lines.length ? [part("Python stack, innermost first",
    h("ol", {class: "wtl-stack"}, ...lines.map((line) => h("li", {}, line))))] : [];
}

/** What an event launched on the device. */
function workParts(model, work, go) {
  if (!work.length) return [];
  const intervals = union(work.flatMap((one) => timesOf(one).slice(0, 2)));
  const together = work.reduce((sum, one) => sum + lengthOfEvent(one), 0);
  return [
    part("On the GPU", list([
      ["Kernels and copies", grouped(work.length)],
      ["Their time", `${duration(together)}, ${duration(lengthOf(intervals))} without overlaps`],
      ["From, to", `${moment(intervals[0])}, ${moment(intervals.at(-1))}`],
    ])),
    part(work.length > MOST_LISTED ? `The ${MOST_LISTED} longest` : "The longest first", eventRows(model, longestFirst(work), go)),
  ];
}

/** The operators in a Python function, by name. */
function insideParts(model, event) {
  const tracks = model.tracks.filter(({lane: {kind, thread}}) => kind === "cpu" && thread === event.track.lane.thread);
  const sums = sumsInside(model, tracks, timesOf(event).slice(0, 2));
  return sums.count ? [part("Operators inside (nested time counts again)", sumRows(sums))] : [];
}

/** The work during a finding's marks by name: the device's, or the operators where the trace has no device. */
function findingParts(model, {track, index}) {
  const hasDevice = model.lanes.some(({kind}) => kind === "kernel" || kind === "copy");
  const kinds = hasDevice ? ON_THE_DEVICE : WITHOUT_A_DEVICE;
  const tracks = model.tracks.filter(({lane, level}) => kinds.has(lane.kind) && !(lane.kind === "cpu" && level));
  const one = sumsInside(model, tracks, [track.start[index], track.end[index]], true);
  const marks = union(Array.from(track.start, (start, at) => [start, track.end[at]]).flat());
  const all = sumsInside(model, tracks, marks, true);
  const title = (what, {count, us}) => `${what}: ${grouped(count)}, ${duration(us)}`;
  const parts = [
    ...(one.count ? [part(title("In this mark", one), sumRows(one))] : []),
    ...(all.count && track.size > 1 ? [part(title(`In all ${grouped(track.size)} marks`, all), sumRows(all))] : []),
  ];
  return parts.length ? parts : [h("p", {}, "No kernel or copy lies inside these marks.")];
}

function part(title, content) {
  return h("div", {class: "wtl-part"}, h("h4", {}, title), content);
}

/** Names and values: texts or elements. */
function list(pairs) {
  return h("dl", {}, ...pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Rows of a time, a small text and an element or a name. */
function rows(lines) {
  return h("ol", {}, ...lines.map(([time, small, what]) => h("li", {}, h("b", {}, time), small && h("small", {}, small),
    what instanceof Node ? what : h("span", {title: shortened(what, MOST_CHARACTERS)}, shortened(what)))));
}

function sumRows({top}) {
  return rows(top.map(({us, count, name}) => [duration(us), `${grouped(count)} ×`, name]));
}

function eventRows(model, events, go) {
  return rows(events.slice(0, MOST_LISTED).map((one) => [duration(lengthOfEvent(one)), null, link(model, one, go)]));
}

/** An event's name as a button that selects it. */
function link(model, event, go) {
  const name = nameOf(model, event);
  return h("button", {class: "wtl-link", type: "button", title: shortened(name, MOST_CHARACTERS), onclick: () => go(event)},
    shortened(name));
}
