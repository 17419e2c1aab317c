// One step: where its time goes, why the GPU waits, what to do.
import {batchNote, changes} from "./compare.js";
import {CAUSES, ROLES, bytes, card, chart, chosenRun, h, kernelName, note, section, share, swatch, table, time, valueOrReason} from "./elements.js";

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

export function kernels(digest) {
  const answer = (uses) => (uses === null ? "unknown" : uses ? "yes" : "no");
  return h("section", {class: "wide"}, h("h2", {}, `Kernels: ${digest.kernel_count}, ${time(digest.kernel_us)} in ${inSteps(digest)}`),
    table([">time", ">share", ">count", ">mean", digest.matrix_units, "name"], digest.kernels.slice(0, 30).map((kernel) => [time(kernel.us),
      share(kernel.us / digest.kernel_us), `${kernel.count}`, time(kernel.us / kernel.count), answer(kernel.tensor_cores), kernelName(kernel)])));
}

export function operators(digest) {
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
