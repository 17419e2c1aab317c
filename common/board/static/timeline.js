// A timeline of a profiler trace, drawn on one canvas.
//
//     import {Timeline} from "./timeline.js";
//     const timeline = new Timeline(element, data, {onSelect(info) {}, dark: false});
//
// `data`: {names: [string],
//          steps: [{name, start, end}],
//          lanes: [{label, kind: "finding" | "cpu" | "runtime" | "loader" | "kernel" | "copy",
//                   start: [], duration: [], name: [], level: []}]}
// with times in µs, `name` an index into `names`, `level` the row of a nested event. onSelect gets one of
//     {kind: "event", name, start, duration, lane}
//     {kind: "box", start, end, lanes, count, us, wall, names, top: [{name, count, us}]}
//     {kind: "none"}
// A box counts the events that reach into it, and of each the part inside: `us` is the sum of these parts over all
// levels (so nested time counts again at each level), `wall` the time in which at least one of them runs, `names` how
// many names differ. Of a folded lane only the row in sight counts.
//
// How a frame stays cheap with 500,000 events: the events of one lane and one level form a Track, held in typed arrays
// sorted by start. A frame paints each visible Track into one line of pixels (`paintTrack`): boxes wider than a pixel
// one by one, and all narrower events that start in the same pixel column at once, found by binary search. So a frame
// costs about (columns x visible rows), however many events there are. Each line is then stretched to its row's height.
//
// Names come from a trace, so from strangers: they reach the page only by `textContent` and `fillText`.
import {Input} from "./timeline_input.js";

export class Timeline extends Input {}
