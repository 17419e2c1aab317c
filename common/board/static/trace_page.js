// The profiler's Trace view of one trace, at a place of the Timeline; and the file itself, for Perfetto.
import {chosenRun, h, note} from "./elements.js";

const VIEW = "../pytorch_profiler/trace_embedding.html";
const FAR = 8; // JSON objects around a name that are tried as its event
const OPERATORS = new Set(["cpu_op", "operator"]);

// The begin of the first step's mark, in µs of the trace's own clock, or of the first operator where there is no step;
// null where there is neither. text: the trace's JSON.
export function begin(text) {
  const steps = [];
  for (let at = text.indexOf('"ProfilerStep#'); at >= 0; at = text.indexOf('"ProfilerStep#', at + 1)) {
    steps.push(eventAround(text, at));
  }
  const marks = steps.filter((event) => event && event.ph === "X" && kind(event) !== "gpu_user_annotation");
  if (marks.length) {
    return earliest(marks);
  }
  try {
    const trace = JSON.parse(text);
    return earliest((trace.traceEvents || trace).filter((event) => event?.ph === "X" && OPERATORS.has(kind(event))));
  } catch {
    return null; // damaged: the viewer says so
  }
}

function kind(event) {
  return String(event.cat).toLowerCase();
}

function earliest(events) {
  const times = events.map(({ts}) => Number(ts)).filter(Number.isFinite);
  return times.length ? times.reduce((first, ts) => Math.min(first, ts)) : null;
}

// The event whose name begins at a place of the text; null where that cannot be told.
function eventAround(text, at) {
  let open = at;
  for (let outer = 0; outer < FAR && open > 0; outer++) {
    open = text.lastIndexOf("{", open - 1);
    let close = at;
    for (let inner = 0; inner < FAR && open >= 0; inner++) {
      close = text.indexOf("}", close + 1);
      if (close < 0) {
        break;
      }
      try {
        const event = JSON.parse(text.slice(open, close + 1));
        if (event.name?.startsWith("ProfilerStep#")) {
          return event;
        }
      } catch {
        // not an object: its end, or its begin, lies further out
      }
    }
  }
  return null;
}

async function read(route) {
  const response = await fetch(route);
  if (!response.ok) {
    throw new Error((await response.json()).error || `the server answered ${response.status}`);
  }
  const blob = await response.blob();
  const [first, second] = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  const gzipped = first === 0x1f && second === 0x8b;
  return new Response(gzipped ? blob.stream().pipeThrough(new DecompressionStream("gzip")) : blob).text();
}

export async function trace(site) {
  const {run, trace: file, form} = chosenRun(site, "trace");
  const route = `trace?${new URLSearchParams(file ? {run: run.key, trace: file} : {run: run.key})}`;
  const back = {run: run.key, trace: file, from: site.options.from, to: site.options.to};
  const given = Object.fromEntries(Object.entries(back).filter(([, value]) => value));
  form.append(h("button", {class: "link", type: "button", onclick: () => site.go("timeline", given)}, "back to the Timeline"));
  const perfetto = h("p", {class: "quiet"}, "In Perfetto: ",
    h("a", {href: route, download: file || run.traces[0]}, "download the trace"), ", open ",
    h("a", {href: "https://ui.perfetto.dev", target: "_blank", rel: "noopener noreferrer"}, "https://ui.perfetto.dev"),
    " (the file stays on your computer) and choose Open trace file.");
  const text = await read(route);
  const [from, to] = [site.options.from, site.options.to].map(Number.parseFloat);
  const zero = Number.isFinite(from) && to > from ? begin(text) : null;
  const message = {msg: "data", data: text, name: file || run.name};
  if (zero !== null) {
    Object.assign(message, {from: zero + from, to: zero + to});
  }
  const frame = h("iframe", {src: VIEW, title: "Trace view", class: "trace-view"});
  frame.style.cssText = "width: 100%; height: calc(100vh - 170px); min-height: 400px; border: 0; background: #fff";
  const send = (event) => {
    if (event.source === frame.contentWindow && event.origin === location.origin && event.data?.msg === "ready") {
      frame.contentWindow.postMessage(message, location.origin);
    }
  };
  addEventListener("message", send);
  const page = h("div", {}, form, perfetto, frame);
  page.addEventListener("shown", () => site.leaving(() => removeEventListener("message", send)));
  if (Number.isFinite(from) && zero === null) {
    page.append(note("This trace marks no step: the whole of it is shown."));
  }
  return page;
}
