// One step: where its time goes, why the GPU waits, what to do.
import {batchNote, changes} from "./compare.js";
import {CAUSES, NAME_COLUMN, ROLES, amount, bad, bigTable, bytes, card, chart, chosenRun, division, h, link, named, note, numberColumn, parts, per,
  section, sentence, share, stackedBars, table, time, timelineColumn, valueOrReason, wideSection} from "./elements.js";

const MARGIN = 0.2; // of a gap's length, shown on both sides of it

export async function step(site) {
  const {run, trace, form} = chosenRun(site, "step");
  if (run.has_ranks) {
    form.append(link("its ranks side by side", () => site.go("ranks", {run: run.key})));
  }
  const page = h("div", {}, form, h("h1", {}, run.name));
  const digest = await valueOrReason(page, site.digest(run.key, trace));
  if (!digest?.steps) {
    return page;
  }
  const place = {run: run.key, ...(trace && {trace})};
  const names = h("div", {class: "grid wide"}, ...parts(() => kernels(site, digest, place), () => operators(site, digest, place)));
  page.append(...digest.warnings.map(bad), ...digest.recorded.map(note), ...parts(() => cards(digest), () => advice(site, digest, place)),
    h("div", {class: "grid"}, ...parts(() => findings(site, digest, place), () => breakdown(site, digest),
      ...digest.idle.map((idle) => () => idleCauses(digest, idle)), ...digest.memory.devices.map((memory) => () => memoryCurve(site, memory)),
      () => copies(digest), () => kinds(digest)), names));
  changeFromBefore(site, run, digest).then((change) => change && names.before(change));
  return page;
}

function cards(digest) {
  const {steps, typical} = digest, {communication} = typical, first = digest.gpus[0];
  const range = typical.most_us > 1.05 * typical.least_us ? `, ${time(typical.least_us)} to ${time(typical.most_us)}` : "";
  const which = steps.outliers.length ? `per typical step (mean of ${typical.count} of ${steps.count}${range})`
    : `per step (mean of ${steps.count}${range})`;
  const row = h("div", {class: "cards"}, card(time(typical.mean_us), steps.marked ? which : "the whole trace: it marks no steps"));
  if (communication) {
    row.append(card(time(communication.exposed_us), `communication alone, ${per(digest)}`),
      card(time(communication.hidden_us), "communication overlapped by other work"));
  }
  if (!first) {
    row.append(digest.has_gpu ? card("GPU", "the trace holds no kernel of it") : card("CPU", "no GPU in this trace"));
    return row;
  }
  for (const gpu of digest.gpus) {
    const name = digest.gpus.length > 1 ? `GPU ${gpu.id}: ` : "", unsure = gpu.unsure >= 0.005 ? `; unknown: ${share(gpu.unsure)}` : "";
    row.append(card(share(gpu.utilization), `${name}busy: at least one kernel runs`),
      card(share(gpu.sm_efficiency), `${name}SMs at work, estimated`),
      card(gpu.occupancy_percent === null ? "–" : `${gpu.occupancy_percent.toFixed(1)} %`, `${name}occupancy, estimated`),
      card(share(gpu.tensor_core_share), `${name}${digest.matrix_units}, of the kernel time${unsure}`));
  }
  row.append(card(share(digest.eligible_kernel_share), "of the kernel time in operators that could use them"),
    card(first.name ?? `GPU ${first.id}`, digest.gpus.length > 1 ? `device, ${digest.gpus.length} of them` : "device"));
  return row;
}

function advice(site, digest, place) {
  const items = digest.advice.map((item) => h("li", {}, h("b", {}, item.title), item.gain ? `: ${item.gain}` : ": the gain cannot be estimated; measure it",
    item.step ? ` (steps/${item.step}.py)` : "", item.gap ? longestGap(site, item, place) : null,
    h("div", {class: "quiet"}, sentence(item.why)), item.do ? h("div", {}, sentence(item.do)) : null));
  const number = (id) => digest.advice.findIndex((item) => item.id === id) + 1;
  const together = digest.combined.map(({ids, gain}) => `${ids.map(number).join(" + ")}: ${gain}`);
  const lines = items.length ? [digest.bound, digest.why_idle] : [digest.verdict, digest.why_idle];
  return h("div", {class: "verdict"}, h("b", {}, lines.filter(Boolean).map(sentence).join(" ")), items.length ? h("ol", {}, ...items) : null,
    together.length ? h("div", {}, `Together: ${together.join("; ")}`) : null,
    ...digest.steps.outliers.map((outlier) => h("div", {class: "odd"}, `${sentence(outlier.why)} The advice leaves it out.`)),
    digest.of_which_steps ? note(digest.of_which_steps) : null);
}

// A link to the longest single stretch that a piece of advice is about.
function longestGap(site, {title, gap}, place) {
  const margin = MARGIN * (gap.end - gap.start);
  const at = gap.device === null ? {} : {at: `idle ${gap.device}@${gap.start}`};
  return link(`longest gap: ${time(gap.end - gap.start)}`,
    () => site.go("timeline", {...place, from: gap.start - margin, to: gap.end + margin, ...at}),
    {more: "mark", label: `${title}: show the longest gap in the timeline`});
}

// What stands out; `say` what the advice does not.
function findings(site, digest, place) {
  const advised = new Set(digest.advice.map(({id}) => id));
  const say = (item, text) => (advised.has(item.cost) ? null : text);
  const items = digest.findings.map((item) => h("li", {}, h("b", {}, item.what), `: ${time(item.us_per_step)} ${per(digest)}`,
    item.estimated_gain >= 1.02 && item.estimated_gain < 100 ? say(item, `; ${item.gain || `about ${item.estimated_gain.toFixed(2)}x`} without`) : null,
    item.marked ? link("show in the timeline", () => site.go("timeline", {...place, find: item.what}), {more: "mark"}) : null,
    h("div", {class: "quiet"}, sentence(item.why)), say(item, h("div", {}, sentence(item.do)))));
  return items.length ? wideSection("What stands out", h("ul", {}, ...items)) : null;
}

// The step by part, with communication apart where there is any; then as the profiler plugin defines it.
function breakdown(site, digest) {
  const {steps, typical} = digest, {kernel_count: kernelCount} = typical;
  const {title, names, apart, times} = division([digest]), us = times(digest);
  const rows = (heading, meanings, of, total) => table([heading, ">time", ">share", ""], Object.keys(meanings).filter((name) => of[name] > 0)
    .map((name) => [named(meanings, name), time(of[name]), share(of[name] / total), meanings[name][1] ?? digest.meanings.roles[name]]));
  const plugin = apart || steps.outliers.length ? [note("As the profiler plugin defines it: "
    + `the mean of all ${steps.count} steps${apart && kernelCount ? ", collectives' kernels counted as kernel" : ""}`),
  rows("role", ROLES, steps.breakdown_us, steps.mean_us)] : [];
  return section(steps.outliers.length ? `Mean step, of the ${typical.count} typical of ${steps.count}` : "Mean step",
    stackedBars(site, names, [["", us]], {low: true, label: "Mean step", showlegend: false,
      xaxis: {ticksuffix: " ms", range: [0, typical.mean_us / 1e3]}, yaxis: {showgrid: false}, bargap: 0}),
    rows(title, names, us, typical.mean_us), ...plugin);
}

function idleCauses(digest, idle) {
  const rows = Object.entries(CAUSES).filter(([cause]) => idle.causes_us[cause] > 0.0005 * idle.us);
  return section(`GPU ${idle.gpu} runs no kernel for ${time(idle.us)} ${per(digest)}. Meanwhile:`,
    table(["cause", ">time", ">share", ""], rows.map(([cause]) => [named(CAUSES, cause),
      time(idle.causes_us[cause]), share(idle.cause_shares[cause]), digest.meanings.causes[cause]])),
    note(`${idle.gaps} gap${idle.gaps === 1 ? "" : "s"} in ${digest.of_steps}; the longest is ${time(idle.longest_us)}`));
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

// What changed since the last step before in the run's ladder that has an effect on this device; null where there is none, or no trace of it.
async function changeFromBefore(site, run, digest) {
  try {
    const {ladders} = await site.ladders();
    const rows = ladders.map((candidate) => candidate.rows).find((candidate) => candidate.some((row) => row.run === run.key));
    const at = rows ? rows.findIndex((row) => row.run === run.key) : -1;
    const row = rows?.[at], last = rows?.slice(0, at).findLast((candidate) => candidate.acts) ?? rows?.[0];
    if (at < 1 || !last.has_trace) {
      return null;
    }
    const before = await site.digest(last.run);
    if (!before.steps) {
      return null;
    }
    const prediction = before.predictions[row.step];
    const predicted = prediction?.estimated_gain || prediction?.predicted_gain ? `Predicted from its trace: ${prediction.gain}. ` : "";
    return section(`Since ${last.step}`,
      note(row.gain ? `${predicted}Measured: ${row.gain.text}.` : `The change ${row.needs}: no effect on this device.`),
      note(batchNote(last.batch_size, row.batch_size)), changes(before, digest));
  } catch {
    return null;
  }
}

// Tables of copies, of kernels by kind and by name, and of operators; all figures are per step.
function copies(digest) {
  const directions = [["h2d", "to the GPU"], ["d2h", "from the GPU"], ["d2d", "within the GPU"]];
  const rows = directions.map(([key, text]) => [text, digest.typical.copies[key]]).filter(([, copied]) => copied.count);
  if (!rows.length) {
    return null;
  }
  return section(`Copies ${per(digest)}`,
    table(["", ">copies", ">size", ">time", ">GB/s", ">pinned", ">pageable"], rows.map(([text, copied]) => [text, amount(copied.count),
      bytes(copied.bytes), time(copied.us), copied.gigabytes_per_second?.toFixed(1), share(copied.pinned_share),
      share(copied.pageable_share)])));
}

// The time of the kernels by what they do.
function kinds(digest) {
  const rows = Object.entries(digest.typical.kinds);
  return rows.length ? section(`Kernels by kind, ${per(digest)}`, table(["kind", ">time", ">share"],
    rows.map(([kind, us]) => [kind, time(us), share(digest.typical.kind_shares[kind])]))) : null;
}

function kernels(site, digest, place) {
  const {typical} = digest;
  const answer = ({tensor_cores: uses}) => (uses === null ? "unknown" : uses ? "yes" : "no");
  return typical.kernels.length ? wideSection(`Kernels ${per(digest)}: ${amount(typical.kernel_count)}, ${time(typical.kernel_us)}`, bigTable({
    label: "kernels", rows: typical.kernels, columns: [
      numberColumn("time", ({us}) => us, time),
      numberColumn("share", ({us}) => us / typical.kernel_us, share),
      numberColumn("count", ({count}) => count, amount),
      numberColumn("mean", ({us, count}) => us / count, time),
      {title: digest.matrix_units, value: answer, cell: answer},
      NAME_COLUMN, timelineColumn(site, ({name}) => ({...place, find: name})),
    ]}), left(typical.kernel_names, typical.kernels)) : null;
}

// By the innermost operator that launched a kernel; without a GPU the CPU's time alone.
function operators(site, digest, place) {
  const {typical} = digest;
  const onGpu = typical.kernels.length > 0;
  const title = onGpu ? `Operators ${per(digest)}: the kernels that each launched, and self time on the CPU, ${time(typical.operator_us)}`
    : `Operators on the CPU, self time: ${time(typical.operator_us)} ${per(digest)}`;
  return typical.operators.length ? wideSection(title, bigTable({
    label: "operators", rows: typical.operators, columns: [
      ...(onGpu ? [numberColumn("GPU time", ({device_us: us}) => us, time),
        numberColumn("share", ({device_us: us}) => us / typical.kernel_us, share), numberColumn("CPU time", ({us}) => us, time)]
        : [numberColumn("time", ({us}) => us, time), numberColumn("share", ({us}) => us / typical.operator_us, share)]),
      numberColumn("count", ({count}) => count, amount),
      numberColumn(onGpu ? "mean CPU time" : "mean", ({us, count}) => (count ? us / count : null), time),
      NAME_COLUMN, timelineColumn(site, ({name, count}) => (count ? {...place, find: name} : null)),
    ]}), left(typical.operator_names, typical.operators)) : null;
}

function left(names, rows) {
  return names > rows.length ? note(`${names - rows.length} more names, each shorter than these, are left out.`) : null;
}
