// Any two runs: what moved.
import {ROLES, bytes, choice, h, kernelName, ratioText, section, share, swatch, table, time, valueOrReason, withTraces} from "./elements.js";

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

// Warns where the batch sizes differ, so that a step of one is not a step of the other.
export function batchNote(before, after) {
  return before === after ? "The times are from traced steps, which vary."
    : `The batch size was ${before} and is ${after}: the times below are per step, not per image.`;
}

// What was measured of two runs of one setup, without a profiler; null for other runs.
async function measured(site, before, after) {
  const {ratio, speeds, batch_sizes: [was, is]} = await site.ratio(before.key, after.key);
  return ratio && h("p", {}, `Images/s, without a profiler: ${speeds.map((speed) => speed.toFixed(1)).join(" before, ")} after: `,
    ratioText(ratio), `. ${batchNote(was, is)}`);
}

function difference(us) {
  return `${us > 0 ? "+" : us < 0 ? "−" : ""}${time(Math.abs(us))}`;
}

export function changes(old, now) {
  const rows = Object.entries(ROLES).map(([role, [colour]]) => [role, colour, old.steps.breakdown_us[role], now.steps.breakdown_us[role]])
    .filter(([, , was, is]) => was || is).sort((one, other) => Math.abs(other[3] - other[2]) - Math.abs(one[3] - one[2]));
  return table(["role", ">before", ">after", ">change"], [
    ["the step", time(old.steps.mean_us), time(now.steps.mean_us), difference(now.steps.mean_us - old.steps.mean_us)],
    ...rows.map(([role, colour, was, is]) => [h("span", {}, swatch(colour), role), time(was), time(is), difference(is - was)])]);
}

export function figures(old, now) {
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
