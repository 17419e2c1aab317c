"""The ablation: its program is the steps', its plan, its runs and how they go on, and what follows from them."""

import functools
import itertools
import json
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from filelock import FileLock
from rich.console import Console
from support import NAMES, SmallNet, make_result
from test_steps import reads

from common import data
from common.__main__ import main
from common.errors import InputError
from common.ladder import runner
from common.ladder.compare import Ratio
from common.record import StepTime, Throughput
from common.studies.ablation import figure as ablation_plot
from common.studies.ablation import measure as ablate
from common.studies.ablation import plan as ablation_plan
from common.studies.ablation import program as ablation
from common.studies.ablation import record as ablation_record
from common.studies.ablation import view as ablation_view
from common.studies.ablation.plan import LADDER, PAIRS, Optimisations, Pair, Variant, cannot_act, pairs, variants
from common.studies.ablation.record import Ablation, Measurement, NotMeasured, Settings, read_ablation
from common.studies.ablation.view import effect_text

# The program


@pytest.fixture
def bench(monkeypatch, tmp_path, capture_step):
    """bench(k, workers): step k and the program with all optimisations up to it, as namespaces to compare.

    Both on `SmallNet`, on a CPU that claims bf16 hardware; torch.compile leaves models as they are.
    """
    monkeypatch.setattr("common.device.cpu_bf16_hardware", lambda: "AVX512-BF16")
    once = functools.cache(lambda count: original(data.np.arange(count) % 10, data.np.random.default_rng(1)))
    original = data._striped_images
    monkeypatch.setattr(data, "_striped_images", lambda labels, generator: once(len(labels)))
    compiled, models = [], []
    monkeypatch.setattr(torch, "compile", lambda model: compiled.append(model) or model)
    monkeypatch.setattr(ablation, "classifier", lambda *_: models.append(SmallNet()) or models[-1])

    def named(each, model):
        return SimpleNamespace(
            loader=each.loader, train_step=each.train_step, model=model, compiled=model in compiled
        )  # fmt: skip

    def both(k, workers=0):  # each is used before the next is made, which seeds anew
        step = capture_step(NAMES[k], "--data", str(tmp_path), "--batch-size", "8", "--workers", str(workers))
        yield named(step, step.model)
        made = ablation.training(Optimisations(**dict.fromkeys(ablation_plan.NAMES[:k], True)), step.args)
        yield named(made, models[-1])

    return both


def closure(function):
    return {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True)
    }  # fmt: skip


def test_the_optimisations_are_the_steps():
    assert tuple(name[3:] for name in NAMES[1:]) == ablation_plan.NAMES


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
@pytest.mark.parametrize("k", range(11), ids=NAMES)
def test_with_all_up_to_a_step_the_program_is_that_step(bench, monkeypatch, k):
    facts = []
    to = torch.Tensor.to
    for each in bench(k):
        waits, asked, dtypes = 0, [], []
        each.model.layers[0].register_forward_hook(lambda *seen, dtypes=dtypes: dtypes.append(seen[2].dtype))
        losses = []
        for images, labels in itertools.islice(each.loader, 3):
            with monkeypatch.context() as patch:
                patch.setattr(
                    torch.Tensor,
                    "to",
                    lambda self, *a, asked=asked, **k: asked.append(k.get("non_blocking", False)) or to(self, *a, **k),
                )
                waits += reads(each, images, labels)
            losses.append(each.train_step(images, labels).item())
        cells = closure(each.train_step)
        facts.append(
            {
                "losses": losses,
                "last images": each.model.seen.sum().item(),
                "batch": (images.dtype, tuple(images.shape), images.stride()),
                "waits for values": waits,
                "copies, non_blocking": asked,
                "precision": set(dtypes),
                "optimizer": cells["optimizer"].defaults,
                "channels last": each.model.layers[0].weight.is_contiguous(memory_format=torch.channels_last),
                "compiled": each.compiled,
                "curve": [type(value) for value in cells["losses"]],
            }
        )
    step, program = facts
    assert program == step


@pytest.mark.parametrize("k", range(11), ids=NAMES)
def test_its_loader_is_that_step_s(bench, k):
    step, program = (each.loader for each in bench(k, workers=1))
    for name in ("batch_size", "num_workers", "prefetch_factor", "pin_memory"):
        assert getattr(program, name) == getattr(step, name), name
    assert type(program) is type(step)
    assert repr(program.dataset.transform) == repr(step.dataset.transform)
    step, program = (getattr(each, "loader", each) for each in (step, program))  # that which is prefetched
    for name in ("persistent_workers", "drop_last"):
        assert getattr(program, name, None) == getattr(step, name, None), name
    assert type(getattr(program, "sampler", None)) is type(getattr(step, "sampler", None))


def told(capsys, on=(), **changes):
    """What a measurement's process prints: its last line."""
    args = dict(
        data="/nowhere", model="mobilenet_v2", image_size=32, batch_size=8, workers=0, seed=0, device="cpu", quick=True
    )
    ablation.main(json.dumps({"on": dict.fromkeys(on, True), "args": args | changes}))
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(ablation, "classifier", lambda *_: SmallNet())
    monkeypatch.setattr(ablation, "QUICK", replace(ablation.QUICK, window_seconds=0.0))


def test_a_measurement_tells_its_windows_step_time_and_first_step(small, capsys):
    found = told(capsys, ["bigger_batch", "on_device_data"])
    assert len(found["windows"]) == 5
    assert min(found["windows"]) > 0
    assert found["batch_size"] == 8
    assert 0 < found["step_ms"]["p10"] <= found["step_ms"]["median"] <= found["step_ms"]["p90"]
    assert found["first_step_seconds"] > 0
    assert told(capsys, ["on_device_data"])["batch_size"] == 32


def test_what_cannot_be_run_is_told_in_a_line(small, capsys, monkeypatch):
    on = ["bigger_batch", "on_device_data"]
    assert "larger than the data" in told(capsys, on, batch_size=50_001)["not_run"]
    monkeypatch.setattr(torch, "compile", lambda model: 1 / 0)
    assert told(capsys, ["compile", *on])["not_run"].startswith("torch.compile failed: ZeroDivisionError")

    def killed(*_):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    with monkeypatch.context() as patch:
        patch.setattr(ablation, "first_step", killed)
        assert "killed by signal" in told(capsys, on)["failed"]  # which need not happen again

    def no_room(*_):
        raise MemoryError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(ablation, "classifier", no_room)
    assert "out of memory" in told(capsys, on)["not_run"]
    monkeypatch.setattr(ablation, "classifier", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        told(capsys, on)


# The plan


def names_of(found):
    return [variant.name for variant in found]


def test_on_a_gpu_every_optimisation_is_put_in_and_left_out():
    found = variants({})
    assert names_of(found) == [
        "baseline", *(f"baseline + {name}" for name in ablation_plan.NAMES), "full", "control",
        *(f"full without {name}" for name in LADDER), "full + on_device_data",
        *(f"baseline + {pair}" for pair in PAIRS),
    ]  # fmt: skip
    by_name = {variant.name: set(variant.on) for variant in found}
    assert by_name["baseline"] == by_name["control"] == set()
    assert by_name["full"] == set(LADDER)
    assert by_name["full without amp"] == set(LADDER) - {"amp"}
    assert by_name["full + on_device_data"] == set(ablation_plan.NAMES)
    assert by_name["baseline + amp + channels_last"] == {"amp", "channels_last"}
    assert Variant("x", ("amp",)).optimisations == Optimisations(amp=True)


def test_what_cannot_act_here_is_not_measured():
    idle = cannot_act("cpu", False, 128, 2)
    assert list(idle) == ["amp", "pinned_memory", "prefetch_stream"]
    found = variants(idle)
    assert not [name for name in names_of(found) if any(each in name for each in idle)]
    assert next(variant for variant in found if variant.name == "full").on == LADDER  # as step 09 on a CPU
    assert cannot_act("cuda", True, 128, 2) == {}
    assert list(cannot_act("cuda", True, 32, 0)) == ["bigger_batch", "multiprocess_loading"]


def test_where_compile_cannot_run_the_full_ladder_is_without_it():
    found = variants(["compile"])
    assert not any("compile" in variant.on for variant in found)
    assert "full without amp" in names_of(found)


def test_all_pairs_are_every_two_that_do_not_replace_each_other():
    found = [str(pair) for pair in pairs({}, all_pairs=True)]
    assert len(found) == len(set(found)) == 9 * 8 // 2 + 5
    assert {str(pair) for pair in PAIRS} <= set(found)
    assert "pinned_memory + on_device_data" not in found
    assert "compile + on_device_data" in found
    assert all(pair.why for pair in pairs({}))
    assert names_of(variants({}, all_pairs=True))[-1].startswith("baseline + ")


# Runs, and how they go on


@pytest.fixture
def fake(monkeypatch):
    """In place of measurements: log of variants, `answers` {variant: what its process tells instead}, and a stop."""
    state = SimpleNamespace(log=[], answers={}, stop=None, ends=KeyboardInterrupt)

    def measured(variant, args):
        if len(state.log) == state.stop:
            raise state.ends
        state.log.append(variant.name)
        plain = {"windows": [99.0, 100.0, 102.0], "step_ms": {"median": 1.0, "p10": 1.0, "p90": 1.0},
                 "first_step_seconds": 0.5, "batch_size": 32, "notes": []}  # fmt: skip
        return state.answers.get(variant.name, plain)

    monkeypatch.setattr(ablate, "measured", measured)
    monkeypatch.setattr(runner, "check_input", lambda args: None)
    monkeypatch.setattr("common.device.cpu_bf16_hardware", lambda: None)
    return state


def ended(tmp_path, *words):
    with pytest.raises(SystemExit) as end:
        main(["ablate", "--device", "cpu", "--quick", "--workers", "1", "--logdir", str(tmp_path), *map(str, words)])
    return end.value.code


EVERY = names_of(variants(cannot_act("cpu", False, 128, 1)))


def test_runs_are_interleaved_and_every_measurement_is_kept(fake, tmp_path, capsys):
    assert ended(tmp_path, "--runs", 3) == 0
    assert fake.log == EVERY + EVERY[::-1] + EVERY
    found = read_ablation(tmp_path)
    assert [(each.run, each.variant) for each in found.measurements] == [
        (run, name) for run in (1, 2, 3) for name in (EVERY[::-1] if run == 2 else EVERY)
    ]
    assert found.measurements[1].samples_per_second == Throughput(100.0, [99.0, 100.0, 102.0])
    assert (found.whole_runs, found.missing) == (3, [])
    text = capsys.readouterr().out
    for words in ("amp cannot act here: this CPU has no bf16", "3 interleaved run(s)", "No interaction seen", "full"):
        assert words in text


def test_how_long_the_rest_takes_is_said_once_a_program_of_each_kind_ran():
    plain, compiled = Variant("a", ("amp",)), Variant("b", ("amp", "compile"))
    assert ablate._to_go({False: [60.0], True: []}, [plain, compiled]) == ""
    assert ablate._to_go({False: [60.0], True: []}, [plain, plain]) == ", about 2 min to go"
    assert ablate._to_go({False: [60.0], True: [300.0, 120.0, 180.0]}, [plain, compiled]) == ", about 4 min to go"


@pytest.mark.parametrize("ends, code", [(KeyboardInterrupt, 130), (SystemExit(143), 143)])
def test_ctrl_c_leaves_what_was_measured_and_resume_goes_on_there(fake, tmp_path, capsys, ends, code):
    fake.ends, fake.stop = ends, 0
    assert ended(tmp_path, "--runs", 2) == code
    assert "--resume" not in capsys.readouterr().err
    fake.stop = 5
    assert ended(tmp_path, "--runs", 2) == code
    assert "--resume goes on" in capsys.readouterr().err
    assert len(read_ablation(tmp_path).measurements) == 5
    fake.log, fake.stop = [], None
    assert ended(tmp_path, "--runs", 2, "--resume") == 0
    assert fake.log == EVERY[5:] + EVERY[::-1]
    assert read_ablation(tmp_path).missing == []


def test_resume_adds_runs_and_does_nothing_where_all_is_done(fake, tmp_path, capsys, monkeypatch):
    assert ended(tmp_path, "--runs", 2, "--resume") == 0  # nothing is there: a new one
    fake.log = []
    assert ended(tmp_path, "--runs", 1, "--resume") == 0
    assert fake.log == []
    assert ended(tmp_path, "--runs", 3, "--resume") == 0
    assert fake.log == EVERY
    assert read_ablation(tmp_path).runs == 3
    monkeypatch.setattr(ablate, "code_hash", lambda: "other")  # what is whole can be shown for ever
    capsys.readouterr()
    assert ended(tmp_path, "--runs", 3, "--resume") == 0
    assert fake.log == EVERY
    assert "3 interleaved run(s)" in capsys.readouterr().out


def refused(tmp_path, capsys, *words):
    capsys.readouterr()
    assert ended(tmp_path, *words) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_another_ablation_is_not_touched(fake, tmp_path, capsys, monkeypatch):
    ended(tmp_path, "--runs", 1)
    before = (tmp_path / ablation_record.FILE).read_bytes()
    line = refused(tmp_path, capsys, "--runs", 1)
    for words in ("1 of 1 runs whole", "--resume goes on", "larger --runs adds runs", "another --logdir"):
        assert words in line
    assert "seed was 0 and is 3" in refused(tmp_path, capsys, "--resume", "--seed", 3)
    assert "all_pairs was False and is True" in refused(tmp_path, capsys, "--resume", "--all-pairs")
    with monkeypatch.context() as patch:
        patch.setattr("common.machine.usable_cores", lambda: 99)
        assert "and is 99" in refused(tmp_path, capsys, "--resume", "--runs", 2)
    with monkeypatch.context() as patch:
        patch.setattr("torch.__version__", "1.0")
        assert "torch was" in refused(tmp_path, capsys, "--resume", "--runs", 2)
        assert "seed was 0 and is 3" in refused(tmp_path, capsys, "--resume", "--runs", 1, "--seed", 3)
    with monkeypatch.context() as patch:
        patch.setattr(ablate, "code_hash", lambda: "other")
        assert "the code of steps/ or common/ has changed" in refused(tmp_path, capsys, "--resume", "--runs", 2)
    with FileLock(tmp_path / ".ablation.lock"):
        assert "another `ablate`" in refused(tmp_path, capsys, "--resume")
    assert (tmp_path / ablation_record.FILE).read_bytes() == before
    (tmp_path / ablation_record.FILE).write_text('{"schema": 1}')
    assert "is broken: settings is missing" in refused(tmp_path, capsys, "--resume")
    assert "must end in .svg or .png" in refused(tmp_path / "new", capsys, "--plot", "x.gif")
    assert not (tmp_path / "new").exists()


def test_code_that_changes_while_measuring_stops_it(fake, tmp_path, capsys, monkeypatch):
    hashes = iter(["a", "a", "a", "b"])
    monkeypatch.setattr(ablate, "code_hash", lambda: next(hashes))
    assert ended(tmp_path) == 2
    assert "changed while measuring" in capsys.readouterr().err
    assert len(read_ablation(tmp_path).measurements) == 2


def test_a_compile_that_cannot_run_is_left_out_of_everything(fake, tmp_path, capsys):
    fake.answers["baseline + compile"] = {"not_run": "torch.compile found no C++ compiler that works"}
    assert ended(tmp_path, "--runs", 2) == 0
    assert [name for name in fake.log if "compile" in name] == ["baseline + compile"]
    found = read_ablation(tmp_path)
    assert found.cannot_act[-1].name == "compile"
    assert all("compile" not in each.on for each in found.measurements)
    assert found.missing == []
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
    assert ended(tmp_path, "--runs", 2, "--resume") == 0
    assert fake.log == ["full", "full"]


def test_a_variant_that_ran_once_is_not_left_out_later(fake, tmp_path):
    ended(tmp_path, "--runs", 1)
    fake.answers["full"] = fake.answers["baseline"] = {"not_run": "out of memory"}
    assert ended(tmp_path, "--runs", 2, "--resume") == 1
    found = read_ablation(tmp_path)
    assert found.not_run == []
    assert [variant.name for _, variant in found.missing] == ["full", "baseline"]  # run 2 goes backwards


def test_without_a_baseline_there_is_nothing_to_measure(fake, tmp_path, capsys):
    fake.answers["baseline"] = {"not_run": "out of memory"}
    assert "the baseline cannot be run: out of memory" in refused(tmp_path, capsys)
    assert fake.log == ["baseline"]


def asked(code):
    args = SimpleNamespace(
        data="d", model="m", image_size=1, batch_size=1, workers=0, seed=0, device="cpu", quick=True
    )  # fmt: skip
    return ablate.measured(Variant("full", ("amp",)), args, program=(sys.executable, "-c", code))


def test_a_process_tells_in_json_and_one_that_dies_in_its_last_line():
    assert asked('print("noise"); print(\'{"windows": [1.5]}\')') == {"windows": [1.5]}
    assert asked('raise ValueError("it broke")') == {"failed": "ValueError: it broke"}
    assert asked("import os; os.kill(os.getpid(), 9)") == {
        "failed": "killed by SIGKILL (most likely for lack of memory)"
    }
    code = 'import json, sys; told = json.loads(sys.argv[1]); print(json.dumps({"not_run": told["on"]["amp"]}))'
    assert asked(code) == {"not_run": True}


# What follows from the runs


def made(speeds, **changes):
    """An `Ablation` by hand: {variant: images/s of each run}."""
    measurements = [
        Measurement(name, [], run, Throughput(speed, [speed * 0.9, speed, speed * 1.1]), StepTime(1.0, 1.0, 1.0), 0.1,
                    32, "2026-01-01", [])
        for name, of_runs in speeds.items()
        for run, speed in enumerate(of_runs, start=1)
        if speed
    ]  # fmt: skip
    values = dict(
        schema=1,
        settings=Settings("Test GPU", "cuda", "cifar10", "mobilenet_v2", 224, 128, 8, 0, False, False),
        environment=make_result().environment, code="c", runs=3, cannot_act=[], not_run=[], measurements=measurements,
    )  # fmt: skip
    return Ablation(**(values | changes))


BASE = {"baseline": [100.0, 200.0, 100.0], "control": [101.0, 198.0, 100.0]}  # run 2 found the machine twice as fast


def effect_of(found, name):
    return next(each for each in ablation_record.effects(found) if each.optimisation == name)


def test_an_effect_is_the_median_of_ratios_within_each_run():
    found = made(
        BASE
        | {"baseline + amp": [110.0, 240.0, 130.0], "full": [900.0, 1000.0, 800.0],
           "full without amp": [450.0, None, 200.0], "full + on_device_data": [1800.0, 1000.0, 1600.0]}
    )  # fmt: skip
    assert ablation_record.control(found) == Ratio(1.0, 0.99, 1.01)
    assert effect_of(found, "amp").alone == Ratio(1.2, 1.1, 1.3)
    assert effect_of(found, "amp").in_full == Ratio(3.0, 2.0, 4.0)
    assert effect_of(found, "on_device_data").in_full == Ratio(2.0, 1.0, 2.0)
    assert effect_of(found, "on_device_data").alone is None


def test_an_effect_is_told_only_beyond_what_the_control_did():
    assert ablation_record.noise_of(made(BASE)) == pytest.approx(1 / 0.99)
    assert ablation_record.noise_of(made({"baseline": [100.0], "control": [150.0]})) == 1.0  # one run tells no noise
    assert effect_text(Ratio(1.02, 1.015, 1.03), 1.01) == "1.02x (1.01-1.03)"
    assert effect_text(Ratio(1.02, 1.015, 1.03), 1.02) == "no difference"
    assert effect_text(Ratio(0.5, 0.4, 0.6), 1.02) == "0.50x (0.40-0.60)"
    assert effect_text(Ratio(1.2, 0.9, 1.3), 1.0) == "no difference"
    assert effect_text(None, 1.0) == "-"


def test_one_run_s_range_is_what_its_windows_allow():
    found = made({"baseline": [100.0], "baseline + amp": [200.0]})
    assert effect_of(found, "amp").alone == Ratio(2.0, pytest.approx(180 / 110), pytest.approx(220 / 90))


def interaction(speeds, base=BASE):
    found = made(base | speeds)
    return next(each for each in ablation_record.interactions(found) if str(each.pair) == "amp + channels_last")


def arms(both, first=(150.0, 300.0, 150.0), second=(120.0, 240.0, 120.0)):
    return {"baseline + amp": first, "baseline + channels_last": second, "baseline + amp + channels_last": both}


def test_an_interaction_is_what_the_two_bring_together_over_what_each_alone_promises():
    found = interaction(arms((270.0, 540.0, 360.0)))  # promised: 1.5 x 1.2 = 1.8
    assert found.ratio == Ratio(pytest.approx(1.5), pytest.approx(1.5), pytest.approx(2.0))
    assert found.verdict == "more"
    assert (found.first.ratio, found.second.ratio, found.together.ratio) == (1.5, 1.2, 2.7)
    assert interaction(arms((90.0, 180.0, 90.0))).verdict == "less"


@pytest.mark.parametrize(
    "both, base",
    [
        ((180.0, 360.0, 180.0), BASE),  # just what was promised
        ((270.0, 540.0, 170.0), BASE),  # one run on the other side
        ((182.0, 364.0, 182.0), BASE),  # 1.01, and the control was 1.01 once
        ((183.0, 366.0, 183.0), BASE),  # 1.017: a ratio of two such ratios
        ((270.0, 540.0, 270.0), BASE | {"control": [100.0, 120.0, 100.0]}),  # the control was 0.6 once
    ],
)
def test_no_interaction_is_seen_where_runs_disagree_or_the_control_did_as_much(both, base):
    assert interaction(arms(both), base).verdict == "none"


def test_interactions_are_not_named_from_one_run_or_without_a_control():
    one = {name: speeds[:1] for name, speeds in (BASE | arms((270.0,))).items()}
    assert interaction(one, {}).verdict is None
    assert interaction(one, {}).ratio.ratio == pytest.approx(1.5)
    found = interaction(arms((270.0, 540.0, 270.0)), {"baseline": BASE["baseline"]})
    assert (found.verdict, found.ratio.ratio) == (None, pytest.approx(1.5))
    assert interaction({}).ratio is None


def test_what_gains_in_one_place_only_is_named():
    same, twice = [100.0, 200.0, 100.0], [200.0, 400.0, 200.0]
    found = made(
        BASE
        | {"baseline + amp": same, "baseline + compile": twice, "baseline + channels_last": [102.0, 204.0, 102.0],
           "baseline + pinned_memory": [99.0, 202.0, 102.0],
           "full": [1000.0] * 3, "full without amp": [500.0] * 3, "full without compile": [1000.0] * 3,
           "full without channels_last": [970.0, 975.0, 980.0], "full without pinned_memory": [985.0] * 3}
    )  # fmt: skip
    assert ablation_record.depends_on_place(found) == [("amp", "none", "more"), ("compile", "more", "none")]
    text = shown(found)
    assert "amp shows no difference alone and gains in the full ladder." in text
    assert "compile gains alone and shows no difference in the full ladder." in text


def test_the_ladder_is_set_beside_the_product_of_its_parts():
    idle = [NotMeasured(name, "so") for name in LADDER if name not in ("amp", "compile")]
    speeds = BASE | {"baseline + amp": [150.0, 300.0, 150.0], "full": [600.0, 1200.0, 600.0]}
    assert ablation_record.whole_ladder(made(speeds, cannot_act=idle)) == (Ratio(6.0, 6.0, 6.0), None)
    speeds["baseline + compile"] = [200.0, 400.0, 300.0]
    _, promised = ablation_record.whole_ladder(made(speeds, cannot_act=idle))
    assert promised == Ratio(3.0, 3.0, 4.5)


def shown(found, width=140):
    console = Console(width=width, highlight=False, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    ablation_view.print_ablation(found, console)
    return console.export_text()


def test_the_tables_name_what_interacts_and_what_does_not_act():
    found = made(
        BASE | arms((270.0, 540.0, 270.0)), cannot_act=[NotMeasured("compile", "no compiler")],
        not_run=[NotMeasured("full", "out of memory")],
    )  # fmt: skip
    text = " ".join(shown(found).split())
    assert "amp + channels_last bring more together than each alone promises, 1.50x. What may be behind it: Ten" in text
    assert "amp 150.0 1.50x (1.50-1.50)" in text
    assert "compile - cannot act here [1]" in text
    assert "[1] compile cannot act here: no compiler." in text
    assert "full was not run: out of memory." in text
    assert "--resume goes on" in text
    narrow = shown(found, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    assert "no difference looks like" in " ".join(narrow.split())
    assert shown(made({})).count("-") > 10  # nothing measured yet


def test_the_object_holds_effects_and_interactions_and_is_read_back(tmp_path):
    found = made(BASE | arms((270.0, 540.0, 270.0)))
    ablation_record.write_ablation(tmp_path, found)
    assert read_ablation(tmp_path) == found
    kept = json.loads((tmp_path / ablation_record.FILE).read_text())
    assert kept["effects"][0]["alone"] == asdict(Ratio(1.5, 1.5, 1.5))
    [pair] = [each for each in kept["interactions"] if each["verdict"] == "more"]
    assert pair["pair"]["first"] == "amp"
    assert read_ablation(tmp_path / "none") is None
    kept["measurements"][0]["samples_per_second"]["windows"] = [0.0]
    (tmp_path / ablation_record.FILE).write_text(json.dumps(kept))
    with pytest.raises(InputError, match="positive numbers"):
        read_ablation(tmp_path)


def test_the_figure_is_what_its_name_says(tmp_path):
    speeds = BASE | arms((270.0, 540.0, 270.0)) | {"full": [1000.0] * 3, "full without amp": [100.0] * 3}
    found = made(speeds, cannot_act=[NotMeasured("compile", "no compiler")])
    ablation_plot.plot(found, tmp_path / "effects.svg")
    ablation_plot.plot(found, tmp_path / "effects.png")
    text = (tmp_path / "effects.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    for words in ("multiprocess loading", "as far as the baseline", "alone: over the baseline", "cannot act here",
                  "not measured", "prefers-color-scheme"):  # fmt: skip
        assert words in text
    assert (tmp_path / "effects.png").read_bytes().startswith(b"\x89PNG")
    axes = ablation_plot.ablation_figure(found).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlim()[0] < 0.99
    assert axes.get_xlim()[1] > 10
    assert [list(container[0].get_xdata()) for container in axes.containers] == [[1.5, 1.2], [10.0]]
    ablation_plot.plot(made({}), tmp_path / "empty.svg")
    with pytest.raises(InputError):
        ablation_plot.plot(found, tmp_path / "effects.html")


@pytest.mark.parametrize("low, high", [(0.95, 1.2), (0.85, 1.3), (0.9, 5.7), (0.1, 2), (0.04, 30), (0.001, 1000)])
def test_the_axis_has_ticks_at_any_scale(low, high):
    ticks = ablation_plot.shown_ticks(low, high)
    assert 2 <= len(ticks) <= ablation_plot.MOST_TICKS
    assert 1 in ticks
    assert low <= min(ticks) <= max(ticks) <= high


# For real


def test_a_real_run_measures_writes_and_draws(tmp_path, monkeypatch, capsys):
    few = [Variant("baseline", ()), Variant("control", ()), Variant("baseline + on_device_data", ("on_device_data",))]
    monkeypatch.setattr(ablation_record, "variants", lambda *_: few)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a small model gains nothing from more, and tests share the machine
    small = "--model", "shufflenet_v2_x0_5"
    assert ended(tmp_path, *small, "--runs", 1, "--data", tmp_path, "--json", "--plot", tmp_path / "effects.svg") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / ablation_record.FILE).read_text())
    found = read_ablation(tmp_path)
    assert [each.variant for each in found.measurements] == names_of(few)
    assert all(len(each.samples_per_second.windows) == 5 for each in found.measurements)
    assert found.settings.data == "stand-in"
    assert {effect.optimisation for effect in ablation_record.effects(found) if effect.alone} == {"on_device_data"}
    assert (tmp_path / "effects.svg").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_input_that_suits_no_measurement_is_refused_at_once(tmp_path, capsys):
    assert "unknown model" in refused(tmp_path, capsys, "--model", "mobilenet_v22")
    assert not (tmp_path / ablation_record.FILE).exists()


def test_a_pair_reads_as_its_two_names():
    assert str(Pair("amp", "compile")) == "amp + compile"
