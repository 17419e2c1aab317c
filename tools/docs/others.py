"""What is shown of traces that others recorded. They are not kept here; `logs/reference/` holds what was computed:

samples.json: of the samples (`walkthrough.records.samples`), what the pages' strips and texts show
others.json: pairs of traces before and after one change, what `explain` predicted and what they show

    python -m tools.docs.others FOLDER     compute both anew from the traces in a folder, whatever their names
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tools.docs import sample_roofline, strips
from tools.docs.recorded import RECORDS
from tools.docs.strips import (
    COLLECTIVES,
    CONVERTING,
    CORES,
    LOADING,
    OTHERS,
    PLAIN,
    STEPPING,
    TO_GPU,
    WAITING,
    Cut,
    Stretch,
    stretch,
)
from walkthrough.advice.catalogue import Advice
from walkthrough.advice.comparison import change
from walkthrough.advice.gains import Gains, advise
from walkthrough.advice.input_costs import calls_of_copies
from walkthrough.advice.launch_costs import optimizer_kernels
from walkthrough.advice.replay import Change
from walkthrough.advice.report import report
from walkthrough.advice.wait_costs import Waits, waits, without_waits
from walkthrough.compare import predictions
from walkthrough.compare.predictions import Prediction
from walkthrough.compare.statistics import Ratio, of_windows
from walkthrough.compare.table import escaped, markdown_table
from walkthrough.explain.text import change_text, sentence, text, verdict
from walkthrough.records import samples
from walkthrough.results import result
from walkthrough.results.environment import git_revision, now
from walkthrough.results.errors import InputError, exit_in_one_line
from walkthrough.trace.analysis import Analysis, analyze
from walkthrough.trace.columns import in_turn
from walkthrough.trace.intervals import Cover
from walkthrough.trace.memory import direction
from walkthrough.trace.steps import is_backward

FILE, PAIRS = "samples.json", "others.json"


class Shown(Struct, frozen=True):
    """A stretch of a sample that pages show by its name, and what it is called above the picture.

    images: those trained on in a stretch of whole steps; 0: not known.
    """

    sample: str
    title: str
    cut: Cut = Cut()
    images: int = 0


STRETCHES = {  # {name in the pages: what it is}; after a change here, compute anew
    "v100_0_workers": Shown("resnet50_v100_0_workers", "0 workers, one step"),
    "v100_4_workers": Shown("resnet50_v100_4_workers", "4 workers, one step"),
    "owlv2_enlarged": Shown("owlv2_h100", "one of five images", Cut(around=LOADING, before_ms=4, after_ms=246)),
    "v100_fp32": Shown("resnet50_v100_ddp", "V100, fp32", images=32),
    "v100_amp": Shown("resnet50_v100_ddp", "V100, mixed precision", Cut("01_amp"), images=32),
    "a100_tf32": Shown("resnet50_a100_ddp", "A100, TF32"),
    # The same layers' backward pass in both: from the last block's addition to the first convolution.
    "v100_backward": Shown("resnet50_v100_ddp", "V100, fp32", Cut(around=OTHERS, before_ms=6.25, after_ms=3.4)),
    "a100_backward": Shown("resnet50_a100_ddp", "A100, TF32", Cut(around=OTHERS, before_ms=6.9, after_ms=1.3)),
    "v100_batch_32": Shown("resnet50_v100_4_workers", "two steps of batch 32", Cut(count=2), images=64),
    "v100_batch_64": Shown("resnet50_v100_4_workers", "one step of batch 64", Cut("02_bigger_batch"), images=64),
    **{
        name: Shown("resnet50_v100_4_workers", title, Cut(change, around=TO_GPU))
        for name, title, change in (
            ("v100_float32", "around the copy of a batch in float32", ""),
            ("v100_uint8", "the same batch in uint8", "03_reduced_h2d_copy"),
            ("v100_pageable", "V100, ResNet-50, pageable, one stream", ""),
        )
    },
    "v100_runs_ahead": Shown(
        "resnet50_v100_ddp", "V100, the first two steps traced", Cut(count=2, first=True, launches=True)
    ),
    "a100_overlapped": Shown("recommender_a100", "A100, recommender, pinned, a stream of its own", Cut(around=TO_GPU)),
    "v100_no_loader": Shown("resnet50_v100_ddp", "V100, no loader, one step"),
    "v100_no_gap": Shown(
        "resnet50_v100_ddp", "V100, fp32, part of a backward pass", Cut(around=PLAIN, before_ms=4, after_ms=4)
    ),
    "qwen_eager": Shown("qwen_h100", "eager, two of 24 layers", Cut(around=CORES, before_ms=1.0, after_ms=1.7)),
    "layer_compiled": Shown("compiled_mi300x", "compiled, one region"),
    "a100_all_reduce": Shown(
        "resnet50_a100_ddp",
        "two ranks, three of five all-reduces",
        Cut(around=COLLECTIVES, before_ms=6.0, after_ms=19.0, communication=True),
    ),
    "mi300x_ddp": Shown("resnet_mi300x_ddp", "one of eight ranks, a step", Cut(communication=True)),
    "a100_layout": Shown(
        "resnet50_a100_ddp",
        "A100, TF32: the gradient of the first convolution",
        Cut(around=CONVERTING, before_ms=0.3, after_ms=0.7),
    ),
    **{
        name: Shown(sample, title, Cut(around=STEPPING, before_ms=6, after_ms=28, launches=True))
        for name, sample, title in (
            ("v100_for_loop", "resnet50_v100_4_workers", "V100, for-loop"),
            ("v100_foreach", "resnet50_v100_ddp", "V100, foreach"),
        )
    },
    "v100_item": Shown(
        "recommender_v100", "V100: .item() in a recommender", Cut(around=WAITING, before_ms=30, after_ms=70)
    ),
    "h100_drained": Shown(
        "owlv2_h100", "H100: a copy to the GPU in a detector", Cut(around=WAITING, before_ms=45, after_ms=205, longer=1)
    ),
    "a100_launched": Shown("recommender_a100", "A100, eager, one step", Cut(launches=True)),
    "v100_graphs": Shown("recommender_v100", "V100, two graphs, one step", Cut(launches=True)),
}
WORK = ("resnet50_v100_4_workers", "resnet50_v100_ddp", "resnet50_a100_ddp")  # whose `work` is counted
TIMED = ("resnet50_v100_ddp", "resnet50_a100_ddp")  # whose `timers` are shown
WAITING_SAMPLES = ("recommender_v100", "owlv2_h100")  # whose waits for the GPU are counted
REPLAYED = ("owlv2_h100",)  # without some of its waits
EXPLAINED = {  # {a sample, or two with a blank between them: whether with tables}
    "resnet50_v100_0_workers": False,
    "resnet50_v100_0_workers resnet50_v100_4_workers": False,
    "resnet50_v100_ddp": False,
    "qwen_h100": True,
}
LEFT_OUT = ("Kernels:", "Operators", "Copies", "Memory", "Allocated", "What else stands out")  # of these


class Waiting(Struct, frozen=True):
    """How long a mean typical step takes, and what its `Waits` for the GPU are."""

    step_us: float
    waits: Waits


class Timers(Struct, frozen=True):
    """What a timer on the CPU shows that does not synchronise, and what the GPU does: µs of `TIMERS`, in turn.

    first, last: of the first and the last step, the timer: from the begin of the step's mark to the first operator of
    its backward pass, from there to the end of the last one, from there until `Optimizer.step` returns. At last how
    long the step takes, until its last kernel ends. kernels: of a mean step, how long kernels run that are launched in
    those times, and the step. queued: the most kernels, copies and sets that were launched and not yet done.
    """

    first: list[float]
    last: list[float]
    kernels: list[float]
    queued: int


TIMERS = ("forward, loss", "backward", "optimizer", "the step")


class Sampled(Struct, frozen=True):
    """What `samples.json` holds. sha256: {sample: …}. stretches: those of `STRETCHES`.

    explain: {sample, or two: what `explain` prints}. says: {sample: its first lines, without the evidence}. idle:
    {sample: {cause: µs of a typical step in which the GPU runs no kernel}}. work: {sample: {what: [count, µs] of a
    typical step}}, of those in `WORK`. waits: of `WAITING_SAMPLES`. replayed: {sample: {which waits are removed: µs of
    a typical step by a replay}}, of those in `REPLAYED`. roofline: of one sample.
    timers: of those in `TIMED`.
    """

    sha256: dict[str, str]
    stretches: dict[str, Stretch]
    explain: dict[str, str]
    says: dict[str, list[str]]
    idle: dict[str, dict[str, float]]
    work: dict[str, dict[str, tuple[float, float]]] = {}
    timers: dict[str, Timers] = {}
    waits: dict[str, Waiting] = {}
    replayed: dict[str, dict[str, float]] = {}
    roofline: sample_roofline.Work = {}


class Traced(Struct, frozen=True):
    """A trace. steps_us: the length of its steps, by name. outlying: those far longer than the others."""

    address: str
    sha256: str
    steps_us: dict[str, float] = {}
    outlying: list[str] = []

    @property
    def typical_us(self) -> list[float]:
        return [us for name, us in self.steps_us.items() if name not in self.outlying]


class Pair(Struct, frozen=True):
    """Two traces, before and after what one step of the walkthrough changes.

    advice: what `explain` says of that step in the first trace. gpu: None where the traces do not name it.
    """

    what: str
    step: str
    before: Traced
    after: Traced
    gpu: str | None = None
    advice: Advice | None = None

    @property
    def prediction(self) -> Prediction:
        """Measured: the median typical step before over that after."""
        return Prediction("", self.step, self.advice, gain(self.before.typical_us, self.after.typical_us))


class Others(Struct, frozen=True):
    """computed: when, ISO 8601. git: the commit of the code that did."""

    pairs: list[Pair]
    computed: str = ""
    git: str | None = None


def read_samples(root: Path = RECORDS) -> Sampled:
    """What was computed of the samples."""
    return msgspec.json.decode((root / FILE).read_bytes(), type=Sampled)


def read_pairs(root: Path = RECORDS) -> Others:
    """What the file in a folder of records holds; without it, no pairs."""
    path = root / PAIRS
    return msgspec.json.decode(path.read_bytes(), type=Others) if path.exists() else Others([])


def gain(before_us: Iterable[float], after_us: Iterable[float]) -> Ratio:
    """The median step before over that after, with the 95 % interval over these few steps."""
    return of_windows(*([1 / us for us in steps_us] for steps_us in (after_us, before_us)))


def traces_in(folder: Path) -> dict[str, Path]:
    """{SHA-256: path} of the traces in a folder and below it."""
    files = [path for path in sorted(folder.rglob("*.json*")) if path.is_file()]
    return {samples.sha256(path): path for path in files}


def samples_in(traces: Mapping[str, Path], names: Iterable[str]) -> dict[str, Path]:
    """{name: path} of these samples, from traces by their SHA-256. Raises InputError where one is missing."""
    listed = samples.read_list().by_name
    if missing := [name for name in names if listed[name].sha256 not in traces]:
        raise InputError(f"the folder lacks the trace {missing[0]}: `walkthrough samples` fetches it")
    return {name: traces[listed[name].sha256] for name in names}


def checksums(names: Iterable[str]) -> dict[str, str]:
    """{name: SHA-256} of samples, as they are listed."""
    listed = samples.read_list().by_name
    return {name: listed[name].sha256 for name in names}


def compute_samples(traces: Mapping[str, Path]) -> Sampled:
    """All of `Sampled`, from traces by their SHA-256. Raises InputError where one is missing."""
    paths = samples_in(traces, [*(shown.sample for shown in STRETCHES.values()), *" ".join(EXPLAINED).split()])
    analyses = {name: analyze(path) for name, path in paths.items()}
    return Sampled(
        sha256=checksums(paths),
        stretches={name: stretch(analyses[shown.sample], shown.cut) for name, shown in STRETCHES.items()},
        explain={
            names: _explained([analyses[name] for name in names.split()], everything)
            for names, everything in EXPLAINED.items()
        },
        says={name: says(analysis) for name, analysis in analyses.items()},
        idle={name: _idle(analysis) for name, analysis in analyses.items()},
        work={name: work(analyses[name]) for name in WORK},
        timers={name: timers(analyses[name]) for name in TIMED},
        waits={name: _waiting(analyses[name].typical) for name in WAITING_SAMPLES},
        replayed={name: replayed(analyses[name].typical) for name in REPLAYED},
        roofline=sample_roofline.work(analyses[sample_roofline.SAMPLE]),
    )


def says(analysis: Analysis) -> list[str]:
    """Where time goes, the first piece of advice, and its evidence: a line each, as `explain` prints them."""
    shown = report(analysis)
    lines = [verdict(shown)]
    for first in shown["advice"][:1]:
        lines += [f"1  {first['title']}  {first['gain']}".rstrip(), sentence(first["why"])]
    return lines


def _explained(analyses: Sequence[Analysis], everything: bool) -> str:
    """What `explain` prints of a trace, or two; everything: with --all, without the parts named in `LEFT_OUT`."""
    first, *second = [report(analysis) for analysis in analyses]
    if second:
        return change_text(first, second[0], change(first, second[0]))
    parts = text(first, everything).rstrip("\n").split("\n\n")
    return "\n\n".join(part for part in parts if not part.startswith(LEFT_OUT)) + "\n"


def _idle(analysis: Analysis) -> dict[str, float]:
    typical = analysis.typical
    causes = typical.idle[0].causes_us if typical.idle else {}
    return {cause: round(us / len(typical.steps.names), 1) for cause, us in causes.items()}


def work(analysis: Analysis) -> dict[str, tuple[float, float]]:
    """Matrix work, layout conversions, `Optimizer.step` and its kernels: how many per typical step, and their µs."""
    typical, optimizer = analysis.typical, analysis.phases.optimizer
    group, steps = strips.kernel_groups(typical), typical.steps
    kernels = {name: group == name for name in (strips.CORES, strips.PLAIN, strips.CONVERTING)}
    kernels["kernels of the optimizer"] = optimizer_kernels(typical)
    counts = {name: (typical.count_per_step(mask), typical.us_per_step(mask)) for name, mask in kernels.items()}
    on_cpu = float(optimizer.within(steps.cpu_start, steps.cpu_end).sum()) / len(steps.names)
    counts["Optimizer.step on the CPU"] = (1, on_cpu)
    return {name: (round(count, 1), round(us, 1)) for name, (count, us) in counts.items()}


def timers(analysis: Analysis) -> Timers:
    """The `Timers` of a trace, each step of which has a backward pass and an update."""
    trace, steps, optimizer = analysis.trace, analysis.steps, analysis.phases.optimizer
    backward = trace.operators.where(trace.named(trace.operators, is_backward))
    edges = np.empty((len(steps.names), 4))
    for at, (begin, end) in enumerate(zip(steps.cpu_start, steps.cpu_end, strict=True)):
        passing = (backward.start >= begin) & (backward.start < end)
        updating = (optimizer.start >= begin) & (optimizer.start < end)
        backward_begin, backward_end = backward.start[passing].min(), backward.end[passing].max()
        edges[at] = begin, backward_begin, backward_end, optimizer.end[updating].max()
    launched = [analysis.launched_in(Cover(edges[:, at], edges[:, at + 1])) for at in range(3)]
    running = [trace.kernels.cover(mask).total / len(steps.names) for mask in launched]
    work = trace.device_work
    begins, ends = np.sort(trace.runtime.start[work.call[work.call >= 0]]), np.sort(work.end[work.call >= 0])
    queued = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, "right")
    first, last = ([*np.diff(edges[at]), steps.duration[at]] for at in (0, -1))
    first, last, kernels = ([round(float(us), 1) for us in part] for part in (first, last, [*running, steps.mean_us]))
    return Timers(first, last, kernels, int(queued.max(initial=0)))


def _waiting(analysis: Analysis) -> Waiting:
    return Waiting(analysis.steps.mean_us, waits(analysis))


def replayed(analysis: Analysis) -> dict[str, float]:
    """µs of a mean typical step without some of its waits for the GPU, by which of them; "none" is the replay alone.

    Of a wait after a copy, the direction of the copy tells which it is.
    """
    trace, replay = analysis.trace, Gains(analysis).replay
    changes, (before, following) = {"none": Change()}, in_turn(trace.runtime)
    for name, what in (("h2d", "those at copies to the GPU"), ("d2h", "those at copies to the CPU")):
        copying = calls_of_copies(analysis, direction(trace, name))
        after = np.zeros(len(copying), bool)
        after[following] = copying[before]
        gone = after & trace.calls.waits
        changes[what] = Change(returns=gone | copying if name == "d2h" else gone)
    changes["all"] = without_waits(analysis)
    return {what: round(float(replay.step_us(change)[replay.typical].mean()), 1) for what, change in changes.items()}


def compute_pair(pair: Pair, traces: Mapping[str, Path]) -> Pair:
    """The same pair with what its traces show; see `traces_in`. Raises InputError where one is missing."""
    missing = [traced.address for traced in (pair.before, pair.after) if traced.sha256 not in traces]
    if missing:
        raise InputError(f"the folder lacks the trace of {missing[0]}")
    before, after = (analyze(traces[traced.sha256]) for traced in (pair.before, pair.after))
    return replace(
        pair,
        before=_traced(pair.before, before),
        after=_traced(pair.after, after),
        gpu=before.gpus[0].name if before.gpus else None,
        advice=next((advice for advice in advise(before).costs if advice.step == pair.step), None),
    )


def _traced(traced: Traced, analysis: Analysis) -> Traced:
    lengths = dict(zip(analysis.steps.names, analysis.steps.duration.tolist(), strict=True))
    return replace(traced, steps_us=lengths, outlying=[step.name for step in analysis.outliers])


def pairs_table(others: Others) -> str:
    """What was predicted of each pair, and measured, in Markdown."""
    rows = []
    predicted = predictions.table([pair.prediction for pair in others.pairs], replayed=True)
    for pair, (_, about, most, measured, outcome) in zip(others.pairs, predicted.texts(), strict=True):
        links = f"[before]({pair.before.address}), [after]({pair.after.address})"
        every = gain(pair.before.steps_us.values(), pair.after.steps_us.values())
        steps = list(pair.before.steps_us)
        what = escaped(f"{pair.what}, steps {steps[0]} to {steps[-1]}, {pair.gpu or 'a GPU that is not named'}")
        why = escaped(f"{pair.prediction.why}; {outcome}")
        rows.append([f"{what}: {links}", about, most, measured, f"{every.ratio:.2f}x", why])
    headers = ["traces", ">about", ">at most", ">measured", ">median of all steps", "why, and outcome"]
    computed = f"Computed on {others.computed[:10]} at commit {others.git}, by `python -m tools.docs.others FOLDER`."
    return f"{markdown_table(headers, rows)}\n\n{computed}"


def main(words: Sequence[str]) -> None:
    """Exit code 0; 2 with one line where a sample is missing or broken. Pairs stay without all of theirs."""
    exit_in_one_line()
    if len(words) != 1 or not Path(words[0]).is_dir():
        raise InputError("name one folder, with the samples: `walkthrough samples` fetches them into logs/samples")
    if (git_revision() or "").endswith("-dirty"):
        raise InputError("the working tree has changes: commit them first, as the pages name the commit")
    traces, pairs = traces_in(Path(words[0])), read_pairs().pairs
    sampled = msgspec.json.encode(compute_samples(traces), order="deterministic")
    result.write_whole(RECORDS / FILE, sampled + b"\n")
    print(f"written: {RECORDS / FILE}; then: make docs-figures")
    if all(traced.sha256 in traces for pair in pairs for traced in (pair.before, pair.after)):
        others = Others([compute_pair(pair, traces) for pair in pairs], now(), git_revision())
        result.write_whole(RECORDS / PAIRS, msgspec.json.format(msgspec.json.encode(others), indent=2) + b"\n")
        print(f"written: {RECORDS / PAIRS}")


if __name__ == "__main__":
    main(sys.argv[1:])
