// The four pages: each takes the site (options, runs, data) and returns an element to show.
// Colours that people who see colours differently can tell apart (Okabe and Ito).
export const ROLES = {
  kernel: ["#009E73", "a GPU kernel runs"],
  memcpy: ["#E69F00", "the GPU only copies"],
  memset: ["#C8B400", "the GPU only sets memory"],
  communication: ["#CC79A7", "only a collective that the trace marks; NCCL's kernels count as kernel"],
  runtime: ["#56B4E9", "the GPU is idle, the CPU in a CUDA call"],
  dataloader: ["#D55E00", "the loop waits for its next batch"],
  cpu_exec: ["#0072B2", "the CPU runs operators"],
  other: ["#999999", "nothing recorded: Python, most likely"],
};
const CAUSES = {
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

export function time(us) {
  const size = Math.abs(us);
  return size >= 1e6 ? `${(us / 1e6).toFixed(2)} s` : size >= 1e3 ? `${(us / 1e3).toFixed(1)} ms` : `${us.toFixed(1)} µs`;
}

export function bytes(size) {
  const [scale, unit] = size >= 1e9 ? [1e9, "GB"] : size >= 1e6 ? [1e6, "MB"] : size >= 1e3 ? [1e3, "kB"] : [1, "B"];
  return `${(size / scale).toFixed(unit === "GB" ? 2 : unit === "B" ? 0 : 1)} ${unit}`;
}

export function share(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

// plotly reads <b>, <a> and other tags in every text: a name must not be able to use them.
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// The colour of text and of whiskers.
function ink(site) {
  return site.dark ? "#f5f5f5" : "#212121";
}

function chart(site, traces, layout = {}, low = false) {
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
        done(Plotly.newPlot(host, traces, whole, {displayModeBar: false, responsive: true}));
        site.leaving(() => Plotly.purge(host));
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

function table(headers, rows) {
  const right = (header) => (header.startsWith(">") ? "number" : "");
  const classes = headers.map((header) => (header === "name" ? "name" : right(header)));
  return h("div", {class: "scroll"}, h("table", {},
    h("thead", {}, h("tr", {}, ...headers.map((header) => h("th", {class: right(header), scope: "col"}, header.replace(">", ""))))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, at) => h("td", {class: classes[at]}, cell ?? "–")))))));
}

function card(value, label) {
  return h("div", {class: "card"}, h("b", {}, value), h("span", {}, label));
}

function swatch(colour) {
  return h("i", {class: "swatch", style: `background:${colour}`});
}

function choice(label, values, chosen, change) {
  const select = h("select", {onchange: (event) => change(event.target.value)},
    ...values.map(([value, text]) => h("option", {value}, text)));
  select.value = chosen;
  return h("label", {}, `${label} `, select);
}

function withTraces(site) {
  return site.runs.filter((run) => run.traces.length);
}

// The run in the address, else the first; with the form to choose the run, and its trace where it has several.
function chosenRun(site, page) {
  const runs = withTraces(site);
  if (!runs.length) {
    throw new Error("no run with a trace is in the log folder yet");
  }
  const run = runs.find(({key}) => key === site.options.run) || runs[0];
  const form = h("form", {class: "choose", onsubmit: (event) => event.preventDefault()},
    choice("Run", runs.map(({key, name}) => [key, name]), run.key, (key) => site.go(page, {run: key})));
  const trace = run.traces.includes(site.options.trace) ? site.options.trace : undefined;
  if (run.traces.length > 1) {
    form.append(choice("Trace", run.traces.map((name) => [name, name]), trace || run.traces[0],
      (name) => site.go(page, {run: run.key, trace: name})));
  }
  return {run, trace, form};
}

// 1. The ladder: images/s of every step, relative to the baseline, and its step time by activity.
export async function ladder(site) {
  const {ladders, original} = await site.ladders();
  const page = h("div", {});
  if (!ladders.length) {
    page.append(h("h1", {}, "Runs"), withTraces(site).length ? runsTable(site) : note("No run is in the log folder yet."));
    page.append(...problems(site));
    return page;
  }
  for (const shown of ladders) {
    page.append(h("h1", {}, shown.title), h("p", {}, h("b", {}, shown.summary)), h("div", {class: "grid"},
      section("Images/s", speedChart(site, shown),
        note("The median of the timed windows, without a profiler; the whiskers are the range of the windows.")),
      section("Relative to the baseline", relativeChart(site, shown, original),
        note(shown.intervals), comparable(shown, original)
          ? note(`Orange: the course's original ladder, on a ${original.device}, one run per step, no interval published.`) : null),
      breakdowns(site, shown),
      h("section", {class: "wide"}, h("h2", {}, "The steps"), ladderTable(site, shown))));
  }
  const others = site.runs.filter((run) => run.traces.length && !run.step);
  if (others.length) {
    page.append(h("h1", {}, "Other runs"), runsTable({...site, runs: others}));
  }
  page.append(...problems(site));
  return page;
}

function problems(site) {
  return site.runs.filter((run) => run.problem).map((run) => h("p", {class: "bad"}, run.problem));
}

function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

function note(text) {
  return h("p", {class: "quiet"}, text);
}

// A click on a row's bar opens that step.
function opensSteps(site, host, rows) {
  host.drawn.then(() => host.on("plotly_click", (event) => site.go("step", {run: rows[event.points[0].pointNumber].run})));
  return host;
}

function speedChart(site, {rows}) {
  const speeds = rows.map((row) => row.samples_per_second.median);
  return opensSteps(site, chart(site, [{
    type: "bar", x: rows.map((row) => plain(row.step)), y: speeds, marker: {color: "#0072B2"},
    error_y: {type: "data", symmetric: false, color: ink(site), array: rows.map((row, at) => row.high - speeds[at]),
      arrayminus: rows.map((row, at) => speeds[at] - row.low)},
    hovertemplate: "%{x}<br>%{y:.1f} images/s<extra></extra>",
  }], {label: "Images/s of each step", yaxis: {rangemode: "tozero"}}), rows);
}

// The published ladder stands only beside one of its own model.
function comparable({rows}, original) {
  return rows.some((row) => row.model === original.model && row.step in original.relative);
}

function relativeChart(site, {rows, ...shown}, original) {
  const steps = rows.map((row) => plain(row.step));
  const published = {type: "bar", name: original.device, x: steps, y: rows.map((row) => original.relative[row.step] ?? null),
    marker: {color: "#E69F00"}, hovertemplate: `%{x}<br>%{y:.2f}x<extra>${plain(original.device)}</extra>`};
  return opensSteps(site, chart(site, [
    {type: "bar", name: "here", x: steps, y: rows.map((row) => row.relative.ratio),
      marker: {color: rows.map((row) => (row.relative.resolved ? "#0072B2" : "#999999"))},
      customdata: rows.map((row) => row.relative.text), hovertemplate: "%{x}<br>%{customdata}<extra>here</extra>",
      error_y: {type: "data", symmetric: false, color: ink(site), array: rows.map((row) => row.relative.high - row.relative.ratio),
        arrayminus: rows.map((row) => row.relative.ratio - row.relative.low)}},
    ...(comparable({rows, ...shown}, original) ? [published] : []),
  ], {label: "Throughput relative to the baseline", barmode: "group", yaxis: {rangemode: "tozero", ticksuffix: "x"}}), rows);
}

// A stacked bar for each step: ms per step, or µs per image. Bars appear as the traces are read; a failure is shown.
function breakdowns(site, {rows}) {
  const digests = []; // [row, digest], in the order of the rows
  let unit = "step";
  const container = h("div", {}, note("reading the traces …"));
  const draw = () => {
    const scale = unit === "image" ? ([row]) => 1 / row.batch_size : () => 1e-3;
    const shortUnit = unit === "image" ? "µs" : "ms";
    const bars = Object.entries(ROLES).map(([role, [colour]]) => ({
      type: "bar", orientation: "h", name: role, marker: {color: colour},
      y: digests.map(([row]) => plain(row.step)), x: digests.map((pair) => pair[1].steps.breakdown_us[role] * scale(pair)),
      hovertemplate: `%{y}<br>${role}: %{x:.1f} ${shortUnit}<extra></extra>`,
    })).filter((bar) => bar.x.some((value) => value > 0));
    container.replaceChildren(opensSteps(site, chart(site, bars, {label: "Step time by activity", barmode: "stack",
      xaxis: {title: {text: unit === "image" ? "µs per image" : "ms per step"}}, yaxis: {autorange: "reversed"}}), digests.map(([row]) => row)));
  };
  const panel = h("section", {class: "wide"}, h("h2", {}, "Step time by activity, from the trace"),
    h("form", {class: "choose", onsubmit: (event) => event.preventDefault()},
      choice("in", [["step", "ms per step"], ["image", "µs per image"]], "step", (chosen) => {
        unit = chosen;
        draw();
      })), container,
    note("The profiler slows the program, its CPU side most: compare the proportions here, and read the speed from the windows above."));
  for (const row of rows.filter((candidate) => candidate.has_trace)) {
    site.digest(row.run).then((digest) => {
      if (site.alive() && digest.steps) {
        digests.push([row, digest]);
        digests.sort((one, other) => rows.indexOf(one[0]) - rows.indexOf(other[0]));
        draw();
      }
    }).catch((error) => panel.append(h("p", {class: "bad"}, `${row.step}: ${error.message}`)));
  }
  return panel;
}

function ladderTable(site, {rows}) {
  const link = (row) => (row.has_trace
    ? h("button", {class: "link", type: "button", onclick: () => site.go("step", {run: row.run})}, row.step) : row.step);
  const predicted = rows.some((row) => row.gpu_bytes_predicted); // by `python -m common fit`, for the step on a GPU
  return table(["step", ">images/s", ">vs step before", ">vs baseline", ">batch", ">windows", ">peak memory",
    ...(predicted ? [">on a GPU, predicted"] : []), "notes"],
    rows.map((row) => [link(row), row.samples_per_second.median.toFixed(1), ratioText(row.gain), ratioText(row.relative),
      `${row.batch_size}`, `${row.low.toFixed(1)} to ${row.high.toFixed(1)}`, bytes(row.peak_memory_bytes.allocated),
      ...(predicted ? [row.gpu_bytes_predicted ? bytes(row.gpu_bytes_predicted) : "-"] : []), row.notes.join("; ")]));
}

// A ratio with its interval, grey where it is not resolved; null where there is none.
function ratioText(ratio) {
  return ratio && h("span", {class: ratio.resolved ? "" : "quiet"}, ratio.text);
}

// The runs with their main figures, which come as the traces are read.
function runsTable(site) {
  const rows = withTraces(site).map((run) => {
    const open = h("button", {class: "link", type: "button", onclick: () => site.go("step", {run: run.key})}, run.name);
    const cells = [0, 1, 2, 3, 4].map(() => h("span", {class: "quiet"}, "…"));
    site.digest(run.key).then((digest) => {
      if (digest.steps) {
        const gpu = digest.gpus[0];
        const texts = [gpu?.name ?? (digest.has_gpu ? "GPU" : "CPU only"), time(digest.steps.mean_us), share(gpu?.utilization),
          share(gpu?.tensor_core_share), digest.verdict];
        cells.forEach((cell, at) => cell.replaceWith(texts[at]));
        if (digest.matrix_units === "Matrix cores") {
          runs.querySelectorAll("th")[4].textContent = digest.matrix_units;
        }
      }
    }).catch((error) => cells.forEach((cell, at) => cell.replaceWith(at === 4 ? error.message : "")));
    return [open, ...cells];
  });
  const runs = table(["run", "device", ">step time", ">GPU busy", ">Tensor Cores", "verdict"], rows);
  return runs;
}

// The value of a promise; null where it fails, and then the page shows the reason and keeps its form.
async function valueOrReason(page, promise) {
  try {
    return await promise;
  } catch (error) {
    page.append(h("p", {class: "bad"}, `This cannot be shown: ${error.message}`));
    return null;
  }
}

// 2. One step: where its time goes, why the GPU waits, what to do.
export async function step(site) {
  const {run, trace, form} = chosenRun(site, "step");
  const page = h("div", {}, form, h("h1", {}, run.name));
  const digest = await valueOrReason(page, site.digest(run.key, trace));
  if (!digest?.steps) {
    return page;
  }
  digest.warnings.forEach((warning) => page.append(h("p", {class: "bad"}, warning)));
  page.append(cards(digest), advice(digest));
  const mark = (item) => site.go("timeline", {run: run.key, ...(trace && {trace}), find: item.what});
  const grid = h("div", {class: "grid"}, findings(digest, mark), breakdown(site, digest), ...digest.idle.map((idle) => idleCauses(digest, idle)),
    ...digest.memory.map((memory) => memoryCurve(site, memory)), copies(digest), kinds(digest));
  const names = digest.kernels.length ? kernels(digest) : operators(digest);
  grid.append(names);
  changeFromBefore(site, run, digest).then((change) => change && names.before(change));
  page.append(grid);
  return page;
}

function cards(digest) {
  const {steps} = digest, first = digest.gpus[0];
  const [low, high] = [Math.min(...steps.us), Math.max(...steps.us)];
  const range = high > 1.05 * low ? `, ${time(low)} to ${time(high)}` : "";
  const row = h("div", {class: "cards"},
    card(time(steps.mean_us), steps.marked ? `per step (mean of ${steps.names.length}${range})` : "the whole trace: it marks no steps"));
  if (!first) {
    row.append(card("CPU", digest.has_gpu ? "the trace holds no event of a GPU" : "no GPU in this trace"));
    return row;
  }
  for (const gpu of digest.gpus) {
    const which = digest.gpus.length > 1 ? `GPU ${gpu.id}: ` : "";
    row.append(card(share(gpu.utilization), `${which}busy: at least one kernel runs`),
      card(share(gpu.sm_efficiency), `${which}SMs at work, estimated`),
      card(gpu.occupancy_percent === null ? "–" : `${gpu.occupancy_percent.toFixed(1)} %`, `${which}occupancy, estimated`),
      card(share(gpu.tensor_core_share), `${which}${digest.matrix_units}, of the kernel time${gpu.unsure >= 0.005 ? `; unknown: ${share(gpu.unsure)}` : ""}`));
  }
  row.append(card(share(digest.eligible_share), "of the kernel time in operators that could use them"),
    card(first.name ?? `GPU ${first.id}`, "device"));
  return row;
}

function advice(digest) {
  const items = digest.advice.map((item) => h("li", {}, h("b", {}, item.title), `: ${item.gain}`,
    item.step ? ` (steps/${item.step}.py)` : "", h("div", {class: "quiet"}, `${item.why}.`)));
  const number = (title) => digest.advice.findIndex((item) => item.title === title) + 1;
  const together = digest.combined.map(({titles, estimated_gain}) => `${titles.map(number).join(" + ")}: ${estimated_gain.toFixed(2)}x`);
  return h("div", {class: "verdict"}, h("b", {}, digest.verdict), items.length ? h("ol", {}, ...items) : null,
    together.length ? h("div", {}, `Together: ${together.join("; ")}`) : null);
}

// What stands out, whether a step treats it or not. mark(finding): shows where it is.
function findings(digest, mark) {
  const items = digest.findings.map((item) => h("li", {}, h("b", {}, item.what), `: ${time(item.us_per_step)} per step`,
    item.estimated_gain >= 1.01 && item.estimated_gain < 100 ? `; about ${item.estimated_gain.toFixed(2)}x as fast without` : "",
    item.marked ? h("button", {class: "link mark", type: "button", onclick: () => mark(item)}, "show in the timeline") : null,
    h("div", {class: "quiet"}, `${item.why}.`), h("div", {}, `${item.do}.`)));
  return items.length ? h("section", {class: "wide"}, h("h2", {}, "What stands out"), h("ul", {}, ...items)) : null;
}

function breakdown(site, {steps}) {
  const parts = Object.entries(ROLES).filter(([role]) => steps.breakdown_us[role] > 0);
  const bars = parts.map(([role, [colour]]) => ({
    type: "bar", orientation: "h", name: role, y: [""], x: [steps.breakdown_us[role] / 1e3], marker: {color: colour},
    hovertemplate: `${role}: %{x:.2f} ms<extra></extra>`,
  }));
  return section("Mean step", chart(site, bars, {label: "Mean step", barmode: "stack", showlegend: false,
    xaxis: {ticksuffix: " ms", range: [0, steps.mean_us / 1e3]}, yaxis: {showgrid: false}, bargap: 0}, true),
  table(["role", ">time", ">share", ""], parts.map(([role, [colour, meaning]]) => [h("span", {}, swatch(colour), role),
    time(steps.breakdown_us[role]), share(steps.breakdown_us[role] / steps.mean_us), meaning])));
}

function idleCauses(digest, idle) {
  const count = digest.steps.names.length;
  const rows = Object.entries(CAUSES).filter(([cause]) => idle.causes_us[cause] > 0.0005 * idle.total_us);
  return section(`GPU ${idle.device} runs no kernel for ${time(idle.total_us / count)} per step. Meanwhile:`,
    table(["cause", ">time", ">share", ""], rows.map(([cause, [colour, meaning]]) => [h("span", {}, swatch(colour), cause),
      time(idle.causes_us[cause] / count), share(idle.causes_us[cause] / idle.total_us), meaning])));
}

function memoryCurve(site, memory) {
  const label = memory.device < 0 ? "the CPU" : `GPU ${memory.device}`;
  const peak = memory.peak_allocated === null ? `grew ${bytes(memory.growth)} while tracing; the trace records no totals`
    : `peak ${bytes(memory.peak_allocated)}${memory.peak_reserved ? `, reserved ${bytes(memory.peak_reserved)}` : ""}`;
  const panel = section(`Memory of ${label}: ${peak}`);
  const curve = (name, values, colour) => ({type: "scatter", mode: "lines", name, x: memory.time_us.map((us) => us / 1e3),
    y: values.map((size) => (size === null ? null : size / 1e6)), line: {shape: "hv", width: 1.5, color: colour}});
  const curves = [curve("allocated", memory.allocated, "#0072B2"),
    ...(memory.device < 0 ? [] : [curve("reserved", memory.reserved, "#E69F00")])] // a CPU's allocator reserves nothing
    .filter(({y}) => y.some((value) => value));
  if (curves.length) {
    panel.append(chart(site, curves, {label: `Memory of ${label} over time`, xaxis: {title: {text: "ms"}},
      yaxis: {title: {text: "MB"}, rangemode: "tozero"}}));
  }
  if (memory.at_peak.length) {
    panel.append(note("Top allocations: allocated while tracing and alive at the peak, by operator"),
      table([">size", "name"], memory.at_peak.map(([name, size]) => [bytes(size), name])));
  }
  return panel;
}

function copies(digest) {
  const directions = [["h2d", "to the GPU"], ["d2h", "from the GPU"], ["d2d", "within the GPU"]];
  const rows = directions.map(([key, text]) => [text, digest.copies[key]]).filter(([, copied]) => copied.count);
  if (!rows.length) {
    return null;
  }
  return section(`Copies in ${inSteps(digest)}${digest.step_bytes ? `: ${bytes(digest.step_bytes)} per step to the GPU` : ""}`,
    table(["", ">copies", ">size", ">time", ">GB/s", ">pinned", ">pageable"], rows.map(([text, copied]) => [text, `${copied.count}`,
      bytes(copied.bytes), time(copied.us), copied.gigabytes_per_second?.toFixed(1), share(copied.bytes ? copied.pinned_bytes / copied.bytes : null),
      share(copied.bytes ? copied.pageable_bytes / copied.bytes : null)])));
}

// A kernel's name, shortened as in every text; whole where the mouse rests on it, and where it is clicked.
function kernelName({name, short}) {
  if (!short || short === name) {
    return name;
  }
  const toggle = ({target}) => { target.textContent = target.textContent === short ? name : short; };
  return h("span", {title: name, onclick: toggle}, short);
}

// The time of the kernels by what they do, per step.
function kinds(digest) {
  const rows = Object.entries(digest.kinds), total = rows.reduce((sum, [, us]) => sum + us, 0);
  return rows.length ? section("Kernels by kind, per step", table(["kind", ">time", ">share"],
    rows.map(([kind, us]) => [kind, time(us), share(us / total)]))) : null;
}

function inSteps(digest) {
  const {names, marked} = digest.steps;
  return !marked ? "the whole trace" : names.length > 1 ? `${names.length} steps` : "one step";
}

function kernels(digest) {
  const answer = (uses) => (uses === null ? "unknown" : uses ? "yes" : "no");
  return h("section", {class: "wide"}, h("h2", {}, `Kernels: ${digest.kernel_count}, ${time(digest.kernel_us)} in ${inSteps(digest)}`),
    table([">time", ">share", ">count", ">mean", digest.matrix_units, "name"], digest.kernels.slice(0, 30).map((kernel) => [time(kernel.us),
      share(kernel.us / digest.kernel_us), `${kernel.count}`, time(kernel.us / kernel.count), answer(kernel.tensor_cores), kernelName(kernel)])));
}

function operators(digest) {
  return h("section", {class: "wide"},
    h("h2", {}, `Operators on the CPU, self time: ${time(digest.operator_us)} in ${inSteps(digest)}`),
    table([">time", ">share", ">count", ">mean", "name"], digest.operators.slice(0, 30).map((operator) => [time(operator.us),
      share(operator.us / digest.operator_us), `${operator.count}`, time(operator.us / operator.count), operator.name])));
}

// What changed since the step before in the run's ladder; null where there is none, or no trace of it.
async function changeFromBefore(site, run, digest) {
  const {ladders} = await site.ladders();
  const rows = ladders.map((candidate) => candidate.rows).find((candidate) => candidate.some((row) => row.run === run.key));
  const at = rows ? rows.findIndex((row) => row.run === run.key) : -1;
  if (at < 1 || !rows[at - 1].has_trace) {
    return null;
  }
  try {
    const before = await site.digest(rows[at - 1].run);
    const prediction = before.predictions[rows[at].step];
    const predicted = prediction?.estimated_gain || prediction?.predicted_gain ? `Predicted from its trace: ${prediction.gain}. ` : "";
    if (!before.steps) {
      return null;
    }
    return section(`Since ${rows[at - 1].step}`, note(`${predicted}Measured: ${rows[at].gain.text}.`),
      note(batchNote(rows[at - 1].batch_size, rows[at].batch_size)), changes(before, digest));
  } catch {
    return null;
  }
}

// Warns where the batch sizes differ, so that a step of one is not a step of the other.
function batchNote(before, after) {
  return before === after ? "The times are from traced steps, which vary."
    : `The batch size was ${before} and is ${after}: the times below are per step, not per image.`;
}

// What was measured of two runs of one setup, without a profiler; null for other runs.
async function measured(site, before, after) {
  const {ratio, speeds, batch_sizes: [was, is]} = await site.ratio(before.key, after.key);
  return ratio && h("p", {}, `Images/s, without a profiler: ${speeds.map((speed) => speed.toFixed(1)).join(" before, ")} after: `,
    ratioText(ratio), `. ${batchNote(was, is)}`);
}

// 3. Any two runs: what moved.
export async function compare(site) {
  const runs = withTraces(site);
  if (runs.length < 2) {
    throw new Error("two runs with traces are needed to compare them");
  }
  const pick = (key, other) => (runs.find((run) => run.key === key) || other);
  const after = pick(site.options.after ?? site.options.run, runs[1]);
  const before = pick(site.options.before, runs[Math.max(0, runs.indexOf(after) - 1)]);
  const names = runs.map((run) => [run.key, run.name]);
  const page = h("div", {}, h("form", {class: "choose", onsubmit: (event) => event.preventDefault()},
    choice("Before", names, before.key, (key) => site.go("compare", {before: key, after: after.key})),
    choice("After", names, after.key, (key) => site.go("compare", {before: before.key, after: key}))));
  const [old, now] = await Promise.all([before, after].map((run) => valueOrReason(page, site.digest(run.key))));
  if (!old?.steps || !now?.steps) {
    return page;
  }
  const speed = await measured(site, before, after);
  if (speed) {
    page.append(speed);
  }
  if (Boolean(old.gpus.length) !== Boolean(now.gpus.length)) {
    page.append(h("p", {class: "bad"}, "One of them ran on a GPU, the other on a CPU: two machines, not a change."));
  }
  page.append(h("div", {class: "grid"}, section("Mean step, under the profiler", changes(old, now)), section("Figures", figures(old, now)),
    h("section", {class: "wide"}, h("h2", {}, old.kernels.length ? "Kernels that changed most: time per step in the trace" : "Operators that changed most: time per step in the trace"),
      changedNames(old, now))));
  return page;
}

function difference(us) {
  return `${us > 0 ? "+" : us < 0 ? "−" : ""}${time(Math.abs(us))}`;
}

function changes(old, now) {
  const rows = Object.entries(ROLES).map(([role, [colour]]) => [role, colour, old.steps.breakdown_us[role], now.steps.breakdown_us[role]])
    .filter(([, , was, is]) => was || is).sort((one, other) => Math.abs(other[3] - other[2]) - Math.abs(one[3] - one[2]));
  return table(["role", ">before", ">after", ">change"], [
    ["the step", time(old.steps.mean_us), time(now.steps.mean_us), difference(now.steps.mean_us - old.steps.mean_us)],
    ...rows.map(([role, colour, was, is]) => [h("span", {}, swatch(colour), role), time(was), time(is), difference(is - was)])]);
}

function figures(old, now) {
  const cells = (value, text) => [old, now].map((digest) => { const figure = value(digest); return figure === null || figure === undefined ? "–" : text(figure); });
  const rows = [
    ["GPU busy", ...cells((digest) => digest.gpus[0]?.utilization, share)],
    ["SMs at work, estimated", ...cells((digest) => digest.gpus[0]?.sm_efficiency, share)],
    [`${[old, now].find((digest) => digest.matrix_units === "Matrix cores") ? "Matrix cores" : "Tensor Cores"}, of the kernel time`, ...cells((digest) => digest.gpus[0]?.tensor_core_share, share)],
    ["kernels per step", ...cells((digest) => digest.kernel_count / digest.steps.names.length || null, (count) => count.toFixed(0))],
    ["bytes to the GPU per step", ...cells((digest) => digest.step_bytes || null, bytes)],
    ["peak memory", ...cells((digest) => digest.memory[0]?.peak_allocated, bytes)],
  ];
  return table(["", ">before", ">after"], [
    ["device", ...[old, now].map((digest) => digest.gpus[0]?.name ?? (digest.has_gpu ? "GPU" : "CPU"))],
    ...rows.filter((row) => row[1] !== "–" || row[2] !== "–")]);
}

function changedNames(old, now) {
  const both = new Map();
  [old, now].forEach((digest, at) => {
    for (const {name, short, us} of old.kernels.length || now.kernels.length ? digest.kernels : digest.operators) {
      const pair = both.get(name) || [0, 0, short];
      pair[at] = us / digest.steps.names.length;
      both.set(name, pair);
    }
  });
  const rows = [...both].sort((one, other) => Math.abs(other[1][1] - other[1][0]) - Math.abs(one[1][1] - one[1][0])).slice(0, 20);
  return table([">before", ">after", ">change", "name"], rows.map(([name, [was, is, short]]) => [time(was), time(is), difference(is - was),
    kernelName({name, short})]));
}

// 4. The traced steps as lanes.
export async function timeline(site) {
  const {run, trace, form} = chosenRun(site, "timeline");
  const unread = h("div", {}, form);
  const [{Timeline}, data] = await Promise.all([import("./timeline.js"), valueOrReason(unread, site.lanes(run.key, trace))]);
  if (!data?.lanes) {
    return unread;
  }
  const container = h("div", {class: "timeline"});
  const count = h("span", {class: "quiet", role: "status"});
  const page = h("div", {}, form, container);
  let drawn = null;
  const search = h("input", {type: "search", placeholder: "find an event", "aria-label": "Find events by name"});
  const find = () => {
    const {count: hits, us} = drawn.search(search.value);
    const result = hits ? `${hits} event${hits === 1 ? "" : "s"}, ${time(us)}` : "nothing found";
    count.textContent = search.value ? result : "";
  };
  const next = (direction) => {
    const match = drawn.next(direction);
    count.textContent = match ? `${match.at} of ${match.of}` : count.textContent;
  };
  search.addEventListener("input", find);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      next(event.shiftKey ? -1 : 1);
    }
  });
  form.append(search, h("button", {type: "button", onclick: () => next(-1)}, "previous"),
    h("button", {type: "button", onclick: () => next(1)}, "next"),
    count,
    h("button", {class: "link", type: "button", onclick: () => site.go("step", {run: run.key})}, "the numbers of this run"));
  if (data.left_out) {
    page.append(note(`${data.left_out} more events are left out: there are too many to show.`));
  }
  page.addEventListener("shown", () => {
    drawn = new Timeline(container, data, {dark: site.dark});
    site.leaving(() => drawn.destroy());
    if (site.options.find) {
      search.value = site.options.find;
      search.focus(); // Enter goes from one to the next
      find();
    }
  });
  return page;
}
