// What the panel under the timeline says of the selection.
import {CAUSES, duration, grouped, quantity} from "./elements.js";
import {causeIndex, cssColour} from "./timeline_colours.js";
import {moment, roundStep, tickLabel} from "./timeline_numbers.js";
import {detailOf, isBackward, relationsOf, unionOf, workOfMarks} from "./timeline_relations.js";
import {facts, make, shortened} from "./timeline_style.js";
import {fullLabel, lengthOf} from "./timeline_tracks.js";

const MOST_LISTED = 12; // events of one list
const MOST_CHARACTERS = 4000; // of a name in full
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
    make("h3", "", shortened(model.names[track.name[index]], MOST_CHARACTERS)),
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
  button.title = shortened(name, MOST_CHARACTERS);
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
    else make("span", "", shortened(what), row).title = shortened(what, MOST_CHARACTERS);
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
