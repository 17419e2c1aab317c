"""The ablation: its program is the steps', its plan, its runs and how they go on, and what follows from them."""

import inspect
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support import NAMES, SmallNet, exit_code_of
from support.options import small_options
from test_steps import reads

from studies import ablation as ablate
from studies import switches
from studies.ablation import LADDER, Optimisations, no_effect, tables, variants
from walkthrough.cli import main
from walkthrough.compare import study as results
from walkthrough.compare.statistics import mean, of_pairs

OPTIONS = small_options(batch_size=8)


@pytest.fixture
def bench(monkeypatch, stand_in_once, tmp_path, capture_step):
    """bench(k): step k and the program with all optimisations up to it: loader, train_step, model, what was compiled.

    Both on `SmallNet`, in bf16 from step 01 on; torch.compile leaves models as they are.
    """
    compiled, models = [], []

    def leave(target=None, mode=None):
        if target is None:
            return lambda function: leave(function, mode)
        compiled.append((target, mode))
        return target

    monkeypatch.setattr(torch, "compile", leave)
    monkeypatch.setattr(switches, "classifier", lambda *_: models.append(SmallNet()) or models[-1])

    def with_model(training, model):
        asked = [("model" if target is model else "function", mode) for target, mode in compiled]
        compiled.clear()
        return SimpleNamespace(loader=training.loader, train_step=training.train_step, model=model, compiled=asked)

    def both(k):  # each is used before the next is made, which seeds anew
        words = {"--data": tmp_path, "--batch-size": 8, "--workers": 1, "--precision": "bf16"}
        torch.backends.cudnn.benchmark = False
        step = capture_step(NAMES[k], *(str(word) for item in words.items() for word in item))
        yield with_model(step, step.model)
        torch.backends.cudnn.benchmark = False
        assert ablate.NAMES[:k] == tuple(name[3:] for name in NAMES[1 : k + 1])
        training = switches.training(Optimisations(**dict.fromkeys(ablate.NAMES[:k], True)), step.args)
        yield with_model(training, models[-1])

    return both


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
@pytest.mark.parametrize("k", range(len(NAMES) - 1), ids=NAMES[:-1])
def test_with_all_up_to_a_step_the_program_is_that_step(bench, monkeypatch, k):
    facts = []
    to = torch.Tensor.to
    for training in bench(k):
        loader = getattr(training.loader, "loader", training.loader)  # that which is prefetched
        names = "batch_size num_workers prefetch_factor pin_memory persistent_workers drop_last".split()
        fetched = {name: getattr(loader, name, None) for name in names}
        loader.num_workers = 0  # from here on: no process is started
        waits, asked, dtypes, losses = 0, [], [], []
        training.model.layers[0].register_forward_hook(lambda *seen, dtypes=dtypes: dtypes.append(seen[2].dtype))

        def logged(self, *words, asked=asked, **more):
            asked.append(more.get("non_blocking", False))
            return to(self, *words, **more)

        for images, labels in itertools.islice(training.loader, 2):
            with monkeypatch.context() as patch:
                patch.setattr(torch.Tensor, "to", logged)
                waits += reads(training, images, labels)
            losses.append(training.train_step(images, labels).item())
        cells = inspect.getclosurevars(training.train_step).nonlocals
        facts.append(
            fetched
            | {
                "loader": (type(training.loader), type(getattr(loader, "sampler", None))),
                "transform": repr(loader.dataset.transform),
                "losses": losses,
                "last images": training.model.seen.sum().item(),
                "batch": (images.dtype, tuple(images.shape), images.stride()),
                "waits for values": waits,
                "copies, non_blocking": asked,
                "precision": set(dtypes),
                "optimizer": cells["optimizer"].defaults,
                "channels last": training.model.layers[0].weight.is_contiguous(memory_format=torch.channels_last),
                "compiled": training.compiled,
                "cudnn.benchmark": torch.backends.cudnn.benchmark,
                "curve": [type(value) for value in cells["losses"]],
            }
        )
    step, combined = facts
    assert combined == step


# The plan

ON_NO_GPU = [  # without effect
    "amp", "pinned_memory", "prefetch_stream", "no_hidden_syncs", "cudnn_benchmark", "cuda_graphs", "tf32",
]  # fmt: skip


def names_of(variants):
    return [variant.name for variant in variants]


def test_on_a_gpu_every_optimisation_is_enabled_and_left_out():
    every = variants({})
    by_name = {variant.name: set(variant.on) for variant in every}
    assert by_name["baseline"] == by_name["control"] == set()
    assert by_name["full"] == set(LADDER)
    assert by_name["baseline + amp + channels_last"] == {"amp", "channels_last"}
    for name in ablate.NAMES:
        with_it, without_it = (by_name[variant] for variant in ablate.in_full(name))
        assert without_it == with_it - {name} != with_it
        assert by_name[ablate.alone(name)] == by_name[ablate.before(name)] | {name}
    for name, needed in ablate.NEEDS.items():
        assert by_name[ablate.before(name)] == {needed}
        assert name not in by_name[f"full without {needed}"]


def test_what_has_no_effect_on_this_device_is_not_measured():
    options = replace(OPTIONS, batch_size=128, workers=2)
    reasons = no_effect(options, "autocast is off: so")
    assert list(reasons) == ON_NO_GPU
    assert reasons["amp"] == "autocast is off: so"
    every = variants(reasons)
    without_all = ablate.in_full("compile")[0]  # full without all that needs compile, whether it has an effect or not
    named = set(names_of(every)) - {without_all}
    assert not [name for name in named if any(reason in name for reason in reasons)]
    assert next(variant for variant in every if variant.name == "full").on == LADDER  # as step 15 on a CPU
    no_change = replace(options, device="cuda", batch_size=32, workers=0)
    assert list(no_effect(no_change, None)) == ["bigger_batch", "multiprocess_loading"]


@pytest.fixture
def fake(monkeypatch):
    """In place of processes: what was measured, `answers` {variant: why it cannot be}, `stop` after so many.

    bf16: the bf16 instructions of the CPU.
    """
    state = SimpleNamespace(log=[], precisions={}, answers={}, stop=None, bf16=None)
    speed = {
        "samples_per_second": {"median": 100.0, "windows": [99.0, 100.0, 102.0]},
        "step_ms": {"median": 1.0, "p10": 1.0, "p90": 1.0},
        "first_step_seconds": 0.5, "batch_size": 32, "started": "2026-01-01",
    }  # fmt: skip

    def answer(command, request, limit_seconds):
        own = request["settings"]
        if len(state.log) == state.stop:
            raise KeyboardInterrupt
        state.log.append(own["variant"])
        state.precisions[own["variant"]] = own["precision"]
        if own["variant"] in state.answers:
            return {"error": state.answers[own["variant"]]}
        return {"value": speed}

    monkeypatch.setattr("walkthrough.compare.isolated.answer", answer)
    monkeypatch.setattr("walkthrough.compare.statistics.RESAMPLES", 10)  # tables are made after each measurement
    monkeypatch.setattr("common.model.classifier", lambda *_: None)
    for module in ("common.device", "walkthrough.results.environment", "studies.ablation"):
        monkeypatch.setattr(f"{module}.cpu_bf16_hardware", lambda: state.bf16)
    return state


def ended(tmp_path, *words):
    words = ["ablate", *"--device cpu --quick --workers 1".split(), "--logdir", str(tmp_path), *map(str, words)]
    return exit_code_of(main, words)


def read(tmp_path):
    return results.read(tmp_path / "ablation.json")


def names_without_effect(result):
    return {one["name"] for one in result.measured["no_effect"]}


EVERY = names_of(variants(ON_NO_GPU))


def test_runs_are_interleaved_the_same_command_goes_on_after_a_cut_and_a_larger_number_of_runs_adds_some(
    fake, tmp_path
):
    fake.stop = 5
    assert ended(tmp_path, "--runs", 1) == 130
    assert len(read(tmp_path).measured["measurements"]) == 5
    assert ablate.UNFINISHED in read(tmp_path).notes
    fake.log, fake.stop = [], None
    assert ended(tmp_path, "--runs", 1) == 0
    assert fake.log == EVERY[5:]
    assert ablate.UNFINISHED not in read(tmp_path).notes
    fake.log = []
    assert (ended(tmp_path, "--runs", 2), ended(tmp_path, "--runs", 1)) == (0, 0)
    assert fake.log == EVERY[::-1]
    result = read(tmp_path)
    assert [one["variant"] for one in result.measured["measurements"]] == EVERY + EVERY[::-1]
    assert [one["run"] for one in result.measured["measurements"]] == [1] * len(EVERY) + [2] * len(EVERY)
    assert result.measured["runs"] == 2
    [why] = [one["why"] for one in result.measured["no_effect"] if one["name"] == "amp"]
    assert why.startswith("autocast is off: this CPU has no bf16")


@pytest.mark.parametrize(
    "bf16, words, precision, alone_only",
    [(None, ["--precision", "bf16"], "bfloat16", []), (None, [], None, []), ("AVX512-BF16", [], None, ["amp"])],
)
def test_amp_is_in_the_full_ladder_where_it_is_chosen_alone_where_it_may_be_slower_and_else_has_no_effect(
    fake, tmp_path, bf16, words, precision, alone_only
):
    fake.bf16 = bf16
    assert ended(tmp_path, "--runs", 1, *words) == 0
    result = read(tmp_path)
    assert (result.measured["alone_only"], result.precision) == (alone_only, precision or "float32")
    assert ("full without amp" in fake.log) == (precision is not None)
    assert ("baseline + amp" in fake.log) == (precision is not None or alone_only == ["amp"])
    assert ("amp" in names_without_effect(result)) == ("baseline + amp" not in fake.log)
    asked = {name: words[1] if words else "auto" for name in fake.log}
    assert fake.precisions == (asked | {"baseline + amp": "bf16"} if alone_only else asked)
    if alone_only:  # and in no pair, which nobody would use
        with_amp = {one["variant"] for one in result.measured["measurements"] if "amp" in one["on"]}
        assert with_amp == {"baseline + amp"}


def test_what_another_ablation_measured_is_not_taken_and_is_replaced_by_a_whole_one_only(fake, tmp_path):
    ended(tmp_path, "--runs", 1)
    whole, fake.log, fake.stop = read(tmp_path), [], 3
    assert ended(tmp_path, "--runs", 1, "--workers", 2) == 130
    assert read(tmp_path) == whole
    fake.stop = None
    assert ended(tmp_path, "--runs", 1, "--workers", 2) == 0
    assert fake.log == EVERY
    assert read(tmp_path) != whole


def test_a_compile_that_cannot_run_is_left_out_of_everything(fake, tmp_path):
    fake.answers["baseline + compile"] = "torch.compile found no C++ compiler that works"
    assert ended(tmp_path, "--runs", 2) == 0
    assert [name for name in fake.log if "compile" in name] == ["baseline + compile"]
    result = read(tmp_path)
    assert {"compile", "compile_loss"} <= names_without_effect(result)
    assert all("compile" not in one["on"] for one in result.measured["measurements"])
    rows = {row["optimisation"]: row["no effect"] for row in result.tables["effects"]}
    assert "no C++ compiler that works; the full ladder is without it" in rows["compile"]


def test_without_a_baseline_there_is_nothing_to_measure(fake, tmp_path, capsys):
    fake.answers["baseline"] = "out of memory"
    assert ended(tmp_path) == 2
    assert "the baseline cannot be run: out of memory" in capsys.readouterr().err
    assert fake.log == ["baseline"]


def measured(speeds, **changes):
    """What an ablation measured, by hand: {variant: images/s of each run}."""
    measurements = [
        {
            "variant": name, "on": [], "run": run,
            "samples_per_second": {"median": speed, "windows": [speed * 0.9, speed, speed * 1.1]},
        }
        for name, of_runs in speeds.items()
        for run, speed in enumerate(of_runs, start=1)
        if speed
    ]  # fmt: skip
    values = {"runs": 3, "alone_only": [], "no_effect": [], "not_run": [], "measurements": measurements}
    return values | changes


BASE = {"baseline": [100.0, 200.0, 100.0], "control": [101.0, 198.0, 100.0]}  # run 2 had the machine twice as fast


def effect_of(found, name):
    return next(row for row in tables(found)["effects"] if row["optimisation"] == name)


def test_an_effect_is_the_mean_of_ratios_within_each_run_with_its_interval():
    found = measured(
        BASE
        | {"baseline + amp": [110.0, 240.0, 130.0], "full": [900.0, 1000.0, 800.0],
           "full without amp": [450.0, None, 200.0], "full + on_device_data": [1800.0, 1000.0, 1600.0]}
    )  # fmt: skip
    assert tables(found)["programs"][1]["vs baseline"] == of_pairs([1.01, 0.99, 1.0])
    amp, on_device = (effect_of(found, name) for name in ("amp", "on_device_data"))
    assert amp["saves, us per image"] == mean([1e6 / 100 - 1e6 / 110, 1e6 / 200 - 1e6 / 240, 1e6 / 100 - 1e6 / 130])
    assert amp["saves there, us per image"] == mean([1e6 / 450 - 1e6 / 900, 1e6 / 200 - 1e6 / 800])
    assert amp["alone"] == of_pairs([1.1, 1.2, 1.3])
    assert amp["in the full ladder"] == of_pairs([2.0, 4.0])  # of the runs that have both
    assert on_device["in the full ladder"] == of_pairs([2.0, 1.0, 2.0])
    assert on_device["alone"] is None


def arms(both, first=(150.0, 300.0, 150.0), second=(120.0, 240.0, 120.0)):
    return {"baseline + amp": first, "baseline + channels_last": second, "baseline + amp + channels_last": both}


def interaction(speeds, base=BASE):
    rows = tables(measured(base | speeds))["pairs"]
    return next(row for row in rows if row["pair"] == "amp + channels_last")


@pytest.mark.parametrize(
    ("both", "answer"),
    [
        ((270.0, 540.0, 288.0), "more"),  # predicted: 1.5 x 1.2 = 1.8
        ((270.0, 540.0, 170.0), "none measurable"),  # one run on the other side
        ((90.0, 180.0, 90.0), "less"),
    ],
)
def test_an_interaction_is_the_gain_of_two_together_over_what_is_predicted_from_each_alone(both, answer):
    row, over = interaction(arms(both)), [speed / base for speed, base in zip(both, (180, 360, 180), strict=True)]
    assert row["interaction"] == answer
    assert vars(row["together over first x second"]) == pytest.approx(vars(of_pairs(over)))
    assert [row[name].ratio for name in ("first", "second")] == pytest.approx([1.5, 1.2])


def test_an_interaction_needs_two_runs_and_what_one_would_use_together():
    one = {name: speeds[:1] for name, speeds in (BASE | arms((270.0,))).items()}
    row = interaction(one, {})
    assert (row["interaction"], row["together over first x second"]) == ("-", None)
    assert row["together"].ratio == pytest.approx(2.7)
    assert 1.5 < row["together"].low < 2.7  # of the windows of one run
    assert tables(measured(BASE | arms((270.0, 540.0, 288.0)), alone_only=["amp"]))["pairs"] == []


def test_the_prediction_counts_nothing_twice_and_only_what_is_in_the_full_ladder():
    counted = ("reduced_h2d_copy", "small_images", "compile", "compile_loss")
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
    none = [{"name": name, "why": "so"} for name in LADDER if name not in (*counted, "amp")]
    found = measured(speeds, no_effect=none, alone_only=["amp"])
    gains = {name: effect_of(found, name)["alone"].ratio for name in counted}
    assert gains == {name: pytest.approx(gain) for name, gain in zip(counted, (2, 1.5, 1.5, 1.2), strict=True)}
    assert ablate.whole_ladder(found)[1].ratio == pytest.approx(2 * 1.5 * 1.5 * 1.2)
