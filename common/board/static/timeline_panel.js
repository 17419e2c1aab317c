// What the panel under the timeline says of the selection.
import {duration, grouped, moment, roundStep, tickLabel} from "./timeline_numbers.js";
import {facts, make, shortened} from "./timeline_style.js";

/** What the panel says of an event. */
export function eventPanel({name, start, duration: length, lane}, id, own, {count, us, steps}) {
  const step = steps.find((one) => one.start <= start && start < one.end);
  return [
    make("h3", "", shortened(name, 4000)),
    facts([["Duration", duration(length)], ...(own === null ? [] : [["Without nested", duration(own)]])]),
    facts([["Start", moment(start, 6)], ["End", moment(start + length, 6)]]),
    facts([["Lane", shortened(lane)], ["Step", step ? shortened(step.name) : "none"]]),
    facts([["In the whole trace", `${grouped(count[id])} ×, ${duration(us[id])} together`],
      ["On average", duration(us[id] / count[id])]]),
  ];
}

/** What it says of a box. */
export function boxPanel({start, end, lanes, count, us, wall, names, top}) {
  const list = make("ol");
  for (const one of top) {
    const row = make("li", "", "", list);
    make("b", "", duration(one.us), row);
    make("small", "", `${grouped(one.count)} ×`, row);
    make("span", "", shortened(one.name), row).title = shortened(one.name, 4000);
  }
  const share = wall / (end - start);
  return [
    make("h3", "", `${duration(end - start)} from ${tickLabel(start, roundStep((end - start) / 200))}, ` +
      (lanes.length === 1 ? shortened(lanes[0]) : `${lanes.length} lanes`)),
    facts([
      ["Events", `${grouped(count)} (different names: ${grouped(names)})`],
      ["Sum of their times", `${duration(us)} inside the box`],
      ["Wall time covered", `${duration(wall)} (${(100 * share).toFixed(1)} %)`],
    ]),
    list,
  ];
}
