// The tables of a step: copies, kernels by kind and by name, operators. All figures are per step.
import {amount, bytes, kernelName, note, per, section, share, table, time} from "./elements.js";
import {bigTable, timelineColumn} from "./tables.js";

export function copies(digest) {
  const directions = [["h2d", "to the GPU"], ["d2h", "from the GPU"], ["d2d", "within the GPU"]];
  const rows = directions.map(([key, text]) => [text, digest.copies[key]]).filter(([, copied]) => copied.count);
  if (!rows.length) {
    return null;
  }
  return section(`Copies ${per(digest)}`,
    table(["", ">copies", ">size", ">time", ">GB/s", ">pinned", ">pageable"], rows.map(([text, copied]) => [text, amount(copied.count),
      bytes(copied.bytes), time(copied.us), copied.gigabytes_per_second?.toFixed(1), share(copied.bytes ? copied.pinned_bytes / copied.bytes : null),
      share(copied.bytes ? copied.pageable_bytes / copied.bytes : null)])));
}

// The time of the kernels by what they do.
export function kinds(digest) {
  const rows = Object.entries(digest.kinds), total = rows.reduce((sum, [, us]) => sum + us, 0);
  return rows.length ? section(`Kernels by kind, ${per(digest)}`, table(["kind", ">time", ">share"],
    rows.map(([kind, us]) => [kind, time(us), share(us / total)]))) : null;
}

export function kernels(site, digest, place) {
  if (!digest.kernels.length) {
    return null;
  }
  const answer = ({tensor_cores: uses}) => (uses === null ? "unknown" : uses ? "yes" : "no");
  const panel = section(`Kernels ${per(digest)}: ${amount(digest.kernel_count)}, ${time(digest.kernel_us)}`, bigTable({
    label: "kernels", rows: digest.kernels, text: ({name}) => name, columns: [
      {title: "time", number: true, value: ({us}) => us, cell: ({us}) => time(us)},
      {title: "share", number: true, value: ({us}) => us, cell: ({us}) => share(us / digest.kernel_us)},
      {title: "count", number: true, value: ({count}) => count, cell: ({count}) => amount(count)},
      {title: "mean", number: true, value: ({us, count}) => us / count, cell: ({us, count}) => time(us / count)},
      {title: digest.matrix_units, value: answer, cell: answer},
      {title: "name", name: true, value: ({name}) => name, cell: kernelName},
      timelineColumn(site, ({name}) => ({...place, find: name})),
    ]}), left(digest.kernel_names, digest.kernels));
  panel.className = "wide";
  return panel;
}

// By the innermost operator that launched a kernel; without a GPU the CPU's time alone.
export function operators(site, digest, place) {
  if (!digest.operators.length) {
    return null;
  }
  const onGpu = digest.kernels.length > 0;
  const device = onGpu ? [{title: "GPU time", number: true, value: ({device_us: us}) => us, cell: ({device_us: us}) => time(us)},
    {title: "share", number: true, value: ({device_us: us}) => us, cell: ({device_us: us}) => share(us / digest.kernel_us)}] : [];
  const cpuShare = onGpu ? [] : [{title: "share", number: true, value: ({us}) => us, cell: ({us}) => share(us / digest.operator_us)}];
  const title = onGpu ? `Operators ${per(digest)}: the kernels that each launched, and self time on the CPU, ${time(digest.operator_us)}`
    : `Operators on the CPU, self time: ${time(digest.operator_us)} ${per(digest)}`;
  const panel = section(title, bigTable({
    label: "operators", rows: digest.operators, text: ({name}) => name, columns: [...device,
      {title: onGpu ? "CPU time" : "time", number: true, value: ({us}) => us, cell: ({us}) => time(us)}, ...cpuShare,
      {title: "count", number: true, value: ({count}) => count, cell: ({count}) => amount(count)},
      {title: onGpu ? "mean CPU time" : "mean", number: true, value: ({us, count}) => (count ? us / count : null),
        cell: ({us, count}) => (count ? time(us / count) : "–")},
      {title: "name", name: true, value: ({name}) => name, cell: ({name}) => name},
      timelineColumn(site, ({name, count}) => (count ? {...place, find: name} : null)),
    ]}), left(digest.operator_names, digest.operators));
  panel.className = "wide";
  return panel;
}

function left(names, rows) {
  return names > rows.length ? note(`${names - rows.length} more names, each shorter than these, are left out.`) : null;
}
