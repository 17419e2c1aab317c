// The Timeline's page: the traced steps as lanes; above them which steps are loaded, a second rank, the search, and other
// views of the trace.
import {choice, chosenRun, h, perfetto, time, valueOrReason} from "./elements.js";
import {clockOffset, exact, merged} from "./timeline_model.js";

const PAUSE = 250; // ms until a change of the view reaches the address

export async function timeline(site) {
  const {run, trace, form} = chosenRun(site, "timeline");
  const page = h("div", {class: "timeline-page"}, form);
  const [{Timeline}, data] = await Promise.all([
    import("./timeline.js"), valueOrReason(page, answers(site, run, trace))]);
  if (!data) {
    return page;
  }
  if (![data.lanes, data.steps, data.counters].some((list) => list.length)) {
    page.append(h("p", {}, "This trace has no events to draw."));
    return page;
  }
  const here = {run: run.key, trace};
  const container = h("div", {class: "timeline"});
  let drawn = null;
  const {stay, stayNow} = throttled(site);
  const change = (options) => site.go("timeline", {...site.options, ...here, ...options});
  const load = (first, last, view = {from: null, to: null}) => change({first, last, at: null, ...view});
  const search = searchForm(() => drawn, stay);
  const leave = () => {
    stayNow();
    return drawn.selectedTimes() || [drawn.view.start, drawn.view.end];
  };
  form.append(...besideForm(run, trace, {...site.options, align: data.align}, data.byClock, change), ...stepsForm(data, load));
  page.append(h("form", {class: "choose", role: "search", onsubmit: (event) => event.preventDefault()},
    ...search.elements, ...linksForm(site, run, trace, leave)), ...notes(data), container);
  page.addEventListener("shown", () => {
    drawn = new Timeline(container, data, {
      dark: site.dark,
      onView: ({start, end}) => drawn && stay({from: exact(start), to: exact(end)}),
      onSelect: (at) => stay({at}),
      argumentsOf: (file, question) => site.event(run.key, file, question),
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

/** The lanes of the trace; with those of the trace below it where the address has one. */
async function answers(site, run, trace) {
  const {first, last, beside, align} = site.options;
  const steps = {...(first && {first}), ...(last && {last})};
  const one = await atThePlace(site, run, trace, steps);
  if (!run.traces.includes(beside) || beside === (trace || run.traces[0])) {
    return one;
  }
  const other = await lanesOf(site, run, beside, {first: one.loaded.first, last: one.loaded.last});
  const offset = clockOffset(one, other);
  const byClock = offset !== null && align !== "step";
  return {...merged(one, other, byClock ? offset : 0), byClock: offset !== null, align: byClock ? "clock" : "step"};
}

/** The lanes of a trace, each with the trace, and its time 0 in the file. */
async function lanesOf(site, run, trace, steps) {
  const answer = await site.lanes(run.key, trace, steps);
  return {...answer, lanes: answer.lanes.map((lane) => ({...lane, trace, file_us: answer.file_us}))};
}

/** The lanes of the steps that are asked for; without any, of those where the address's place is. */
async function atThePlace(site, run, trace, steps) {
  const one = await lanesOf(site, run, trace, steps);
  const [from, to] = [Number(site.options.from), Number(site.options.to)];
  const {loaded, steps: every} = one;
  if (steps.first !== undefined || !loaded || !(to > from)) {
    return one;
  }
  const stepAt = (at) => Math.max(0, every.findLastIndex(({start}) => start <= at));
  const middle = stepAt((from + to) / 2);
  return loaded.first <= middle && middle <= loaded.last ? one : lanesOf(site, run, trace, {first: stepAt(from)});
}

/** Shows the place that an address holds. */
function restore(drawn, search, options) {
  const [from, to] = [Number(options.from), Number(options.to)];
  if (options.from !== undefined && to > from) {
    drawn.show({start: from, end: to});
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
      site.stay(waiting);
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

/** "Steps i to j of n", with what goes on from there; nothing where there is one step. `load(first, last)` by index. */
function stepsForm({steps, loaded}, load) {
  const count = steps.length;
  if (count < 2 || !loaded) {
    return [];
  }
  const many = loaded.last - loaded.first + 1;
  const chosen = ({value}) => Math.min(count, Math.max(1, Math.round(Number(value)) || 1)) - 1;
  const go = () => load(...[chosen(first), chosen(last)].sort((a, b) => a - b));
  const field = (value, label) => h("input", {type: "number", min: 1, max: count, value, "aria-label": label,
    onkeydown: (event) => event.key === "Enter" && go()});
  const [first, last] = [field(loaded.first + 1, "First step"), field(loaded.last + 1, "Last step")];
  const button = (text, title, from, possible) => h("button", {type: "button", title, disabled: possible ? null : "",
    onclick: () => load(Math.max(0, from), Math.min(count, from + many) - 1)}, text);
  return [h("span", {class: "steps", role: "group", "aria-label": "Steps that are loaded"},
    h("label", {}, "Steps ", first), h("label", {}, " to ", last), ` of ${count} `,
    h("button", {type: "button", onclick: go}, "load"),
    button("earlier", "Load the steps before these", loaded.first - many, loaded.first > 0),
    button("later", "Load the steps after these", loaded.last + 1, loaded.last < count - 1))];
}

/** The choice of a second trace of the run, and how the two are aligned; `change(options)`. */
function besideForm(run, trace, {beside, align}, byClock, change) {
  const others = run.traces.filter((name) => name !== (trace || run.traces[0]));
  if (!others.length) {
    return [];
  }
  const files = choice("Beside", [["", "none"], ...others.map((name) => [name, name])],
    others.includes(beside) ? beside : "", (name) => change({beside: name || null, align: null}));
  const ways = [["step", "first step"], ...(byClock ? [["clock", "clock"]] : [])];
  return [files, others.includes(beside) ? choice("aligned by", ways, align, (way) => change({align: way})) : ""];
}

/** The search: its elements, and `show(options)`, `next(direction)`. `timeline` gives the drawn timeline. */
function searchForm(timeline, stay) {
  const status = h("span", {class: "quiet found", role: "status"});
  const find = () => {
    const us = readDuration(least.value);
    const regex = isRegex();
    const {count, us: sum, error} = timeline().search(text.value, {regex, least: us ?? 0});
    least.setAttribute("aria-invalid", us === null);
    text.setAttribute("aria-invalid", Boolean(error));
    const result = count ? `${count} event${count === 1 ? "" : "s"}, ${time(sum)}` : "nothing found";
    status.textContent = us === null ? "a duration is 50, 1.5 ms or 2 s" : error || (text.value || us ? result : "");
    stay({find: text.value || null, regex: regex ? 1 : null, least: us || null});
  };
  const next = (direction) => {
    const match = timeline().next(direction);
    status.textContent = match ? `${match.at} of ${match.of}` : status.textContent;
  };
  const onkeydown = (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      next(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      event.preventDefault(); // the browser would empty the field
      event.target.blur(); // the keys are the timeline's again
      timeline().focus();
    }
  };
  const text = h("input", {type: "search", placeholder: "find an event", "aria-label": "Find events by name",
    oninput: find, onkeydown});
  const least = h("input", {type: "text", class: "least", placeholder: "at least, µs",
    "aria-label": "Minimum duration, in µs where no unit is given", oninput: find, onkeydown});
  const expression = h("button", {type: "button", title: "Regular expression", "aria-label": "Regular expression",
    "aria-pressed": "false", onclick: () => {
      expression.setAttribute("aria-pressed", !isRegex());
      find();
    }}, ".*");
  const isRegex = () => expression.getAttribute("aria-pressed") === "true";
  const show = (options) => {
    text.value = options.find || "";
    least.value = options.least || "";
    expression.setAttribute("aria-pressed", Boolean(options.regex));
    if (text.value || least.value) {
      find();
    }
  };
  return {show, next, text, elements: [text, expression, least,
    h("button", {type: "button", onclick: () => next(-1)}, "previous"),
    h("button", {type: "button", onclick: () => next(1)}, "next"), status]};
}

/** "50" or "1.5 ms" in µs, which is the unit where none is given; "" is 0. null where it is no duration. */
function readDuration(text) {
  const [, number, unit = "µs"] = /^\s*(\d+(?:[.,]\d*)?|[.,]\d+)\s*(ns|us|[µμ]s|ms|s)?\s*$/i.exec(text) || [];
  if (number === undefined) {
    return text.trim() ? null : 0;
  }
  return Number(number.replace(",", ".")) * ({ns: 1e-3, ms: 1e3, s: 1e6}[unit.toLowerCase()] || 1);
}

/** Other views of the trace. `leave` brings the address up to date, and gives [from, to] in µs: what is selected or seen. */
function linksForm(site, run, trace, leave) {
  const traceView = () => {
    const [from, to] = leave();
    const back = location.hash.split("?")[1]; // search, selection and steps too
    site.go("trace", {run: run.key, trace, from: from.toFixed(3), to: to.toFixed(3), back});
  };
  const link = (text, title, onclick) => h("button", {class: "link", type: "button", title, onclick}, text);
  return [
    link("Trace view", "The profiler's Trace view at the place that is seen or selected here", traceView),
    h("details", {class: "perfetto"}, h("summary", {}, "Perfetto"), h("p", {}, ...perfetto(run, trace))),
    link("the numbers of this run", null, () => site.go("step", {run: run.key, trace})),
  ];
}
