"""What torch-tb-profiler shows of traces that others recorded, as it was released and as this project patches it.

`logs/reference/profiler_tab.json` holds what was computed: the page about TensorBoard has a table of it.

    python -m tools.docs.profiler_tab FOLDER    compute it anew from the samples in a folder, whatever their names
"""

import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tools.docs.others import checksums, samples_in, traces_in
from tools.docs.recorded import RECORDS
from walkthrough.compare.table import code, escaped, markdown_table
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, exit_in_one_line
from walkthrough.terminal import time_text
from walkthrough.trace.steps import ROLES

FILE = "profiler_tab.json"


class Figures(Struct, frozen=True):
    """What the tab shows of a trace. Times in µs; those of roles and of communication are of its mean step.

    operators_us: device time of all operators, in the whole trace. tensor_cores: share of the kernels' time. sized: how
    many of the collectives have a size. hidden_us: of the communication. peak_bytes: of the memory curve; None where
    the trace has none, or where drawing it fails, with the error in `failure`.
    """

    steps: int
    step_us: float
    dataloader_us: float
    runtime_us: float
    operators_us: float
    tensor_cores: float
    collectives: int
    sized: int
    communication_us: float
    hidden_us: float
    peak_bytes: float | None = None
    failure: str = ""


class Compared(Struct, frozen=True):
    """The same of samples by the release and with the patches: {sample: figures}. sha256: {sample: …}."""

    sha256: dict[str, str]
    release: dict[str, Figures]
    patched: dict[str, Figures]


class Row(Struct, frozen=True):
    """A figure of a view that the release gets wrong. why: what misleads the release."""

    view: str
    figure: str
    sample: str
    text: Callable[[Figures], str]
    why: str


def _steps(shown: Figures) -> str:
    return f"{shown.steps} of {time_text(shown.step_us)}"


def _time(us: float) -> str:
    return time_text(us) if us else "0"


def _tensor_cores(shown: Figures) -> str:
    return f"{shown.tensor_cores:.1%}"


def _peak(shown: Figures) -> str:
    return shown.failure or f"{(shown.peak_bytes or 0) / 1e9:.2f} GB"


ROWS = (  # of the page; after a change of a sample here, compute anew
    Row(
        "Overview",
        "DataLoader, per step",
        "owlv2_h100",
        lambda shown: _time(shown.dataloader_us),
        "the loader's mark is an annotation today; the release drops it",
    ),
    Row(
        "Overview",
        "Runtime, per step",
        "resnet50_a100_ddp",
        lambda shown: _time(shown.runtime_us),
        "calls are `cuda_runtime` today, not `Runtime`: it finds none",
    ),
    Row(
        "Overview",
        "steps, their mean",
        "resnet50_v100_ddp",
        _steps,
        "without the calls, it does not know which kernels a step launched: a step ends with its mark on the CPU",
    ),
    Row(
        "Overview",
        "the same",
        "resnet_mi300x_ddp",
        _steps,
        "it also counts the GPU's copies of the step marks",
    ),
    Row(
        "Operator",
        "device time of all operators, whole trace",
        "resnet50_a100_ddp",
        lambda shown: _time(shown.operators_us),
        "without the calls, no kernel belongs to an operator",
    ),
    Row(
        "GPU Kernel",
        "Using Tensor Cores",
        "gpt_oss_b200",
        _tensor_cores,
        "its list of kernel names ends in 2020",
    ),
    Row(
        "GPU Kernel",
        "the same, AMD's Matrix Cores",
        "compiled_mi300x",
        _tensor_cores,
        "no name of an AMD kernel is in the list",
    ),
    Row(
        "Memory",
        "peak of the curve",
        "qwen_mi300x",
        _peak,
        "it does not know AMD's number for a GPU",
    ),
    Row(
        "Distributed",
        "collectives with a size",
        "resnet50_a100_ddp",
        lambda shown: f"{shown.sized} of {shown.collectives}",
        "the size is in the event around the collective today",
    ),
    Row(
        "Distributed",
        "collectives",
        "recommender_v100",
        lambda shown: str(shown.collectives),
        "it does not know `all_to_all`",
    ),
    Row(
        "Distributed",
        "communication that computing hides, per step",
        "resnet50_a100_ddp",
        lambda shown: f"{_time(shown.hidden_us)} of {_time(shown.communication_us)}",
        "it counts NCCL's kernels as computing: they hide themselves",
    ),
)


def read(root: Path = RECORDS) -> Compared:
    """What was computed."""
    return msgspec.json.decode((root / FILE).read_bytes(), type=Compared)


def table(compared: Compared) -> str:
    """A line for each of `ROWS`, in Markdown."""
    rows = [
        [
            row.view,
            escaped(row.figure),
            code(row.sample),
            escaped(row.text(compared.release[row.sample])),
            escaped(row.text(compared.patched[row.sample])),
            row.why,
        ]
        for row in ROWS
    ]
    return markdown_table(["view", "figure", "sample", ">release 0.4.3", ">here", "why the release is wrong"], rows)


def compute(traces: Mapping[str, Path]) -> Compared:
    """All of `Compared`, from traces by their SHA-256. Raises InputError where one is missing."""
    paths = samples_in(traces, [row.sample for row in ROWS])
    shown = (_shown(which, list(paths.values())) for which in ("release", "patched"))
    return Compared(checksums(paths), *(dict(zip(paths, figures, strict=True)) for figures in shown))


def _shown(which: str, paths: Sequence[Path]) -> list[Figures]:
    """Figures of traces by "release" or "patched": in a process of its own, since patches hold for all of it."""
    command = [sys.executable, "-m", "tools.docs.profiler_tab", which, *map(str, paths)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if finished.returncode:
        raise InputError(f"torch-tb-profiler fails: {finished.stderr.decode(errors='replace')[-500:]}")
    return msgspec.json.decode(finished.stdout, type=list[Figures])


def figures(path: str) -> Figures:
    """What torch-tb-profiler shows of a trace, as it is in this process."""
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    data: Any = RunProfileData.parse("worker", None, path, tempfile.gettempdir())
    profile: Any = RunGenerator("worker", None, data).generate_run_profile()
    costs, overlap, rows = data.avg_costs.costs, data.comm_overlap_costs, profile.operation_table_by_name["data"]
    peak, failure = None, ""
    if profile.memory_snapshot:
        try:
            profile.get_memory_curve()
            peak = float(max(data.memory_snapshot.get_peak_memory().values()))
        except Exception as error:
            failure = type(error).__name__
    return Figures(
        steps=len(data.steps_names),
        step_us=costs[-1],
        dataloader_us=costs[ROLES.index("dataloader")],
        runtime_us=costs[ROLES.index("runtime")],
        operators_us=sum(row.get("device_self_duration") or 0 for row in rows),
        tensor_cores=dict(profile.tc_pie["total"]["rows"])["Using Tensor Cores"],
        collectives=len(data.comm_node_list),
        sized=sum(bool(node.input_shape) for node in data.comm_node_list),
        communication_us=sum(one.communication for one in overlap) / len(overlap),
        hidden_us=sum(one.overlap for one in overlap) / len(overlap),
        peak_bytes=peak,
        failure=failure,
    )


def main(words: Sequence[str]) -> None:
    """Exit code 0; 2 with one line where a sample or torch-tb-profiler is missing."""
    if words[:1] in (["release"], ["patched"]):
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")  # the plugin's own: it was written for the pandas of 2021
        if words[0] == "patched":
            import walkthrough.tensorboard.profiler_parser  # noqa: F401  # which patches the plugin's parser
        sys.stdout.buffer.write(msgspec.json.encode([figures(path) for path in words[1:]], enc_hook=float))  # of numpy
        return
    exit_in_one_line()
    if len(words) != 1 or not Path(words[0]).is_dir():
        raise InputError("name one folder, with the samples: `walkthrough samples` fetches them")
    compared = msgspec.json.encode(compute(traces_in(Path(words[0]))))
    result.write_whole(RECORDS / FILE, msgspec.json.format(compared, indent=2) + b"\n")
    print(f"written: {RECORDS / FILE}; then: make docs-figures")


if __name__ == "__main__":
    main(sys.argv[1:])
