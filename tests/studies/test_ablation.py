"""The ablation: its program is the steps', its plan, its runs and how they go on, and what follows from them."""

import functools
import io
import itertools
import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from filelock import FileLock
from rich.console import Console
from support import NAMES, ROOT, SmallNet, make_result
from test_steps import reads

from common import data
from common.options import StepOptions, options_from
from common.session import unmet_need
from studies import ablation as ablate
from studies import effects, study, switches
from studies.ablation import (
    FILE,
    LADDER,
    PAIRS,
    Ablation,
    Measurement,
    NotMeasured,
    Optimisations,
    Pair,
    Variant,
    no_effect,
    read,
    variants,
)
from walkthrough.cli import main
from walkthrough.compare import statistics
from walkthrough.compare.figures import MEMORY, SPEED, UNRESOLVED, save
from walkthrough.compare.statistics import of_pairs
from walkthrough.compare.tour import step_files
from walkthrough.results.errors import InputError
from walkthrough.results.result import Setup, StepTime, Throughput

OPTIONS = StepOptions(
    logdir=Path("/nowhere"), device="cpu", data=ROOT / "data", download=False, model="mobilenet_v2", image_size=32,
    batch_size=8, workers=0, precision="auto", seed=0, quick=True, stacks=False,
)  # fmt: skip

# The program


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in data set's images are made once."""
    once = functools.cache(lambda count: original(data.np.arange(count) % 10, data.np.random.default_rng(1)))
    original = data._striped_images
    monkeypatch.setattr(data, "_striped_images", lambda labels, generator: once(len(labels)))


@pytest.fixture(params=["fp32", "bf16"])
def bench(monkeypatch, stand_in, tmp_path, capture_step, request):
    """bench(k, workers): step k and the program with all optimisations up to it, as namespaces to compare.

    Both on `SmallNet`, in each precision, on a CPU with bf16 hardware or without; torch.compile leaves models as they
    are.
    """
    compiled, models = [], []

    def leave(target=None, mode=None):
        if target is None:
            return lambda function: leave(function, mode)
        compiled.append((target, mode))
        return target

    monkeypatch.setattr(torch, "compile", leave)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(switches, "classifier", lambda *_: models.append(SmallNet()) or models[-1])

    def with_model(training, model):
        return SimpleNamespace(
            loader=training.loader, train_step=training.train_step, model=model,
            compiled=[("model" if target is model else "function", mode) for target, mode in compiled],
            cudnn_benchmark=torch.backends.cudnn.benchmark,
        )  # fmt: skip

    def both(k, workers=0):  # each is used before the next is made, which seeds anew
        compiled.clear()
        torch.backends.cudnn.benchmark = False
        words = {"--data": tmp_path, "--batch-size": 8, "--workers": workers, "--precision": request.param}
        step = capture_step(NAMES[k], *(str(word) for item in words.items() for word in item))
        yield with_model(step, step.model)
        compiled.clear()
        training = switches.training(Optimisations(**dict.fromkeys(ablate.NAMES[:k], True)), step.args)
        yield with_model(training, models[-1])

    return both


def closure(function):
    return {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True)
    }  # fmt: skip


def test_the_optimisations_are_the_steps():
    assert (*(name[3:] for name in NAMES[1:-1]), "tf32") == ablate.NAMES  # the last step needs several processes


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
@pytest.mark.parametrize("k", range(len(NAMES) - 1), ids=NAMES[:-1])
def test_with_all_up_to_a_step_the_program_is_that_step(bench, monkeypatch, k):
    facts = []
    to = torch.Tensor.to
    for training in bench(k):
        waits, asked, dtypes = 0, [], []
        training.model.layers[0].register_forward_hook(lambda *seen, dtypes=dtypes: dtypes.append(seen[2].dtype))
        losses = []
        for images, labels in itertools.islice(training.loader, 3):
            with monkeypatch.context() as patch:
                patch.setattr(
                    torch.Tensor,
                    "to",
                    lambda self, *a, asked=asked, **k: asked.append(k.get("non_blocking", False)) or to(self, *a, **k),
                )
                waits += reads(training, images, labels)
            losses.append(training.train_step(images, labels).item())
        cells = closure(training.train_step)
        facts.append(
            {
                "losses": losses,
                "last images": training.model.seen.sum().item(),
                "batch": (images.dtype, tuple(images.shape), images.stride()),
                "waits for values": waits,
                "copies, non_blocking": asked,
                "precision": set(dtypes),
                "optimizer": cells["optimizer"].defaults,
                "channels last": training.model.layers[0].weight.is_contiguous(memory_format=torch.channels_last),
                "compiled": training.compiled,
                "cudnn.benchmark": training.cudnn_benchmark,
                "curve": [type(value) for value in cells["losses"]],
            }
        )
    step, combined = facts
    assert combined == step


@pytest.mark.parametrize("k", range(len(NAMES) - 1), ids=NAMES[:-1])
def test_its_loader_is_that_step_s(bench, k):
    step, combined = (training.loader for training in bench(k, workers=1))
    for name in ("batch_size", "num_workers", "prefetch_factor", "pin_memory"):
        assert getattr(combined, name) == getattr(step, name), name
    assert type(combined) is type(step)
    assert repr(combined.dataset.transform) == repr(step.dataset.transform)
    step, combined = (getattr(loader, "loader", loader) for loader in (step, combined))  # that which is prefetched
    for name in ("persistent_workers", "drop_last"):
        assert getattr(combined, name, None) == getattr(step, name, None), name
    assert type(getattr(combined, "sampler", None)) is type(getattr(step, "sampler", None))


def printed(capsys, on=(), **changes):
    """What a measurement's process prints: its last line."""
    options = asdict(replace(OPTIONS, **changes))
    switches.main(json.dumps({"on": dict.fromkeys(on, True), "options": options}, default=str))
    return json.loads(capsys.readouterr().out.splitlines()[-1])["answer"]


@pytest.fixture
def small(monkeypatch, stand_in):
    monkeypatch.setattr(switches, "classifier", lambda *_: SmallNet())
    monkeypatch.setattr(switches, "QUICK", replace(switches.QUICK, window_seconds=0.0))


def test_a_measurement_prints_its_windows_step_time_and_first_step(small, capsys):
    answer = printed(capsys, ["bigger_batch", "on_device_data"])
    assert len(answer["windows"]) == 5
    assert min(answer["windows"]) > 0
    assert answer["batch_size"] == 8
    assert 0 < answer["step_ms"]["p10"] <= answer["step_ms"]["median"] <= answer["step_ms"]["p90"]
    assert answer["first_step_seconds"] > 0
    assert printed(capsys, ["on_device_data"])["batch_size"] == 32


@pytest.mark.parametrize("precision, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_measurement_computes_in_the_precision_of_the_options(small, capsys, monkeypatch, precision, dtype):
    dtypes = set()
    forward = SmallNet.forward

    def seen(self, images):
        logits = forward(self, images)
        dtypes.add(logits.dtype)
        return logits

    monkeypatch.setattr(SmallNet, "forward", seen)
    printed(capsys, ["amp", "on_device_data"], precision=precision)
    assert dtypes == {dtype}


def test_what_cannot_be_run_is_one_line(small, capsys, monkeypatch):
    on = ["bigger_batch", "on_device_data"]
    assert "larger than the data (50000 images)" in printed(capsys, on, batch_size=50_001)["not_run"]
    monkeypatch.setattr(torch, "compile", lambda *_, **__: 1 / 0)
    assert printed(capsys, ["compile", *on])["not_run"].startswith("torch.compile failed: ZeroDivisionError")

    def killed(*_, **__):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    with monkeypatch.context() as patch:
        patch.setattr(switches, "time_training", killed)
        assert "killed by signal" in printed(capsys, on)["failed"]  # which need not happen again

    def no_memory(*_, **__):
        raise MemoryError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(switches, "time_training", no_memory)
        assert printed(capsys, on)["not_run"].endswith("with batch size 8: try --batch-size 4")
        assert printed(capsys, on[1:])["not_run"].endswith("try a smaller --model or --image-size")  # step 00's batch
    monkeypatch.setattr(switches, "classifier", no_memory)
    assert "out of memory" in printed(capsys, on)["not_run"]
    monkeypatch.setattr(switches, "classifier", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        printed(capsys, on)


# The plan

ON_NO_GPU = [  # without effect
    "amp", "pinned_memory", "prefetch_stream", "no_hidden_syncs", "cudnn_benchmark", "cuda_graphs", "tf32",
]  # fmt: skip


def names_of(variants):
    return [variant.name for variant in variants]


def test_on_a_gpu_every_optimisation_is_enabled_and_left_out():
    every = variants({})
    first = ["baseline", *(f"baseline + {name}" for name in ablate.NAMES), "full", "control"]
    last = [f"baseline + {pair}" for pair in PAIRS]
    names = names_of(every)
    assert (names[: len(first)], names[-len(last) :]) == (first, last)
    assert sorted(names[len(first) : -len(last)]) == sorted([
        "full without compile_loss and cuda_graphs",
        *(f"full without {name}" if name in LADDER else f"full + {name}" for name in ablate.NAMES),
    ])  # fmt: skip
    by_name = {variant.name: set(variant.on) for variant in every}
    assert by_name["baseline"] == by_name["control"] == set()
    assert by_name["full"] == set(LADDER)
    assert by_name["full without amp"] == set(LADDER) - {"amp"}
    assert by_name["full + on_device_data"] == {*LADDER, "on_device_data"}
    assert by_name["full + tf32"] == {*LADDER, "tf32"}
    assert by_name["baseline + amp + channels_last"] == {"amp", "channels_last"}
    assert Variant("x", ("amp",)).optimisations == Optimisations(amp=True)


def test_what_needs_another_comes_and_goes_with_it():
    by_name = {variant.name: set(variant.on) for variant in variants({})}
    for name, needed in ablate.NEEDS.items():
        assert by_name[f"baseline + {name}"] == by_name[ablate.alone(name)] == {needed, name}
        assert ablate.before(name) == f"baseline + {needed}"
        assert name not in by_name[f"full without {needed}"]
        with_it, without_it = (by_name[variant] for variant in ablate.in_full(needed))
        assert with_it == without_it | {needed}
        assert by_name[f"full without {name}"] == set(LADDER) - {name}
    assert ablate.before("amp") == "baseline"


def test_what_is_measured_alone_is_in_no_ladder():
    every = variants({}, alone_only=["amp"])
    assert "baseline + amp" in names_of(every)
    assert "full without amp" not in names_of(every)
    assert not any("amp" in variant.on for variant in every if variant.name.startswith("full"))


def test_what_has_no_effect_on_this_device_is_not_measured():
    options = replace(OPTIONS, batch_size=128, workers=2)
    reasons = no_effect(options, "autocast is off: so")
    assert list(reasons) == ON_NO_GPU
    assert reasons["amp"] == "autocast is off: so"
    assert reasons["prefetch_stream"].startswith("no GPU: there is no copy to overlap")
    every = variants(reasons)
    without_all = ablate.in_full("compile")[0]  # full without all that needs compile, whether it has an effect or not
    named = set(names_of(every)) - {without_all}
    assert not [name for name in named if any(reason in name for reason in reasons)]
    assert next(variant for variant in every if variant.name == "full").on == LADDER  # as step 15 on a CPU
    assert no_effect(replace(options, device="cuda:1"), None) == {}
    no_change = replace(options, device="cuda", batch_size=32, workers=0)
    assert list(no_effect(no_change, None)) == ["bigger_batch", "multiprocess_loading"]


def test_an_optimisation_has_no_effect_where_its_step_says_so():
    cpu = torch.device("cpu")
    needing = [step.stem[3:] for step in step_files() if unmet_need(str(step), cpu, torch.bfloat16) == "a GPU"]
    assert needing == [name for name in ON_NO_GPU if name not in ("amp", "tf32")]


def test_where_compile_cannot_run_the_full_ladder_is_without_it():
    compiling = ["compile", "compile_loss", "cuda_graphs"]
    every = variants(compiling)
    assert not any(set(compiling) & set(variant.on) for variant in every)
    assert "full without amp" in names_of(every)


def test_a_pair_reads_as_its_two_names():
    assert str(Pair("amp", "compile")) == "amp + compile"


# Runs, and how they go on


@pytest.fixture
def fake(monkeypatch):
    """In place of measurements: what was measured, `answers` {variant: what its process prints instead}, and a stop.

    bf16: the bf16 instructions of the CPU.
    """
    state = SimpleNamespace(log=[], precisions={}, answers={}, stop=None, ends=KeyboardInterrupt, bf16=None)

    def measured(variant, options):
        if len(state.log) == state.stop:
            raise state.ends
        state.log.append(variant.name)
        state.precisions[variant.name] = options.precision
        plain = {"windows": [99.0, 100.0, 102.0], "step_ms": {"median": 1.0, "p10": 1.0, "p90": 1.0},
                 "first_step_seconds": 0.5, "batch_size": 32}  # fmt: skip
        return state.answers.get(variant.name, plain)

    monkeypatch.setattr(ablate, "measured", measured)
    monkeypatch.setattr("common.model.classifier", lambda *_: None)
    for module in ("common.device", "walkthrough.results.environment", "studies.ablation"):
        monkeypatch.setattr(f"{module}.cpu_bf16_hardware", lambda: state.bf16)
    return state


def ended(tmp_path, *words):
    with pytest.raises(SystemExit) as end:
        main(["ablate", *"--device cpu --quick --workers 1".split(), "--logdir", str(tmp_path), *map(str, words)])
    return end.value.code


EVERY = names_of(variants(ON_NO_GPU))


def test_runs_are_interleaved_and_every_measurement_is_kept(fake, tmp_path, capsys):
    assert ended(tmp_path, "--runs", 3) == 0
    assert fake.log == EVERY + EVERY[::-1] + EVERY
    ablation = read(tmp_path)
    assert [(measurement.run, measurement.variant) for measurement in ablation.measurements] == [
        (run, name) for run in (1, 2, 3) for name in (EVERY[::-1] if run == 2 else EVERY)
    ]
    assert ablation.measurements[1].samples_per_second == Throughput(100.0, [99.0, 100.0, 102.0])
    assert (ablation.missing, ablation.precision) == ([], "float32")
    text = capsys.readouterr().out
    no_amp = "amp has no effect on this device: autocast is off: this CPU has no bf16"
    for words in (no_amp, "3 interleaved run(s)", "No measurable interaction", "full", "Smoke run"):
        assert words in text


def test_where_bf16_may_be_slower_amp_is_measured_alone_and_is_in_no_ladder(fake, tmp_path, capsys):
    fake.bf16 = "AVX512-BF16"
    assert ended(tmp_path, "--runs", 1) == 0
    ablation = read(tmp_path)
    assert (ablation.alone_only, ablation.precision, ablation.missing) == (["amp"], "float32", [])
    assert "amp" not in {optimisation.name for optimisation in ablation.no_effect}
    with_amp = {variant.name for variant in ablation.variants if "amp" in variant.on}
    assert with_amp == {"baseline + amp", *(f"baseline + {pair}" for pair in PAIRS if pair.first == "amp")} - {
        "baseline + amp + tf32"
    }
    assert {name: "bf16" if name in with_amp else "auto" for name in fake.log} == fake.precisions
    text = " ".join(capsys.readouterr().out.split())
    assert "--precision bf16 tries it: amp is measured alone, in bf16" in text
    assert "full: all together but on_device_data, tf32, amp." in text


@pytest.mark.parametrize(
    "bf16, words, precision",
    [("AVX512-BF16", ["--precision", "bf16"], "bfloat16"), (None, ["--precision", "bf16"], "bfloat16"),
     ("AMX", [], "bfloat16"), (None, [], None), ("AVX512-BF16", ["--precision", "fp32"], None)],
)  # fmt: skip
def test_where_it_is_chosen_amp_is_in_the_full_ladder_and_else_it_has_no_effect(fake, tmp_path, bf16, words, precision):
    fake.bf16 = bf16
    assert ended(tmp_path, "--runs", 1, *words) == 0
    ablation = read(tmp_path)
    assert (ablation.alone_only, ablation.precision) == ([], precision or "float32")
    assert ("full without amp" in fake.log) == ("baseline + amp" in fake.log) == (precision is not None)
    assert ("amp" in {optimisation.name for optimisation in ablation.no_effect}) == (precision is None)
    assert set(fake.precisions.values()) == {words[1] if words else "auto"}


def test_the_time_to_go_is_printed_once_a_program_of_each_kind_ran():
    plain, compiled = Variant("a", ("amp",)), Variant("b", ("amp", "compile"))
    assert ablate._to_go({False: [60.0], True: []}, [plain, compiled]) == ""
    assert ablate._to_go({False: [60.0], True: []}, [plain, plain]) == ", about 2 min to go"
    assert ablate._to_go({False: [60.0], True: [300.0, 120.0, 180.0]}, [plain, compiled]) == ", about 4 min to go"


@pytest.mark.parametrize("ends, code", [(KeyboardInterrupt, 130), (SystemExit(143), 143)])
def test_ctrl_c_leaves_what_was_measured_and_resume_goes_on_there(fake, tmp_path, capsys, ends, code):
    fake.ends, fake.stop = ends, 0
    assert ended(tmp_path, "--runs", 2) == code
    assert "goes on" not in capsys.readouterr().err
    fake.stop = 5
    assert ended(tmp_path, "--runs", 2) == code
    assert "the same command goes on" in capsys.readouterr().err
    assert len(read(tmp_path).measurements) == 5
    fake.log, fake.stop = [], None
    assert ended(tmp_path, "--runs", 2) == 0
    assert fake.log == EVERY[5:] + EVERY[::-1]
    assert read(tmp_path).missing == []


def test_resume_adds_runs_and_does_nothing_where_all_is_done(fake, tmp_path, capsys, monkeypatch):
    assert ended(tmp_path, "--runs", 2) == 0  # nothing is there: a new one
    fake.log = []
    assert ended(tmp_path, "--runs", 1) == 0
    assert fake.log == []
    assert ended(tmp_path, "--runs", 3) == 0
    assert fake.log == EVERY
    assert read(tmp_path).runs == 3
    monkeypatch.setattr(ablate, "code_hash", lambda *_: "other")  # what is whole can be shown for ever
    capsys.readouterr()
    assert ended(tmp_path, "--runs", 3) == 0
    assert fake.log == EVERY
    assert "3 interleaved run(s)" in capsys.readouterr().out


def refused(tmp_path, capsys, *words):
    capsys.readouterr()
    assert ended(tmp_path, *words) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_another_ablation_is_not_touched(fake, tmp_path, capsys, monkeypatch):
    ended(tmp_path, "--runs", 1)
    before = (tmp_path / FILE).read_bytes()
    assert "seed 0, not 3" in refused(tmp_path, capsys, "--seed", 3)
    assert "image size 48, not 64" in refused(tmp_path, capsys, "--image-size", 64)
    assert "precision 'float32', not 'bfloat16'" in refused(tmp_path, capsys, "--precision", "bf16")
    with monkeypatch.context() as patch:
        patch.setattr("walkthrough.results.environment.usable_cores", lambda: 99)
        patch.setattr("studies.study.usable_cores", lambda: 99)
        assert refused(tmp_path, capsys, "--runs", 2).count(", not 99") == 1
    with monkeypatch.context() as patch:
        patch.setattr("torch.__version__", "1.0")
        line = refused(tmp_path, capsys, "--runs", 2)
        assert re.search(r"torch '[^']+', not '1\.0'", line)
        assert "seed 0, not 3" in refused(tmp_path, capsys, "--runs", 1, "--seed", 3)
    with monkeypatch.context() as patch:
        patch.setattr(ablate, "code_hash", lambda *_: "other")
        line = refused(tmp_path, capsys, "--runs", 2)
        assert "the code of steps/, common/ or walkthrough/ has changed" in line
    with FileLock(tmp_path / ".ablation.lock"):
        assert "another `ablate`" in refused(tmp_path, capsys)
    assert (tmp_path / FILE).read_bytes() == before
    (tmp_path / FILE).write_text('{"schema": 1}')
    assert "has schema 1; this version reads schema 2" in refused(tmp_path, capsys)
    assert "must end in .svg or .png" in refused(tmp_path / "new", capsys, "--plot", "x.gif")
    assert not (tmp_path / "new").exists()


def test_code_that_changes_while_measuring_stops_it(fake, tmp_path, capsys, monkeypatch):
    hashes = iter(["a", "a", "a", "b"])
    monkeypatch.setattr(ablate, "code_hash", lambda *_: next(hashes))
    assert ended(tmp_path) == 2
    assert "changed while measuring" in capsys.readouterr().err
    assert len(read(tmp_path).measurements) == 2


def test_a_compile_that_cannot_run_is_left_out_of_everything(fake, tmp_path, capsys):
    fake.answers["baseline + compile"] = {"not_run": "torch.compile found no C++ compiler that works"}
    assert ended(tmp_path, "--runs", 2) == 0
    assert [name for name in fake.log if "compile" in name] == ["baseline + compile"]
    ablation = read(tmp_path)
    assert {"compile", "compile_loss"} <= {optimisation.name for optimisation in ablation.no_effect}
    assert all("compile" not in measurement.on for measurement in ablation.measurements)
    assert ablation.missing == []
    assert "no C++ compiler that works; the full ladder is without it" in capsys.readouterr().out


def test_a_variant_that_cannot_run_is_left_out_and_named(fake, tmp_path, capsys):
    fake.answers["full"] = {"not_run": "out of memory on Test GPU with batch size 128: try --batch-size 64"}
    assert ended(tmp_path, "--runs", 2) == 0
    assert fake.log.count("full") == 1
    assert "full was not run: out of memory on Test GPU" in capsys.readouterr().out
    assert fake.log.count("full without compile") == 2


def test_a_measurement_that_broke_is_tried_again(fake, tmp_path, capsys):
    fake.answers["full"] = {"failed": "killed by SIGKILL"}
    assert ended(tmp_path, "--runs", 2) == 1
    assert fake.log.count("full") == 2
    assert "failed: killed by SIGKILL" in capsys.readouterr().err
    fake.answers, fake.log = {}, []
    assert ended(tmp_path, "--runs", 2) == 0
    assert fake.log == ["full", "full"]


def test_a_variant_that_ran_once_is_not_left_out_later(fake, tmp_path):
    ended(tmp_path, "--runs", 1)
    fake.answers["full"] = fake.answers["baseline"] = {"not_run": "out of memory"}
    assert ended(tmp_path, "--runs", 2) == 1
    ablation = read(tmp_path)
    assert ablation.not_run == []
    assert [variant.name for _, variant in ablation.missing] == ["full", "baseline"]  # run 2 goes backwards


def test_without_a_baseline_there_is_nothing_to_measure(fake, tmp_path, capsys):
    fake.answers["baseline"] = {"not_run": "out of memory"}
    assert "the baseline cannot be run: out of memory" in refused(tmp_path, capsys)
    assert fake.log == ["baseline"]


def answer_of(code):
    return ablate.measured(Variant("full", ("amp",)), OPTIONS, command=(sys.executable, "-S", "-c", code))


def test_a_process_answers_in_json_and_one_that_dies_with_its_last_line(monkeypatch):
    monkeypatch.setattr("walkthrough.compare.isolated.TERMINATE_SECONDS", 0.01)
    assert answer_of('print("noise"); print(\'{"answer": {"windows": [1.5]}}\')') == {"windows": [1.5]}
    assert answer_of('raise ValueError("it broke")') == {"failed": "ValueError: it broke"}
    assert answer_of("import os; os.kill(os.getpid(), 9)") == {
        "failed": "killed by SIGKILL (most likely for lack of memory)"
    }
    code = 'import json, sys; value = json.loads(sys.argv[1]); print(json.dumps({"answer": {"not_run": value}}))'
    value = answer_of(code)["not_run"]
    assert Optimisations(**value["on"]) == Optimisations(amp=True)
    assert options_from(value["options"]) == OPTIONS


# What follows from the runs


def make_ablation(speeds, **changes):
    """An `Ablation` by hand: {variant: images/s of each run}."""
    measurements = [
        Measurement(name, [], run, Throughput(speed, [speed * 0.9, speed, speed * 1.1]), StepTime(1.0, 1.0, 1.0), 0.1,
                    32, "2026-01-01")
        for name, of_runs in speeds.items()
        for run, speed in enumerate(of_runs, start=1)
        if speed
    ]  # fmt: skip
    values = dict(
        schema=2, setup=Setup("Test GPU", None, "cifar10", "mobilenet_v2", 224), device_type="cuda",
        precision="bfloat16", seed=0, quick=False, notes=[], environment=make_result().environment,
        started="2026-01-01", batch_size=128, workers=8, code="c", runs=3, no_effect=[], not_run=[],
        measurements=measurements,
    )  # fmt: skip
    return Ablation(**(values | changes))


BASE = {"baseline": [100.0, 200.0, 100.0], "control": [101.0, 198.0, 100.0]}  # run 2 had the machine twice as fast


def effect_of(ablation, name):
    return next(effect for effect in effects.effects(ablation) if effect.optimisation == name)


def test_an_effect_is_the_mean_of_ratios_within_each_run_with_its_interval():
    ablation = make_ablation(
        BASE
        | {"baseline + amp": [110.0, 240.0, 130.0], "full": [900.0, 1000.0, 800.0],
           "full without amp": [450.0, None, 200.0], "full + on_device_data": [1800.0, 1000.0, 1600.0]}
    )  # fmt: skip
    assert effects.control(ablation) == of_pairs([1.01, 0.99, 1.0])
    assert effect_of(ablation, "amp").alone == of_pairs([1.1, 1.2, 1.3])
    assert effect_of(ablation, "amp").in_full == of_pairs([2.0, 4.0]), "of the runs that have both"
    assert effect_of(ablation, "on_device_data").in_full == of_pairs([2.0, 1.0, 2.0])
    assert effect_of(ablation, "on_device_data").alone is None


def test_a_machine_that_drifts_does_it_to_both_sides_of_a_ratio():
    drifting = {"baseline": [100.0, 50.0, 25.0], "baseline + amp": [110.0, 55.0, 27.5]}
    alone = effect_of(make_ablation(drifting), "amp").alone
    assert (alone.ratio, alone.resolved, alone.rounds) == (pytest.approx(1.1), True, 3)
    assert (alone.low, alone.high) == (pytest.approx(1.1), pytest.approx(1.1))


@pytest.mark.parametrize(
    "speeds, verdict",
    [
        ([115.0, 240.0, 125.0], "more"),  # 1.15, 1.2, 1.25 times the baseline
        ([50.0, 110.0, 60.0], "less"),
        ([110.0, 240.0, 130.0], "none"),  # 1.1, 1.2, 1.3: of three runs, not enough
        ([90.0, 240.0, 130.0], "none"),
        ([100.0, 200.0, 100.0], "none"),
    ],
)
def test_a_verdict_is_which_side_of_1_is_resolved(speeds, verdict):
    alone = effect_of(make_ablation(BASE | {"baseline + amp": speeds}), "amp").alone
    assert effects.verdict(alone) == verdict
    assert str(alone).startswith("~") == (verdict == "none")


def test_the_control_widens_no_other_verdict_and_is_named_where_it_does_not_hold_1():
    gain = {"baseline + amp": [120.0, 240.0, 121.0]}
    noisy = make_ablation(BASE | {"control": [60.0, 300.0, 130.0]} | gain)
    assert effects.verdict(effect_of(noisy, "amp").alone) == "more"
    assert "The control" not in shown(noisy), "its interval is wide, and holds 1"
    differs = make_ablation(BASE | {"control": [110.0, 220.0, 110.0]} | gain)
    assert "The control, the baseline's program measured once more, came out at 1.10x (1.10-1.10)" in shown(differs)


def test_one_run_s_interval_is_of_its_windows_and_said_to_be():
    ablation = make_ablation({"baseline": [100.0], "baseline + amp": [200.0]}, runs=1)
    expected = statistics.of_windows([180.0, 200.0, 220.0], [90.0, 100.0, 110.0])
    assert effect_of(ablation, "amp").alone == expected
    assert (expected.ratio, expected.rounds) == (pytest.approx(2.0), 1)
    assert "which says nothing of how runs differ" in " ".join(shown(ablation).split())


def interaction(speeds, base=BASE):
    pairs = effects.interactions(make_ablation(base | speeds))
    return next(pair for pair in pairs if str(pair.pair) == "amp + channels_last")


def arms(both, first=(150.0, 300.0, 150.0), second=(120.0, 240.0, 120.0)):
    return {"baseline + amp": first, "baseline + channels_last": second, "baseline + amp + channels_last": both}


def test_an_interaction_is_the_gain_of_two_together_over_what_is_predicted_from_each_alone():
    pair = interaction(arms((270.0, 540.0, 288.0)))  # predicted: 1.5 x 1.2 = 1.8
    assert pair.ratio.ratio == pytest.approx(of_pairs([1.5, 1.5, 1.6]).ratio)
    assert pair.ratio.low == pytest.approx(of_pairs([1.5, 1.5, 1.6]).low)
    assert pair.verdict == "more"
    ratios = (pair.first.ratio, pair.second.ratio, pair.together.ratio)
    assert ratios == (pytest.approx(1.5), pytest.approx(1.2), pytest.approx(of_pairs([2.7, 2.7, 2.88]).ratio))
    assert interaction(arms((90.0, 180.0, 90.0))).verdict == "less"


@pytest.mark.parametrize(
    "both",
    [
        (180.0, 360.0, 180.0),  # just what was predicted
        (270.0, 540.0, 170.0),  # one run on the other side
        (182.0, 364.0, 178.0),
    ],
)
def test_no_interaction_is_resolved_where_runs_disagree_or_gain_what_was_predicted(both):
    assert interaction(arms(both)).verdict == "none"


def test_an_interaction_needs_two_runs_and_no_control():
    one = {name: speeds[:1] for name, speeds in (BASE | arms((270.0,))).items()}
    assert (interaction(one, {}).verdict, interaction(one, {}).ratio) == (None, None)
    assert interaction(one, {}).together.ratio == pytest.approx(2.7)
    assert "Interactions are computed from two runs on" in shown(make_ablation(one, runs=1))
    assert interaction(arms((270.0, 540.0, 270.0)), {"baseline": BASE["baseline"]}).verdict == "more"
    assert interaction({}).ratio is None


def test_what_has_another_effect_in_the_full_ladder_than_alone_is_named():
    same, twice = [100.0, 200.0, 100.0], [200.0, 400.0, 200.0]
    ablation = make_ablation(
        BASE
        | {"baseline + amp": same, "baseline + compile": twice, "baseline + channels_last": [102.0, 204.0, 102.0],
           "baseline + bigger_batch": [110.0, 200.0, 90.0],
           "full": [1000.0] * 3, "full without amp": [500.0] * 3, "full without compile": [1000.0] * 3,
           "full without channels_last": [1000 / 1.02] * 3, "full without bigger_batch": [900.0, 980.0, 1020.0]}
    )  # fmt: skip
    places = {effect.optimisation: effect.full_over_alone for effect in effects.depends_on_place(ablation)}
    assert {name: ratio.ratio for name, ratio in places.items()} == {
        "amp": pytest.approx(2.0),
        "compile": pytest.approx(0.5),
    }
    text = " ".join(shown(ablation).split())
    assert "amp depends on its place: 2.00x (2.00-2.00) in the full ladder, ~1.00x (1.00-1.00) alone; the one" in text
    assert "alone; the one over the other, 0.50x (0.50-0.50)." in text


def test_effects_of_one_run_are_not_compared_between_places():
    speeds = {"baseline": [100.0], "baseline + amp": [100.0], "full": [900.0], "full without amp": [300.0]}
    assert effect_of(make_ablation(speeds), "amp").full_over_alone is None


def test_the_ladder_is_set_beside_the_product_of_its_parts():
    without = [NotMeasured(name, "so") for name in LADDER if name not in ("amp", "compile")]
    speeds = BASE | {"baseline + amp": [150.0, 300.0, 150.0], "full": [600.0, 1200.0, 600.0]}
    ladder, predicted = effects.whole_ladder(make_ablation(speeds, no_effect=without))
    assert (ladder.ratio, predicted) == (pytest.approx(6.0), None)
    speeds["baseline + compile"] = [200.0, 400.0, 300.0]
    _, predicted = effects.whole_ladder(make_ablation(speeds, no_effect=without))
    assert predicted.ratio == pytest.approx(of_pairs([3.0, 3.0, 4.5]).ratio)
    assert predicted.high == pytest.approx(of_pairs([3.0, 3.0, 4.5]).high)
    nothing = make_ablation(BASE, no_effect=[NotMeasured(name, "so") for name in LADDER])
    assert effects.whole_ladder(nothing)[1].ratio == pytest.approx(1.0)


def test_the_prediction_counts_nothing_twice_and_only_what_is_in_the_full_ladder():
    counted = ("reduced_h2d_copy", "small_images", "compile", "compile_loss")
    without = [NotMeasured(name, "so") for name in LADDER if name not in (*counted, "amp")]
    speeds = {
        "baseline": [100.0, 50.0],
        "baseline + amp": [500.0, 250.0],  # only alone, as on a CPU where autocast is off
        "baseline + reduced_h2d_copy": [200.0, 100.0],
        "baseline + small_images": [300.0, 150.0],  # with reduced_h2d_copy, which it needs
        "baseline + compile": [150.0, 75.0],
        "baseline + compile_loss": [180.0, 90.0],
        "baseline + on_device_data": [900.0, 450.0],
        "baseline + tf32": [300.0, 150.0],
        "full": [600.0, 300.0],
    }
    ablation = make_ablation(speeds, no_effect=without, precision="float32")
    assert ablation.alone_only == ["amp"]
    gains = {name: effect_of(ablation, name).alone.ratio for name in counted}
    assert gains == {name: pytest.approx(gain) for name, gain in zip(counted, (2, 1.5, 1.5, 1.2), strict=True)}
    _, predicted = effects.whole_ladder(ablation)
    assert predicted.ratio == pytest.approx(2 * 1.5 * 1.5 * 1.2)


def shown(ablation, width=140):
    console = Console(width=width, highlight=False, file=io.StringIO())
    effects.show(ablation, console)
    return console.file.getvalue()


def test_the_tables_name_what_interacts_and_what_has_no_effect():
    ablation = make_ablation(
        BASE | arms((270.0, 540.0, 270.0)), no_effect=[NotMeasured("compile", "no compiler")],
        not_run=[NotMeasured("full", "out of memory")], notes=["a note"],
    )  # fmt: skip
    text = " ".join(shown(ablation).split())
    gain = "amp + channels_last together gain more than predicted from each alone, 1.50x (1.50-1.50). What may be"
    assert gain in text
    assert "amp 150.0 1.50x (1.50-1.50)" in text
    assert "compile - no effect [1]" in text
    assert "[1] compile has no effect on this device: no compiler." in text
    assert "full was not run: out of memory." in text
    assert "A note." in text
    assert "the same command goes on" in text
    narrow = shown(ablation, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    assert "its interval should include 1" in " ".join(narrow.split())
    assert shown(make_ablation({})).count("-") > 10  # nothing measured yet


def test_the_file_holds_effects_and_interactions_and_is_read_back(tmp_path):
    ablation = make_ablation(BASE | arms((270.0, 540.0, 270.0)))
    study.write(tmp_path / FILE, ablation)
    assert read(tmp_path) == ablation
    value = json.loads((tmp_path / FILE).read_text())
    amp = value["effects"][0]
    assert amp["alone"] == asdict(of_pairs([1.5, 1.5, 1.5]))
    assert set(amp) == {"optimisation", "alone", "in_full", "full_over_alone", "no_effect"}
    [pair] = [pair for pair in value["interactions"] if pair["verdict"] == "more"]
    assert pair["pair"]["first"] == "amp"
    assert read(tmp_path / "none") is None


def broken(change):
    value = json.loads(json.dumps(make_ablation(BASE | arms((270.0, 540.0, 270.0))).as_json()))
    change(value)
    return value


def test_amp_is_shown_over_tf32_too_by_pairs_of_the_same_run():
    tf32 = {"baseline + tf32": [120.0, 240.0, 120.0], "baseline + amp + tf32": [144.0, 300.0, 156.0]}
    ablation = make_ablation(BASE | {"baseline + amp": [150.0, 300.0, 150.0]} | tf32)
    over_tf32 = of_pairs([1.2, 1.25, 1.3])
    assert ablation.as_json()["amp_over_tf32"] == asdict(over_tf32)
    line = f"AMP over TF32, which cuDNN uses unless told not to: {over_tf32}; over true fp32: 1.50x (1.50-1.50)."
    assert line in shown(ablation)
    assert "AMP over TF32" not in shown(make_ablation(BASE))
    assert make_ablation(BASE).as_json()["amp_over_tf32"] is None


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda value: value["measurements"][0]["samples_per_second"].update(windows=[0.0]), "windows"),
        (lambda value: value["measurements"][0]["samples_per_second"].update(windows=[]), "windows"),
        (lambda value: value["measurements"][0]["samples_per_second"].update(median=-1.0), "median"),
        (lambda value: value["measurements"][0].update(run=0), "run"),
        (lambda value: value["measurements"][0].update(on=["ampl"]), "there is no optimisation ampl"),
        (lambda value: value["no_effect"].append({"name": "ampl", "why": ""}), "there is no optimisation ampl"),
        (lambda value: value.pop("code"), "code"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, change, words):
    (tmp_path / FILE).write_text(json.dumps(broken(change)))
    with pytest.raises(InputError, match=f"{FILE} is broken: .*{words}"):
        read(tmp_path)


def test_the_figure_is_what_its_name_says(tmp_path):
    speeds = BASE | arms((270.0, 540.0, 270.0)) | {"full": [1000.0] * 3, "full without amp": [100.0] * 3}
    ablation = make_ablation(speeds, no_effect=[NotMeasured("compile", "no compiler")])
    save(effects.figure(ablation), tmp_path / "effects.svg")
    save(effects.figure(ablation), tmp_path / "effects.png")
    text = (tmp_path / "effects.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    for words in ("multiprocess loading", "baseline over baseline, no measurable difference", "alone: over the",
                  "no effect on this device", "not measured", "mean of 3 interleaved runs"):  # fmt: skip
        assert words in text
    assert (tmp_path / "effects.png").read_bytes().startswith(b"\x89PNG")
    axes = effects.figure(ablation).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlim()[0] < 0.99
    assert axes.get_xlim()[1] > 10
    points = {container[0].get_color(): list(container[0].get_xdata()) for container in axes.containers}
    assert points[SPEED] == [pytest.approx(1.5), pytest.approx(1.2)]
    assert points[MEMORY] == [pytest.approx(10.0)]
    assert points[UNRESOLVED] == [effects.control(ablation).ratio], "grey: no measurable difference"
    save(effects.figure(make_ablation({})), tmp_path / "empty.svg")
    with pytest.raises(InputError):
        save(effects.figure(ablation), tmp_path / "effects.html")


@pytest.mark.parametrize("low, high", [(0.95, 1.2), (0.85, 1.3), (0.9, 5.7), (0.1, 2), (0.04, 30), (0.001, 1000)])
def test_the_axis_has_ticks_at_any_scale(low, high):
    ticks = effects.shown_ticks(low, high)
    assert 2 <= len(ticks) <= effects.MOST_TICKS
    assert 1 in ticks
    assert low <= min(ticks) <= max(ticks) <= high


# For real


def test_a_real_run_measures_writes_and_draws(tmp_path, monkeypatch, capsys):
    few = [Variant("baseline", ()), Variant("baseline + on_device_data", ("on_device_data",))]
    monkeypatch.setattr(ablate, "variants", lambda *_: few)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a small model gains nothing from more, and tests share the machine
    small = "--model", "shufflenet_v2_x0_5"
    assert ended(tmp_path, *small, "--runs", 1, "--data", tmp_path, "--json", "--plot", tmp_path / "effects.svg") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / FILE).read_text())
    ablation = read(tmp_path)
    assert [measurement.variant for measurement in ablation.measurements] == names_of(few)
    assert all(len(measurement.samples_per_second.windows) == 5 for measurement in ablation.measurements)
    assert (ablation.setup.data, ablation.quick) == ("stand-in", True)
    assert {effect.optimisation for effect in effects.effects(ablation) if effect.alone} == {"on_device_data"}
    assert (tmp_path / "effects.svg").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_input_that_suits_no_measurement_is_refused_at_once(tmp_path, capsys):
    assert "unknown model" in refused(tmp_path, capsys, "--model", "mobilenet_v22")
    assert not (tmp_path / FILE).exists()
