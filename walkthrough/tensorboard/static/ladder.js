// The ladder: images/s of every step, relative to the baseline, and its step time by activity.
import {bad, barsLead, bytes, chart, choice, choices, deviceText, division, h, ink, link, note, plain, ratioText, section, share, stackedBars,
  table, time, valueOrReason, wideSection, withTraces} from "./elements.js";

export async function ladder(site) {
  const page = h("div", {});
  const {ladders, original, problems: broken} = await valueOrReason(page, site.ladders()) ?? {ladders: [], problems: []};
  page.append(...broken.map(bad));
  if (!ladders.length) {
    page.append(h("h1", {}, "Runs"), withTraces(site).length ? runsTable(site, withTraces(site)) : note("No run is in the log folder yet."));
  }
  for (const shown of ladders) {
    page.append(h("h1", {}, shown.title), ...shown.warnings.map(bad), h("p", {}, h("b", {}, shown.summary)), h("div", {class: "grid"},
      section("Images/s", speedChart(site, shown),
        note(`The median timed window, no profiler running; the whiskers are the range of the windows, without a tenth at either end (${windows(shown)}).${
          shown.rows.every((row) => row.acts) ? "" : " Grey: a step without effect on this device."}`)),
      section("Relative to the baseline", relativeChart(site, shown, original),
        note(`${shown.intervals} Grey: no measurable difference.`), comparable(shown, original)
          ? note(`Orange: the course's original ladder, on a ${original.device}, one run per step, no interval published.`) : null),
      breakdowns(site, shown), wideSection("The steps", ladderTable(site, shown))));
  }
  const inLadders = new Set(ladders.flatMap(({rows}) => rows.map(({run}) => run)));
  const others = withTraces(site).filter(({key}) => !inLadders.has(key));
  if (ladders.length && others.length) {
    page.append(h("h1", {}, "Other runs"), runsTable(site, others));
  }
  page.append(...site.runs.filter((run) => run.problem).map((run) => bad(run.problem)));
  return page;
}

// "5 windows of each step", "15 windows of each step, 3 rounds".
function windows({rows}) {
  const text = (key, word) => {
    const [least, most] = [Math.min(...rows.map((row) => row[key])), Math.max(...rows.map((row) => row[key]))];
    return `${least === most ? least : `${least} to ${most}`} ${word}${most === 1 ? "" : "s"}`;
  };
  return `${text("windows", "window")} of each step, ${text("rounds", "round")}`;
}

// A click on a row's bar opens that step.
function opensSteps(site, host, rows) {
  return barsLead(site, host, "step", (at) => ({run: rows[at].run}));
}

// A row's shares of the peaks that `limit` measured, as lines of a tooltip; "" for those that are not known.
function roofs(row) {
  const line = (value, of) => (value === null ? "" : `<br>${(value * 100).toFixed(value < 0.1 ? 1 : 0)}% of ${of}, measured`);
  return line(row.share_of_arithmetic_peak, "arithmetic peak") + line(row.share_of_memory_roof, "memory roof");
}

function speedChart(site, {rows}) {
  const speeds = rows.map((row) => row.samples_per_second.median);
  return opensSteps(site, chart(site, [{
    type: "bar", x: rows.map((row) => plain(row.step)), y: speeds, marker: {color: rows.map((row) => (row.acts ? "#0072B2" : "#999999"))},
    error_y: {type: "data", symmetric: false, color: ink(site), array: rows.map((row, at) => row.high - speeds[at]),
      arrayminus: rows.map((row, at) => speeds[at] - row.low)},
    hovertemplate: rows.map((row) => `%{x}<br>%{y:.1f} images/s${roofs(row)}<extra></extra>`),
  }], {label: "Images/s of each step", yaxis: {rangemode: "tozero"}}), rows);
}

// The published ladder is shown only next to one of its own model.
function comparable({rows}, original) {
  return rows.some((row) => row.model === original.model && row.step in original.relative);
}

function relativeChart(site, {rows, ...shown}, original) {
  const steps = rows.map((row) => plain(row.step)), none = {ratio: null, low: null, high: null};
  const ratios = rows.map((row) => row.relative ?? none); // none of a step without effect on this device
  const published = {type: "bar", name: original.device, x: steps, y: rows.map((row) => original.relative[row.step] ?? null),
    marker: {color: "#E69F00"}, hovertemplate: `%{x}<br>%{y:.2f}x<extra>${plain(original.device)}</extra>`};
  return opensSteps(site, chart(site, [
    {type: "bar", name: "here", x: steps, y: ratios.map((relative) => relative.ratio),
      marker: {color: ratios.map((relative) => (relative.resolved ? "#0072B2" : "#999999"))},
      customdata: ratios.map((relative) => relative.text), hovertemplate: "%{x}<br>%{customdata}<extra>here</extra>",
      error_y: {type: "data", symmetric: false, color: ink(site), array: ratios.map(({high, ratio}) => high - ratio),
        arrayminus: ratios.map(({low, ratio}) => ratio - low)}},
    ...(comparable({rows, ...shown}, original) ? [published] : []),
  ], {label: "Throughput relative to the baseline", barmode: "group", yaxis: {rangemode: "tozero", ticksuffix: "x"},
    annotations: rows.filter((row) => !row.relative).map((row) => (
      {x: plain(row.step), y: 0, text: plain(row.needs), textangle: -90, yanchor: "bottom", showarrow: false}))}), rows);
}

// A stacked bar for each step: ms per step, or µs per image. Bars appear as the traces are read; a failure is shown.
// By role, or by part, with communication apart, where any of the steps communicates.
function breakdowns(site, {rows}) {
  const digests = []; // [row, digest], in the order of the rows
  let unit = "step";
  const container = h("div", {}, note("reading the traces …"));
  const draw = () => {
    const {names, apart, times} = division(digests.map(([, digest]) => digest)), perImage = unit === "image";
    const bars = digests.map(([row, digest]) => [row.step, times(digest), perImage ? row.batch_size : 1e3]);
    const host = stackedBars(site, names, bars, {unit: perImage ? "µs" : "ms", label: "Step time by activity",
      xaxis: {title: {text: perImage ? "µs per image" : "ms per step"}}, yaxis: {autorange: "reversed", dtick: 1}});
    host.style.height = `${Math.max(300, 100 + 22 * digests.length)}px`; // a label next to every bar
    container.replaceChildren(opensSteps(site, host, digests.map(([row]) => row)),
      ...(apart ? [note("Communication is apart here; the profiler plugin counts the kernels of NCCL's collectives as kernel.")] : []));
  };
  const panel = wideSection("Step time by activity, from the trace",
    choices(choice("in", [["step", "ms per step"], ["image", "µs per image"]], unit, (chosen) => { unit = chosen; draw(); })), container,
    note("The profiler slows the program, its CPU side most: compare the proportions here, and read the speed from the windows above."));
  for (const row of rows.filter((candidate) => candidate.has_trace)) {
    site.digest(row.run).then((digest) => {
      if (site.alive() && digest.steps) {
        digests.push([row, digest]);
        digests.sort((one, other) => rows.indexOf(one[0]) - rows.indexOf(other[0]));
        draw();
      }
    }).catch((error) => panel.append(bad(`${row.step}: ${error.message}`)));
  }
  return panel;
}

// Notes are numbered, and those of every step are below the table once, as `compare` prints them.
function ladderTable(site, {rows}) {
  const notes = [...new Set(rows.flatMap((row) => row.notes))];
  const everywhere = notes.filter((text) => rows.every((row) => row.notes.includes(text)));
  const numbered = notes.filter((text) => !everywhere.includes(text));
  const marks = (row) => numbered.flatMap((text, at) => (row.notes.includes(text) ? [at + 1] : [])).join(", ");
  const step = (row) => h("span", {class: "step"}, row.has_trace ? link(row.step, () => site.go("step", {run: row.run})) : row.step,
    h("span", {class: "quiet"}, marks(row) ? ` [${marks(row)}]` : ""));
  return h("div", {}, table(["step", ">images/s", ">vs step before", ">vs baseline", ">batch", ">range of windows, without a tenth at either end", ">windows / rounds",
    ">peak memory"],
  rows.map((row) => [step(row), row.samples_per_second.median.toFixed(1), ratioText(row.gain) ?? row.needs, ratioText(row.relative),
    `${row.batch_size}`, `${row.low.toFixed(1)} to ${row.high.toFixed(1)}`, `${row.windows} / ${row.rounds}`, bytes(row.peak_memory_bytes.allocated)])),
  ...everywhere.map((text) => note(`All: ${text}.`)), ...numbered.map((text, at) => note(`[${at + 1}] ${text}`)));
}

// Runs with their main figures, which come as the traces are read.
function runsTable(site, runs) {
  const rows = runs.map((run) => {
    const cells = [0, 1, 2, 3, 4].map(() => h("span", {class: "quiet"}, "…"));
    const fill = (texts) => cells.forEach((cell, at) => cell.replaceWith(texts[at] ?? ""));
    site.digest(run.key).then((digest) => {
      if (digest.steps) {
        const gpu = digest.gpus[0];
        fill([deviceText(digest, "CPU only"), time(digest.typical.mean_us), share(gpu?.utilization), share(gpu?.tensor_core_share),
          h("span", {}, digest.verdict, ...digest.warnings.map((warning) => h("div", {class: "bad"}, warning)))]);
        if (digest.matrix_units === "Matrix cores") {
          whole.querySelectorAll("th")[4].textContent = "Tensor / Matrix cores";
        }
      }
    }).catch((error) => fill(["", "", "", "", h("span", {class: "bad"}, error.message)]));
    return [link(run.name, () => site.go("step", {run: run.key}), {more: "run"}), ...cells];
  });
  const whole = table(["run", "device", ">step time", ">GPU busy", ">Tensor Cores", "verdict"], rows);
  return whole;
}
