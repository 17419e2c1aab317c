// The profiler's Trace view of one trace, at a place of the Timeline; and the file itself, for Perfetto.
import {chosenRun, h, link, note, perfetto, traceQuery, valueOrReason} from "./elements.js";

const VIEW = "../pytorch_profiler/trace_embedding.html";
const MOST_BYTES = 500_000_000; // of a text: browsers hold about 2 ** 29 characters
// The viewer's panel of the selection takes its 275 pixels only once something is selected.
const LANES_FIRST = "#analysis:has(#subView:empty) { height: 28px; }";

// A trace's text, of the file as it lies there: gzip or JSON. Throws with the reason where a browser cannot have it.
export async function textOf(blob, most = MOST_BYTES) {
  const [first, second] = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  const gzipped = first === 0x1f && second === 0x8b;
  const reader = (gzipped ? blob.stream().pipeThrough(new DecompressionStream("gzip")) : blob.stream()).getReader();
  const decoder = new TextDecoder(), pieces = [];
  for (let size = 0; ;) {
    const {done, value} = await reader.read().catch(() => {
      throw new Error("the file ends early or is damaged; the Timeline shows what can be read of it");
    });
    if (done) {
      return pieces.join("") + decoder.decode();
    }
    size += value.length;
    if (size > most) {
      reader.cancel().catch(() => {});
      throw new Error(`its text is longer than ${Math.floor(most / 1e6)} MB, too much for a browser`);
    }
    pieces.push(decoder.decode(value, {stream: true}));
  }
}

// The Timeline's zero in the times of the file, in µs; null where no place is asked for, or the server does not know.
async function zeroOf(site, run, file, from, to) {
  if (!(to > from)) {
    return null;
  }
  try {
    return (await site.digest(run.key, file)).begin_ts ?? null;
  } catch {
    return null; // the page says that it shows the whole trace
  }
}

export async function trace(site) {
  const {run, trace: file, form} = chosenRun(site, "trace");
  const left = Object.fromEntries(new URLSearchParams(site.options.back)); // the address that the Timeline had
  const back = {from: site.options.from, to: site.options.to, ...left, run: run.key, trace: file};
  const given = Object.fromEntries(Object.entries(back).filter(([, value]) => value));
  form.append(link("back to the Timeline", () => site.go("timeline", given)));
  const waiting = note("reading the trace …");
  const page = h("div", {class: "trace-page"}, form, h("p", {class: "quiet"}, "In Perfetto: ", ...perfetto(run, file)), waiting);
  page.addEventListener("shown", async () => {
    const [from, to] = [site.options.from, site.options.to].map(Number.parseFloat);
    const download = site.get(`trace?${traceQuery(run, file)}`).then(async (answer) => textOf(await answer.blob()));
    const [text, zero] = await Promise.all([valueOrReason(page, download), zeroOf(site, run, file, from, to)]);
    waiting.remove();
    if (text === null || !site.alive()) {
      return;
    }
    if (to > from && zero === null) {
      page.append(note("Where this place is in the file is not known: the whole of it is shown."));
    }
    const place = zero === null ? {} : {from: zero + from, to: zero + to};
    page.append(view(site, {msg: "data", data: text, name: file || run.name, ...place}));
  });
  return page;
}

// The profiler's own page, which asks for its data with a message once it is ready.
function view(site, message) {
  const frame = h("iframe", {src: VIEW, title: "Trace view"});
  const send = (event) => {
    if (event.source === frame.contentWindow && event.origin === location.origin && event.data?.msg === "ready") {
      frame.contentDocument.head.append(h("style", {}, LANES_FIRST));
      frame.contentWindow.postMessage(message, location.origin);
    }
  };
  addEventListener("message", send);
  site.leaving(() => removeEventListener("message", send));
  return frame;
}
