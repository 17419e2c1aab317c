// What every page is built of: elements, texts of figures, tables, charts, forms.

// Colours that people who see colours differently can tell apart (Okabe and Ito); a report's `meanings` say what they are.
export const ROLES = {
  kernel: ["#009E73"], memcpy: ["#E69F00"], memset: ["#C8B400"], communication: ["#CC79A7"], runtime: ["#56B4E9"],
  dataloader: ["#D55E00"], cpu_exec: ["#0072B2"], other: ["#999999"],
};
// A step with what communicates apart: see walkthrough/trace/communication.py.
export const PARTS = {
  compute: ["#009E73", "a GPU kernel computes, no collective runs"],
  overlapped: ["#5E4FA2", "communication, hidden: other work overlaps it"],
  exposed: ["#CC79A7", "communication alone; waiting for other ranks is part of it"],
  memcpy: ROLES.memcpy, memset: ROLES.memset,
  communication: ["#E8A9C6", "a collective's call on the CPU, and nothing on the GPU"],
  runtime: ROLES.runtime, dataloader: ROLES.dataloader, cpu_exec: ROLES.cpu_exec, other: ROLES.other,
};
export const CAUSES = {
  copy: ["#E69F00", "copying, or inside a call that copies"],
  queued: ["#009E73", "work is launched already: the GPU waits for itself"],
  dataloader: ["#D55E00", "the loop waits for its next batch"],
  synchronisation: ["#CC79A7", "the CPU waits for the GPU"],
  setup: ["#C8B400", "allocating memory, loading code, starting up"],
  launch: ["#0072B2", "launch-bound: the CPU runs operators and launches"],
  other: ["#999999", "Python, or nothing recorded"],
};

// An element with properties, children and text; text is never read as HTML.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) {
      element.addEventListener(key.slice(2), value);
    } else if (key === "class") {
      element.className = value;
    } else if (value !== undefined && value !== null) {
      element.setAttribute(key, value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// 1234567.5 with 1 decimal -> "1,234,567.5"
export function grouped(value, decimals = 0) {
  const [whole, fraction] = value.toFixed(decimals).split(".");
  const groups = whole.replace(/\B(?=(\d{3})+$)/g, ",");
  return fraction ? `${groups}.${fraction}` : groups;
}

// A duration in the unit that suits it, with 4 significant digits: "12.34 ms".
export function duration(us) {
  if (!us) return "0 µs";
  const [size, unit] = Math.abs(us) >= 1e6 ? [1e6, "s"] : Math.abs(us) >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  const value = us / size;
  const digits = Math.max(1, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
  return `${grouped(value, Math.min(3, Math.max(0, 4 - digits)))} ${unit}`;
}

// A counter's value with its unit.
export function quantity(value, unit) {
  if (unit !== "bytes") return `${grouped(value, Number.isInteger(value) ? 0 : 2)}${unit ? ` ${unit}` : ""}`;
  const size = Math.abs(value);
  const [scale, name] = size >= 1e9 ? [1e9, "GB"] : size >= 1e6 ? [1e6, "MB"] : size >= 1e3 ? [1e3, "kB"] : [1, "B"];
  return `${grouped(value / scale, scale === 1 ? 0 : scale === 1e9 ? 2 : 1)} ${name}`;
}

// As in the Timeline, so that a time or a size reads the same on every page.
export function time(us) {
  return us === null || us === undefined ? "–" : duration(us);
}

export function bytes(size) {
  return quantity(size, "bytes");
}

// A number of things per step: whole where it is.
export function amount(count) {
  return Number.isInteger(count) ? `${count}` : count.toFixed(count < 100 ? 1 : 0);
}

// Of what a digest's figures are: "per step", "per typical step", "in this trace".
export function per(digest) {
  return digest.per;
}

// With a capital letter, unless that is code, and a full stop.
export function sentence(text) {
  const begin = /^\S*[._=(]\S/.test(text) ? text[0] : text[0].toUpperCase(); // code keeps its letters
  return `${begin}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}`;
}

// Whether a digest's typical step has parts of communication.
function communicates({typical}) {
  return Object.keys(typical.parts_us).length > 0;
}

// A digest's typical step by part, that of a trace without collectives too.
export function partsOf(digest) {
  const {kernel, ...rest} = digest.typical.breakdown_us;
  return communicates(digest) ? digest.typical.parts_us : {compute: kernel, overlapped: 0, exposed: 0, ...rest};
}

// How the typical steps of these digests are divided: by part where one of them communicates, else by role.
// times(digest): µs of each name.
export function division(digests) {
  return digests.some(communicates) ? {title: "part", names: PARTS, apart: true, times: partsOf}
    : {title: "role", names: ROLES, apart: false, times: ({typical}) => typical.breakdown_us};
}

// The GPUs of a digest by name: "2 × Tesla V100"; cpu: the text where it has none.
export function deviceText({gpus: [gpu, ...others], has_gpu: hasGpu}, cpu = "CPU") {
  const count = others.length ? `${others.length + 1} × ` : "";
  return gpu ? `${count}${gpu.name ?? `GPU ${gpu.id}`}` : hasGpu ? "GPU" : cpu;
}

export function share(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

// plotly reads <b>, <a> and other tags in every text: a name must not be able to use them.
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// The colour of text and of whiskers.
export function ink(site) {
  return site.dark ? "#f5f5f5" : "#212121";
}

export function chart(site, traces, layout = {}, low = false) {
  const host = h("div", {class: low ? "chart low" : "chart", role: "img", "aria-label": layout.label || "chart"});
  const text = ink(site), line = site.dark ? "#555" : "#e0e0e0";
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true};
  const {label, xaxis, yaxis, ...rest} = layout;
  const whole = {
    font: {family: "Roboto, Arial, sans-serif", size: 12, color: text},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: {l: 8, r: 8, t: 8, b: 8}, showlegend: traces.length > 1,
    legend: {orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal"},
    hoverlabel: {align: "left"},
    xaxis: {...axis, ...xaxis}, yaxis: {...axis, ...yaxis}, ...rest,
  };
  host.drawn = new Promise((done) => {
    // plotly measures its element, so it draws once that is on the page
    const draw = () => {
      if (host.isConnected) {
        const plot = Plotly.newPlot(host, traces, whole, {displayModeBar: false, responsive: true});
        plot.then(() => site.alive() && done());
        site.leaving(() => plot.then(() => Plotly.purge(host))); // plotly cannot end a chart that it still draws
      } else if (site.alive()) {
        requestAnimationFrame(draw);
      }
    };
    if (window.Plotly) {
      draw();
    } else {
      host.textContent = "no charts: plotly is not installed where TensorBoard runs (pip install plotly)";
    }
  });
  return host;
}

// A bar for each row, [label, {name: µs}, divisor], stacked of `names`, {name: [colour, …]}. It shows µs / divisor, in `unit`: ms
// unless both are given.
export function stackedBars(site, names, rows, {unit = "ms", low = false, ...layout}) {
  const bars = Object.entries(names).map(([name, [colour]]) => ({
    type: "bar", orientation: "h", name, marker: {color: colour},
    y: rows.map(([label]) => plain(label)), x: rows.map(([, us, divisor = 1e3]) => us[name] / divisor),
    hovertemplate: `${low ? "" : "%{y}<br>"}${name}: %{x:.2f} ${unit}<extra></extra>`,
  })).filter(({x}) => x.some((number) => number > 0));
  return chart(site, bars, {barmode: "stack", ...layout}, low);
}

// A click on a bar goes to a page with options(number of the bar).
export function barsLead(site, host, page, options) {
  host.drawn.then(() => host.on("plotly_click", ({points: [{pointNumber}]}) => site.go(page, options(pointNumber))));
  return host;
}

// headers: ">title" for a column of numbers.
export function table(headers, rows) {
  const right = (header) => (header.startsWith(">") ? "number" : "");
  const classes = headers.map((header) => (header === "name" ? "name" : right(header)));
  return h("div", {class: "scroll"}, h("table", {},
    h("thead", {}, h("tr", {}, ...headers.map((header) => h("th", {class: right(header), scope: "col"}, header.replace(">", ""))))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, at) => h("td", {class: classes[at]}, cell ?? "–")))))));
}

export function card(value, label) {
  return h("div", {class: "card"}, h("b", {}, value), h("span", {}, label));
}

// A name of `colours`, {name: [colour, …]}, with its colour.
export function named(colours, name) {
  return h("span", {}, h("i", {class: "swatch", style: `background:${colours[name][0]}`}), name);
}

// A button that looks like a link. more: further classes. label: what it does, where its text does not say it.
export function link(text, onclick, {more = "", label} = {}) {
  return h("button", {class: `link ${more}`.trim(), type: "button", "aria-label": label, onclick}, text);
}

export function choices(...children) {
  return h("form", {class: "choose", onsubmit: (event) => event.preventDefault()}, ...children);
}

export function choice(label, values, chosen, change) {
  const select = h("select", {onchange: (event) => change(event.target.value)},
    ...values.map(([value, text]) => h("option", {value}, text)));
  select.value = chosen;
  return h("label", {}, `${label} `, select);
}

export function withTraces(site) {
  return site.runs.filter((run) => run.traces.length);
}

export function goneText(key) {
  return `the run ${key} is not here, or no longer`;
}

// The run in the address, else the first; with the form to choose the run, and its trace where it has several. Throws where
// the run of the address is not there: another one is never shown in its place.
export function chosenRun(site, page) {
  const runs = withTraces(site);
  if (!runs.length) {
    throw new Error("no run with a trace is in the log folder yet");
  }
  const asked = site.options.run, run = asked ? runs.find(({key}) => key === asked) : runs[0];
  const form = choices(choice("Run", runs.map(({key, name}) => [key, name]), run?.key ?? "", (key) => site.go(page, {run: key})));
  if (!run) {
    throw Object.assign(new Error(goneText(asked)), {form});
  }
  const trace = run.traces.includes(site.options.trace) ? site.options.trace : undefined;
  site.watch?.(run, trace);
  if (run.traces.length > 1) {
    form.append(choice("Trace", run.traces.map((name) => [name, name]), trace || run.traces[0],
      (name) => site.go(page, {run: run.key, trace: name})));
  }
  return {run, trace, form};
}

export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

export function wideSection(title, ...children) {
  return h("section", {class: "wide"}, h("h2", {}, title), ...children);
}

export function bad(text) {
  return h("p", {class: "bad"}, text);
}

export function note(text) {
  return h("p", {class: "quiet"}, text);
}

// A ratio with its interval, grey without a measurable difference; null where there is none.
export function ratioText(ratio) {
  return ratio && h("span", {class: ratio.resolved ? "" : "quiet"}, ratio.text);
}

// The value of a promise; null where it fails, and then the page shows the reason and keeps its form.
export async function valueOrReason(page, promise) {
  try {
    return await promise;
  } catch (error) {
    page.append(failure(error));
    return null;
  }
}

// Why a page cannot be shown, with a button that asks again: page.js draws the page anew on the event "again".
export function failure(error) {
  const again = ({target}) => target.dispatchEvent(new Event("again", {bubbles: true}));
  return h("p", {class: "bad failed"}, `This cannot be shown: ${error.message} `,
    h("button", {type: "button", onclick: again}, "try again"));
}

// A trace in an address: its run, and its file where the run has several.
export function traceQuery(run, file) {
  return new URLSearchParams(file ? {run: run.key, trace: file} : {run: run.key});
}

// How to open a trace in Perfetto.
export function perfetto(run, file) {
  return [h("a", {href: `trace?${traceQuery(run, file)}`, download: file || run.traces[0] || ""}, "download the trace"), ", open ",
    h("a", {href: "https://ui.perfetto.dev", target: "_blank", rel: "noopener noreferrer"}, "https://ui.perfetto.dev"),
    " and choose Open trace file: it is read in the browser and not uploaded."];
}

// Parts of a page, each built by a function; where one fails, the reason, so that the rest of the page stays.
export function parts(...builders) {
  return builders.map((build) => {
    try {
      return build();
    } catch (error) {
      return bad(`A part of this page cannot be shown: ${error.message}`);
    }
  });
}

// A kernel's name, shortened as in every text; whole where the mouse rests on it, and where it is pressed.
function kernelName({name, short}) {
  if (!short || short === name) {
    return name;
  }
  const toggle = ({currentTarget: button}) => {
    const whole = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", whole);
    button.textContent = whole ? name : short;
  };
  return h("button", {class: "whole", type: "button", title: name, "aria-expanded": "false", onclick: toggle}, short);
}

// Tables of many rows: sorted by a press on a column's header, filtered by a text, more rows on demand.
const FIRST = 30; // rows, until all are asked for
const FEW = 10; // rows that need no filter

// columns: [{title, value(row): what it is sorted by, cell(row): what is shown, number, name}]. Rows have a `name`, by which
// they are filtered.
export function bigTable({label, columns, rows}) {
  const chosen = {title: null, descending: true, query: "", all: false};
  const body = h("tbody"), count = h("span", {class: "quiet", role: "status"});
  const more = link("", () => { chosen.all = true; draw(); });
  const heads = columns.map((column) => h("th", {class: column.number ? "number" : "", scope: "col"}, column.value
    ? h("button", {class: "sort", type: "button", onclick: () => order(column)}, column.title) : column.title));

  function order(column) {
    const again = chosen.title === column.title;
    chosen.descending = again ? !chosen.descending : Boolean(column.number);
    chosen.title = column.title;
    draw();
  }

  function sorted(shown) {
    const column = columns.find(({title, value}) => value && title === chosen.title);
    if (!column) {
      return shown;
    }
    const known = (row) => column.value(row) !== null && column.value(row) !== undefined;
    const compare = (one, other) => (typeof one === "number" ? one - other : String(one).localeCompare(String(other), undefined, {numeric: true}));
    const direction = chosen.descending ? -1 : 1;
    return [...shown.filter(known).sort((one, other) => direction * compare(column.value(one), column.value(other))),
      ...shown.filter((row) => !known(row))];
  }

  function draw() {
    const query = chosen.query.toLowerCase();
    const shown = sorted(query ? rows.filter(({name}) => name.toLowerCase().includes(query)) : rows);
    const visible = chosen.all ? shown : shown.slice(0, FIRST);
    body.replaceChildren(...visible.map((row) => h("tr", {class: row.class}, ...columns.map((column) =>
      h("td", {class: column.name ? "name" : column.number ? "number" : ""}, column.cell(row) ?? "–")))));
    columns.forEach((column, at) => {
      const by = column.value && column.title === chosen.title;
      heads[at].setAttribute("aria-sort", by ? (chosen.descending ? "descending" : "ascending") : "none");
    });
    count.textContent = query ? `${shown.length} of ${rows.length}` : "";
    more.textContent = `show all ${shown.length}`;
    more.hidden = visible.length === shown.length;
  }

  draw();
  const filter = h("input", {type: "search", placeholder: "filter by name", "aria-label": `Filter ${label}`,
    oninput: ({target}) => { chosen.query = target.value; draw(); }});
  return h("div", {class: "big"}, rows.length > FEW ? h("p", {class: "filter"}, filter, " ", count) : null,
    h("div", {class: "scroll"}, h("table", {"aria-label": label}, h("thead", {}, h("tr", {}, ...heads)), body)), more);
}

// A column of numbers. value(row): null where a row has none.
export function numberColumn(title, value, text) {
  return {title, number: true, value, cell: (row) => (value(row) === null ? "–" : text(value(row)))};
}

export const NAME_COLUMN = {title: "name", name: true, value: ({name}) => name, cell: kernelName};

// A column with a link to where the events of a row's name are in the timeline. place(row): the options of that page.
export function timelineColumn(site, place) {
  return {title: "", cell: (row) => {
    const options = place(row);
    return options && link("timeline", () => site.go("timeline", options), {label: `Show ${row.name} in the timeline`});
  }};
}
