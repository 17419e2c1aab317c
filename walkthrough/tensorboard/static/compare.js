// Any two runs: what changed, per step and of the same steps as on the page Step.
import {NAME_COLUMN, ROLES, amount, bad, bigTable, bytes, choice, choices, deviceText, division, goneText, h, named, note, numberColumn, parts, per,
  ratioText, section, share, table, time, timelineColumn, valueOrReason, wideSection, withTraces} from "./elements.js";

const ofOperators = (title, us) => ({title, us, find: true, rows: ({typical}) => typical.operators.filter((row) => us(row) > 0),
  complete: ({typical: {operators, operator_names: names}}) => names <= operators.length});
const NAMES = { // what the table of names compares. complete: no name is left out, so what is not there did not run
  kernel: {title: "kernels", rows: ({typical}) => typical.kernels, us: ({us}) => us, find: true,
    complete: ({typical: {kernels, kernel_names: names}}) => names <= kernels.length},
  kind: {title: "kinds of kernels", rows: ({typical}) => Object.entries(typical.kinds).map(([name, us]) => ({name, us})), us: ({us}) => us, complete: () => true},
  operator: ofOperators("operators, their kernels", ({device_us: us}) => us),
  cpu: ofOperators("operators, on the CPU", ({us}) => us),
};

export async function compare(site) {
  const runs = withTraces(site);
  if (runs.length < 2) {
    throw new Error("two runs with traces are needed to compare them");
  }
  const pick = (key, other) => (runs.find((run) => run.key === key) || other);
  const after = pick(site.options.after ?? site.options.run, runs[1]);
  const before = pick(site.options.before, runs[runs.indexOf(after) ? runs.indexOf(after) - 1 : 1]);
  [before, after].forEach((run) => site.watch(run));
  const names = runs.map((run) => [run.key, run.name]);
  const go = (changed) => site.go("compare", {before: before.key, after: after.key, by: site.options.by, ...changed});
  const page = h("div", {}, choices(
    choice("Before", names, before.key, (key) => go({before: key})), choice("After", names, after.key, (key) => go({after: key}))));
  const asked = [site.options.before, site.options.after ?? site.options.run];
  const gone = asked.filter((key) => key && !runs.some((run) => run.key === key));
  if (gone.length) {
    page.append(...gone.map((key) => h("p", {class: "bad failed"}, `This cannot be shown: ${goneText(key)}`)));
    return page;
  }
  const [old, now] = await Promise.all([before, after].map((run) => valueOrReason(page, site.digest(run.key))));
  if (!old?.steps || !now?.steps) {
    return page;
  }
  const speed = await measured(site, before, after, old, now);
  page.append(...speed, ...warnings(before, after, old, now), h("div", {class: "grid"}, ...parts(
    () => section(`${[old, now].some(({steps}) => steps.outliers.length) ? "Typical" : "Mean"} step, under the profiler`,
      changes(old, now), ...changesOfPlugin(old, now)),
    () => section(per(old) === per(now) ? `Figures ${per(old)}` : "Figures", figures(old, now)),
    () => changedNames(site, {before, after, old, now}))));
  return page;
}

// Warns where the batch sizes differ, so that a step of one is not a step of the other.
export function batchNote(before, after) {
  return before === after ? "The times are from traced steps, which vary."
    : `The batch size was ${before} and is ${after}: the times below are per step, not per image.`;
}

// What was measured of two runs of one setup, without a profiler; of others, where their batch sizes differ; [] where neither.
async function measured(site, before, after, old, now) {
  let answer = {ratio: null, batch_sizes: []};
  try {
    answer = await site.ratio(before.key, after.key);
  } catch {
    // the traces can be compared without it
  }
  const {ratio, speeds, batch_sizes: [was, is]} = answer;
  if (ratio) {
    return [h("p", {}, `Images/s, without a profiler: ${speeds.map((speed) => speed.toFixed(1)).join(" before, ")} after: `,
      ratioText(ratio), `. ${batchNote(was, is)}`)];
  }
  const [first, second] = is === undefined ? [old.samples_per_step, now.samples_per_step] : [was, is];
  return first && second && first !== second ? [h("p", {}, batchNote(first, second))] : [];
}

// What makes the two no fair pair: parts missing, other devices, steps that are left out.
function warnings(before, after, old, now) {
  const lines = [];
  const names = (digest) => [...new Set(digest.gpus.map(({name}) => name))].sort();
  const [oldNames, newNames] = [old, now].map(names);
  const known = [...oldNames, ...newNames].every(Boolean);
  if (old.partial || now.partial) {
    lines.push("A part of a file is missing: what is left cannot be compared.");
  }
  if (old.has_gpu !== now.has_gpu) {
    lines.push("One of them ran on a GPU, the other on a CPU: two machines, not a change.");
  } else if (known && oldNames.join() !== newNames.join()) {
    lines.push(`Two different GPUs (${oldNames.join(", ")}; ${newNames.join(", ")}): the difference is not only a change of the program.`);
  } else if (old.gpus.length && now.gpus.length && old.gpus.length !== now.gpus.length) {
    lines.push(`${old.gpus.length} GPUs in one trace and ${now.gpus.length} in the other: the difference is not only a change of the program.`);
  }
  return [...lines.map(bad), ...[[before, old], [after, now]].flatMap(([run, digest]) => [
    ...digest.warnings.map((line) => bad(`${run.name}: ${line}`)),
    ...(digest.of_which_steps ? [note(`${run.name}: ${digest.steps.outliers.map(({why}) => why).join("; ")}. ${digest.of_which_steps}`)] : [])])];
}

function difference(us) {
  return `${us > 0 ? "+" : us < 0 ? "−" : ""}${time(Math.abs(us))}`;
}

// The typical step by part where one of them communicates, else by role.
export function changes(old, now) {
  const {title, names, times} = division([old, now]);
  return changedTimes(title, names, ({typical}) => typical.mean_us, times, old, now);
}

// The same as the profiler plugin defines it, where that differs; [] where it does not.
function changesOfPlugin(old, now) {
  const digests = [old, now], {apart} = division(digests);
  if (!apart && !digests.some(({steps}) => steps.outliers.length)) {
    return [];
  }
  const counted = apart && digests.some(({typical}) => typical.kernel_count) ? ", collectives' kernels counted as kernel" : "";
  return [note(`As the profiler plugin defines it: the mean of all steps${counted}`),
    changedTimes("role", ROLES, ({steps}) => steps.mean_us, ({steps}) => steps.breakdown_us, old, now)];
}

// total(digest): µs of a step. times(digest): µs of each of `names`.
function changedTimes(title, names, total, times, old, now) {
  const row = (label, was, is) => [label, time(was), time(is), difference(is - was)], [first, second] = [times(old), times(now)];
  const change = (name) => Math.abs(second[name] - first[name]);
  const changed = Object.keys(names).filter((name) => first[name] || second[name]).sort((one, other) => change(other) - change(one));
  return table([title, ">before", ">after", ">change"],
    [row("the step", total(old), total(now)), ...changed.map((name) => row(named(names, name), first[name], second[name]))]);
}

function mean(digest, name) {
  const known = digest.gpus.map((gpu) => gpu[name]).filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function figures(old, now) {
  const units = [...new Set([old, now].filter(({gpus}) => gpus.length).map((digest) => digest.matrix_units))].sort().reverse().join(" / ");
  const rows = [
    ["GPU busy", (digest) => mean(digest, "utilization"), share],
    ["SMs at work, estimated", (digest) => mean(digest, "sm_efficiency"), share],
    [`${units}, of the kernel time`, (digest) => mean(digest, "tensor_core_share"), share],
    ["kernels", ({typical}) => typical.kernel_count || null, amount],
    ["time of the kernels", ({typical}) => typical.kernel_us || null, time],
    ["communication alone", ({typical}) => typical.communication?.exposed_us, time],
    ["communication overlapped", ({typical}) => typical.communication?.hidden_us, time],
    ["copies to the GPU, time", ({typical}) => typical.copies.h2d.us || null, time],
    ["bytes to the GPU", ({typical}) => typical.step_bytes || null, bytes],
    ["peak memory", ({memory}) => memory.peak_allocated_bytes, bytes],
  ].map(([name, value, text]) => [name, ...[old, now].map(value).map((figure) => (figure === null || figure === undefined ? "–" : text(figure)))]);
  return table(["", ">before", ">after"], [
    ["device", deviceText(old), deviceText(now)],
    ...(per(old) === per(now) ? [] : [["figures are", per(old), per(now)]]),
    ...rows.filter((row) => row[1] !== "–" || row[2] !== "–")]);
}

// Names side by side, the largest change first; what is in one of them only is marked.
function changedNames(site, {before, after, old, now}) {
  const offered = Object.entries(NAMES).filter(([, {rows}]) => rows(old).length || rows(now).length);
  const body = h("div");
  const draw = (by) => body.replaceChildren(namesTable(site, NAMES[by], {before, after, old, now}));
  const chosen = offered.some(([by]) => by === site.options.by) ? site.options.by : offered[0]?.[0];
  if (!chosen) {
    return null;
  }
  draw(chosen);
  return wideSection("What changed most, time per step",
    choices(choice("by", offered.map(([by, {title}]) => [by, title]), chosen, (by) => { site.stay({by}); draw(by); })), body);
}

function namesTable(site, {title, rows, us, complete, find}, {before, after, old, now}) {
  const both = new Map(), whole = [old, now].map(complete);
  [old, now].forEach((digest, at) => rows(digest).forEach((row) => {
    const pair = both.get(row.name) || {name: row.name, short: row.short, was: null, is: null};
    both.set(row.name, {...pair, [at ? "is" : "was"]: us(row)});
  }));
  const changed = [...both.values()].map((pair) => ({...pair, change: (pair.is ?? 0) - (pair.was ?? 0),
    mark: pair.was === null && whole[0] ? "new" : pair.is === null && whole[1] ? "gone" : ""}));
  changed.sort((one, other) => Math.abs(other.change) - Math.abs(one.change));
  return bigTable({label: title, rows: changed, columns: [
    numberColumn("before", ({was}) => was, time), numberColumn("after", ({is}) => is, time), numberColumn("change", ({change}) => change, difference),
    {title: "", cell: ({mark}) => (mark ? h("span", {class: `tag ${mark}`}, mark) : "")}, NAME_COLUMN,
    ...(find ? [timelineColumn(site, ({name, mark}) => ({run: (mark === "gone" ? before : after).key, find: name}))] : [])]});
}
