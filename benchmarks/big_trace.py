"""Writes a made-up trace of any size: training steps on one GPU, event for event in the form that torch writes today.

python benchmarks/big_trace.py 1000000 big.trace.json     # or .json.gz
"""

import argparse
import gzip
from pathlib import Path

HEAD = '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Made up", "computeMajor": 9}], "traceEvents": [\n'
KERNELS = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, std::array<char*, 3ul> >(int)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, float const*)",
    "volta_sgemm_128x64_nn",
]
EVENTS = """\
  {{"ph": "X", "cat": "cpu_op", "name": "aten::op{kind}", "pid": 7, "tid": 7, "ts": {ts}.{n:03}, "dur": 40.250, \
"args": {{"External id": {n}, "Record function id": 0, "Input Dims": [[32, 64, 56, 56], [64]], "Ev Idx": {n}}}}},
  {{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 7, "ts": {call}.125, "dur": 9.5, \
"args": {{"External id": {n}, "cbid": 211, "correlation": {n}}}}},
  {{"ph": "s", "id": {n}, "pid": 7, "tid": 7, "ts": {call}.125, "cat": "ac2g", "name": "ac2g"}},
  {{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {at}.5, "dur": 31.744, \
"args": {{"External id": {n}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {n}, \
"registers per thread": 32, "shared memory": 0, "blocks per SM": 1.5, "warps per SM": 6.0, "grid": [198, 1, 1], \
"block": [128, 1, 1], "est. achieved occupancy %": 37}}}},
  {{"ph": "f", "id": {n}, "pid": 0, "tid": 7, "ts": {at}.5, "cat": "ac2g", "name": "ac2g", "bp": "e"}},
"""
STEP = """\
  {{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 7, "tid": 7, "ts": {ts}, "dur": {dur}, \
"args": {{"External id": 0}}}}{end}
"""
OPERATORS_PER_STEP = 2000  # operators, with five events each


def write(path, events):
    """Write at least `events` events to `path`; returns how many bytes of JSON that is."""
    size = 0
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else open(path, "w") as file:
        size += file.write(HEAD)
        ops, number = max(1, events // 5), 0
        steps = -(-ops // OPERATORS_PER_STEP)
        for step in range(steps):
            begin = 50 * number
            for _ in range(min(OPERATORS_PER_STEP, ops - number)):
                number += 1
                ts = 1_000_000 + 50 * number
                name = KERNELS[number % len(KERNELS)]
                size += file.write(
                    EVENTS.format(n=number, kind=number % 50, ts=ts, call=ts + 10, at=ts + 25, name=name)
                )
            ts, dur = 1_000_050 + begin, 50 * number - begin - 1
            size += file.write(STEP.format(step=step, ts=ts, dur=dur, end="" if step == steps - 1 else ","))
        size += file.write('], "traceName": "made up"}\n')
    return size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", type=int)
    parser.add_argument("path", type=Path)
    args = parser.parse_args()
    print(f"{args.path}: {write(args.path, args.events) / 1e6:.0f} MB of JSON")
