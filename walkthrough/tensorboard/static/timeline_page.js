// The Timeline's page: the traced steps as lanes, and the controls above them.
import {chosenRun, h, valueOrReason} from "./elements.js";
import {clockOffset, merged} from "./timeline_beside.js";
import {besideForm, linksForm, searchForm, stepsForm} from "./timeline_forms.js";
import {exact} from "./timeline_numbers.js";

const PAUSE = 250; // ms until a change of the view reaches the address

export async function timeline(site) {
  const {run, trace, form} = chosenRun(site, "timeline");
  const page = h("div", {class: "timeline-page"}, form);
  const [{Timeline}, data] = await Promise.all([
    import("./timeline.js"), valueOrReason(page, answers(site, run, trace))]);
  if (!data?.lanes) {
    return page;
  }
  const here = {run: run.key, ...(trace ? {trace} : {})};
  const container = h("div", {class: "timeline"});
  let drawn = null;
  const {stay, stayNow} = throttled(site);
  const change = (options) => site.go("timeline", withoutNull({...site.options, ...here, ...options}));
  const load = (first, last, view = {from: null, to: null}) => change({first, last, at: null, ...view});
  const search = searchForm(() => drawn, stay);
  const leave = () => {
    stayNow();
    return drawn.selectedTimes() || [drawn.view.start, drawn.view.end];
  };
  form.append(...besideForm(run, trace, {...site.options, align: data.align}, data.byClock, change));
  form.append(...[stepsForm(data, load)].filter(Boolean));
  page.append(h("form", {class: "choose", role: "search", onsubmit: (event) => event.preventDefault()},
    ...search.elements, ...linksForm(site, run, trace, leave)), ...notes(data), container);
  page.addEventListener("shown", () => {
    drawn = new Timeline(container, data, {
      dark: site.dark,
      onView: ({start, end}) => drawn && stay({from: exact(start), to: exact(end)}),
      onSelect: ({at = null}) => stay({at}),
      onLoad: (step) => {
        const margin = 0.02 * (step.end - step.start);
        load(step.index, null, {from: exact(step.start - margin), to: exact(step.end + margin)});
      },
      keys: {
        "/": () => search.text.focus(),
        n: (event) => search.next(event.shiftKey ? -1 : 1),
      },
    });
    site.leaving(() => drawn.destroy());
    restore(drawn, search, site.options);
  });
  return page;
}

/** The lanes of the trace; with those of the trace beside it where the address has one. */
async function answers(site, run, trace) {
  const {first, last, beside, align} = site.options;
  const steps = withoutNull({first, last});
  const one = await atThePlace(site, run, trace, steps);
  if (!run.traces.includes(beside) || beside === (trace || run.traces[0])) {
    return one;
  }
  const {loaded} = one;
  const same = loaded ? {first: loaded.first, last: loaded.last} : steps;
  const other = await site.lanes(run.key, beside, same);
  if (!one.lanes || !other.lanes) {
    return one;
  }
  const offset = clockOffset(one, other);
  const byClock = offset !== null && align !== "step";
  return {...merged(one, other, byClock ? offset : 0), byClock: offset !== null, align: byClock ? "clock" : "step"};
}

/** The lanes of the steps that are asked for; without any, of those where the address's place is. */
async function atThePlace(site, run, trace, steps) {
  const one = await site.lanes(run.key, trace, steps);
  const [from, to] = [Number(site.options.from), Number(site.options.to)];
  const {loaded, steps: every = []} = one;
  if (steps.first !== undefined || !loaded || !(to > from)) {
    return one;
  }
  const stepAt = (time) => Math.max(0, every.findLastIndex(({start}) => start <= time));
  const middle = stepAt((from + to) / 2);
  return loaded.first <= middle && middle <= loaded.last ? one : site.lanes(run.key, trace, {first: stepAt(from)});
}

/** Shows the place that an address holds. */
function restore(drawn, search, options) {
  const [from, to] = [Number(options.from), Number(options.to)];
  if (options.from !== undefined && to > from) {
    drawn.show({start: from, end: to}, false);
  }
  search.show(options);
  if (options.at) {
    drawn.selectAt(options.at);
  }
  if (options.find && !options.at) {
    search.text.focus(); // Enter goes from one to the next
  } else {
    drawn.focus();
  }
}

/** What the reader should know of the trace, or of what is not shown. */
function notes({warnings = [], partial, left_out: leftOut, loaded, steps}) {
  const rows = warnings.map((text) => ["bad", text]);
  if (partial) {
    rows.unshift(["bad", "The trace is truncated: what could be read of it is shown."]);
  }
  if (leftOut) {
    const where = loaded && steps.length > 1 ? " Choose other steps to see them." : "";
    rows.push(["quiet", `${leftOut.toLocaleString("en")} events are not loaded.${where}`]);
  }
  return rows.length ? [h("div", {class: "notes", role: "status"},
    ...rows.map(([kind, text]) => h("p", {class: kind}, text)))] : [];
}

/** `site.stay` after a pause: what changes meanwhile goes with it. `stayNow` ends the pause. */
function throttled(site) {
  let waiting = null;
  const stayNow = () => {
    if (waiting) {
      site.stay?.(waiting);
    }
    waiting = null;
  };
  const stay = (options) => {
    if (!waiting) {
      setTimeout(stayNow, PAUSE);
    }
    waiting = {...waiting, ...options};
  };
  return {stay, stayNow};
}

function withoutNull(options) {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== null && value !== undefined));
}
