// A timeline of a profiler trace, drawn on one canvas.
//
//     import {Timeline} from "./timeline.js";
//     const timeline = new Timeline(element, data, {onSelect(info) {}, onView(view) {}, onLoad(step) {}, dark: false});
//
// `data` is the answer of the server's route /lanes (see walkthrough/trace/timeline/lanes.py); times are in µs. Of a lane only
// start and duration are needed. onSelect gets one of
//     {kind: "event", name, start, duration, lane, at}    at: what `selectAt` takes
//     {kind: "box", start, end, lanes, count, us, wall, names, top: [{name, count, us}]}
//     {kind: "range", start, end, busy: [{label, us}]}
//     {kind: "none"}
// A box counts the events that reach into it, and of each the part inside: `us` is the sum of these parts over all
// levels (so nested time counts again at each level), `wall` the time in which at least one of them runs, `names` how
// many names differ. Of a folded lane only the row in sight counts. onView gets {start, end} whenever the view moves,
// onLoad a step that is not loaded and was clicked.
//
// How a frame stays cheap with 500,000 events: the events of one lane and one level form a Track, held in typed arrays
// sorted by start. A frame paints each visible Track into one line of pixels (`paintTrack`): boxes wider than a pixel
// one by one, and all narrower events that start in the same pixel column at once, found by binary search. So a frame
// costs about (columns x visible rows), however many events there are. Each line is then stretched to its row's height.
//
// The class is built in layers, each in a module: Stage (elements, view), Lanes (groups, places), Marking and Painted
// (drawing), Picking (selection, search), Input (mouse and keys). The data are in timeline_model.js.
//
// Names come from a trace, so from strangers: they reach the page only by `textContent` and `fillText`.
import {Input} from "./timeline_input.js";

export class Timeline extends Input {
  /** Ready for the keys, unless the reader is in a field. */
  focus() {
    if (!this.empty && !document.activeElement?.matches("input, select, textarea")) {
      this.canvas.focus({preventScroll: true, focusVisible: false});
    }
  }
}
