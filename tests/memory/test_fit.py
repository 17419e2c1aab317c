"""`fit`: programs on fake tensors, the command, and where its predictions are shown."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from support import NAMES, ROOT, STEPS, make_result, run_program

from common import failures
from labs.memory.published import MEMORY
from walkthrough.cli import main
from walkthrough.compare import gpu_memory, isolated
from walkthrough.compare.gpu_memory import CONTEXT_BYTES, KINDS, Fit, Prediction
from walkthrough.memory import measure, prediction, program, view
from walkthrough.memory.record import GPUS, Wanted, name_of
from walkthrough.results import result as record
from walkthrough.results.errors import InputError
from walkthrough.terminal import console

SMALL = ("--model", "tiny_convmixer", "--image-size", "48", "--batch-size", "16")
OF_IMAGES = ("--model", "mobilenet_v3_small", "--image-size", "64", "--batch-size", "32")  # most of it activations
PROGRAM = """
import torch
from torch import nn
from walkthrough.results.errors import InputError
from common.options import step_options
from common.session import run_step

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return torch.ones(8, {width}), index % 4

def main():
    args = step_options(__doc__)
    model = nn.Sequential(nn.Linear({width}, {width}), {layer}, nn.Flatten(), nn.Linear(8 * {width}, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Data(), batch_size=32, num_workers=2)

    def train_step(x, labels):
        with {context}:
            loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {more}
        return loss

    run_step(__file__, args, loader, train_step)
    raise RuntimeError("it went on")

if __name__ == "__main__":
    main()
"""
SAVE_ON_CPU = "torch.autograd.graph.save_on_cpu(pin_memory=True)"
OFF = "torch.autocast('cpu', enabled=False)"


def step(number):
    return str(STEPS[number])


def predicted(file, words=SMALL, **settings):
    """The `Prediction` of a program; what it fails with is raised."""
    answer = prediction.predicted(asdict(Wanted(file, words, **settings)))
    if "failed" in answer:
        raise InputError(answer["failed"])
    return record.typed(Prediction, answer, "prediction")


def write_program(folder, width=256, layer="nn.ReLU()", context=OFF, more="pass"):
    path = folder / "own.py"
    path.write_text(PROGRAM.format(width=width, layer=layer, context=context, more=more))
    return str(path)


@pytest.fixture
def own(tmp_path):
    """Writes the program above and predicts it."""
    return lambda **changes: predicted(write_program(tmp_path, **changes), ())


def make_prediction(program="02_bigger_batch", **changes):
    values = dict(
        program=program,
        words=[],
        model="mobilenet_v2",
        image_size=224,
        batch_size=128,
        precision="bfloat16",
        peak_bytes=5_137_000_000,
        by_kind=dict.fromkeys(KINDS, 0) | {"activations": 5_137_000_000},
        reserved_bytes=5_761_000_000,
    )
    return Prediction(**(values | changes))


def make_fit(*predictions):
    return Fit(1, CONTEXT_BYTES, [*predictions], {}, make_result().environment, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize("published", [one for one in MEMORY if one.program in NAMES], ids=lambda one: one.program)
def test_the_walkthroughs_figures_are_predicted_within_ten_percent(published):
    one = predicted(step(NAMES.index(published.program)), ())
    assert (one.model, one.image_size) == ("mobilenet_v2", 224)
    assert one.peak_bytes / 1e9 == pytest.approx(published.memory_gb, rel=0.1)
    assert sum(one.by_kind.values()) == one.peak_bytes
    assert one.reserved_bytes >= one.peak_bytes


@pytest.mark.parametrize("published", [one for one in MEMORY if one.program not in NAMES], ids=str)
def test_the_resnext_studys_figures_are_predicted_within_ten_percent(published):
    file = ROOT / f"{published.program}.py"
    if not file.exists():
        pytest.skip(f"there is no {published.program}")
    one = predicted(str(file), published.words)
    assert one.reserved_bytes / 1e9 == pytest.approx(published.memory_gb, rel=0.1)


def test_every_step_is_predicted_and_only_those_that_compile_have_a_note():
    for path in STEPS:
        one = predicted(str(path))
        assert (one.program, one.model, one.image_size) == (path.stem, "tiny_convmixer", 48)
        assert one.batch_size == (32 if path.stem[:2] in ("00", "01") else 16)
        assert one.precision == ("float32" if path.stem.startswith("00") else "bfloat16")
        compiles = ".compile(" in path.read_text(encoding="utf-8").partition("import torch")[2]
        assert any("uncompiled" in note for note in one.notes) == compiles, path.stem


def test_what_a_step_changes_is_seen():
    bigger, uint8, prefetch, small, on_device = (predicted(step(number)) for number in (2, 3, 6, 7, 8))
    batch, stored = 16 * 3 * 48 * 48, 16 * 3 * 32 * 32
    assert bigger.by_kind["inputs"] == 4 * batch + 512  # float32, and a block of labels
    assert uint8.by_kind["inputs"] == batch + 512
    assert prefetch.by_kind["inputs"] == 2 * uint8.by_kind["inputs"]
    assert small.by_kind["inputs"] == 2 * (stored + 512)
    assert on_device.by_kind["inputs"] > 50_000 * (3 * 32 * 32 + 8)


def test_the_trainings_own_options_act():
    base = predicted(None, (*OF_IMAGES, "--precision", "fp32"))
    bf16 = predicted(None, (*OF_IMAGES, "--precision", "bf16"))
    assert bf16.by_kind["activations"] < 0.7 * base.by_kind["activations"]
    adam = predicted(None, (*OF_IMAGES, "--precision", "fp32"), optimizer="adamw")
    assert adam.by_kind["optimizer"] > 1.9 * base.by_kind["optimizer"]
    kept = predicted(None, (*OF_IMAGES, "--precision", "fp32"), checkpoint=True)
    assert kept.by_kind["activations"] < 0.7 * base.by_kind["activations"]
    assert base.program is None
    assert sum(kept.by_kind.values()) == kept.peak_bytes


def test_a_scaler_takes_its_steps_and_its_numbers_are_read():
    fp16, bf16 = (predicted(None, (*SMALL, "--precision", precision)) for precision in ("fp16", "bf16"))
    assert fp16.by_kind["optimizer"] == bf16.by_kind["optimizer"]  # so the optimizer took its step


def test_the_largest_batch_fits_and_the_next_does_not():
    budget = 1_000_000_000
    one = predicted(step(2), budgets=[budget])
    size = one.largest[str(budget)]
    assert size > 1000
    for asked, fits in ((size, True), (size + 1, False)):
        batch = prediction.trained(Wanted(step(2), (*SMALL[:-1], str(asked))))
        assert batch.batch_size == asked
        assert (batch.needed_bytes(budget - CONTEXT_BYTES) <= budget - CONTEXT_BYTES) == fits


def test_no_batch_fits_where_the_weights_do_not_or_batch_norm_needs_more_samples():
    assert predicted(step(2), budgets=[CONTEXT_BYTES + 1]).largest == {str(CONTEXT_BYTES + 1): 0}
    assert predicted(step(2), (*SMALL[:3], "16", *SMALL[4:]), budgets=[10**6]).largest == {"1000000": 0}


def test_offloading_keeps_activations_off_the_device(own):
    layers = "*[nn.Linear(256, 256) for _ in range(8)]"
    keeping, offloading = (own(layer=layers, context=context) for context in (OFF, SAVE_ON_CPU))
    kept_bytes = 32 * 8 * 256 * 4  # of what each layer keeps
    assert keeping.by_kind["activations"] >= 8 * kept_bytes
    assert offloading.by_kind["activations"] <= 3 * kept_bytes


def test_a_layer_norm_is_computed_in_float32_under_autocast_as_on_a_gpu(own):
    autocast = "torch.autocast(args.device, torch.bfloat16)"
    relu, norm = (own(layer=layer, context=autocast) for layer in ("nn.ReLU()", "nn.LayerNorm(256)"))
    elements = 32 * 8 * 256
    assert norm.by_kind["activations"] >= relu.by_kind["activations"] + 4 * elements


def test_dropout_keeps_bools_as_on_a_gpu(own):
    relu, dropout = own(), own(layer="nn.Dropout(0.5)")
    assert dropout.by_kind["activations"] - relu.by_kind["activations"] == 32 * 8 * 256


def test_a_model_called_twice_in_a_step_is_predicted(own):
    assert own(more="model(x)").peak_bytes > own().peak_bytes


def test_batches_that_are_not_images_have_the_batch_size_asked_for(own):
    assert own().batch_size == 32
    assert own().by_kind["inputs"] == 32 * 8 * 256 * 4 + 512


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"more": "loss.tolist() or x.numpy()"}, "cannot be predicted"),
        ({"more": "raise InputError('no such thing')"}, "no such thing"),
        ({"layer": "nn.Linear(3, 3)"}, "cannot be predicted (RuntimeError"),
    ],
)
def test_a_program_that_cannot_be_predicted_says_why_in_a_line(own, change, reason):
    with pytest.raises(InputError) as refused:
        own(**change)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_program_without_a_run_and_one_with_a_wrong_option_are_refused(tmp_path):
    path = tmp_path / "nothing.py"
    path.write_text("print('done')")
    with pytest.raises(InputError, match="ended without a call of run_step"):
        predicted(str(path), ())
    with pytest.raises(InputError, match="'zero' is not a whole number"):
        predicted(step(2), ("--batch-size", "zero"))
    with pytest.raises(InputError, match="vgg11 has no blocks"):
        predicted(None, ("--model", "vgg11", "--image-size", "32"), checkpoint=True)
    with pytest.raises(InputError, match="makes its model by itself"):
        predicted(write_program(tmp_path), (), checkpoint=True)


def test_nothing_is_left_replaced_by_a_prediction():
    before = torch.compile, torch.nn.Module._apply, torch.autograd.graph.save_on_cpu
    predicted(step(13))
    assert (torch.compile, torch.nn.Module._apply, torch.autograd.graph.save_on_cpu) == before
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.nn.functional.layer_norm(torch.ones(2, 8, dtype=torch.bfloat16), (8,)).dtype == torch.bfloat16


def test_a_gpus_memory_is_what_the_card_reports_not_what_it_is_sold_with():
    assert 15.5e9 < GPUS["T4"] <= 15_843_721_216  # `total_memory` of one
    sold = {"T4": 16, "RTX 4090": 24, "A100 40 GB": 40, "A100 80 GB": 80, "H100": 80, "B200": 192}  # GiB
    assert all(0.9 < GPUS[name] / 2**30 / size < 1 for name, size in sold.items())


def test_the_command_prints_the_fixed_fields():
    finished = run_program("-m", "walkthrough", "fit", "--step", "02", *SMALL, "--memory", "2GB", "--json")
    assert finished.returncode == 0, finished.stderr
    value = json.loads(finished.stdout)
    assert {"peak_bytes", "by_kind", "context_bytes", "largest_batch_size"} <= set(value)
    assert list(value["by_kind"]) == list(KINDS)
    assert sum(value["by_kind"].values()) == value["peak_bytes"]
    assert value["context_bytes"] == CONTEXT_BYTES
    assert value["largest_batch_size"] == value["largest"]["2000000000"] > 16


def answers(monkeypatch, answer):
    """Let the process that predicts answer this; returns what it is asked."""
    asked = []
    monkeypatch.setattr(isolated, "answer", lambda _, settings, *__: asked.append(settings) or answer)
    return asked


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(["fit", *map(str, words)])
    return ended.value.code


def test_one_prediction_is_a_table_with_context_gpus_and_what_is_not_predicted(monkeypatch, capsys):
    largest = {str(memory): memory // 10**8 for memory in sorted(set(GPUS.values()))}
    asked = answers(monkeypatch, {"predictions": [asdict(make_prediction(largest=largest))]})
    assert run("--step", "02", "--memory") == 0
    assert asked[0]["wanted"][0]["budgets"] == [int(memory) for memory in largest]
    text = " ".join(capsys.readouterr().out.split())
    assert "02_bigger_batch: mobilenet_v2, 224 px, batch 128, bfloat16: 5.14 GB predicted" in text
    assert "peak 5.137 reserved 5.761 with a CUDA context 6.311" in text
    assert "84.98 GB 849 A100 80 GB, H100" in text
    assert "(assumed, not measured by us)" in text  # no published figure contains a context
    assert "Not predicted: workspaces of cuDNN" in text


def test_all_programs_are_written_and_shown(monkeypatch, capsys, tmp_path):
    wanted = measure.programs()
    assert [name for name in NAMES if name not in {name_of(one.program) for one in wanted}] == []
    rows = [{"failed": "it reads values"}] + [asdict(make_prediction()) for _ in wanted[1:]]
    answers(monkeypatch, {"predictions": rows})
    assert run("--logdir", tmp_path / "logs", "--plot", tmp_path / "memory.svg") == 0
    fit = gpu_memory.read(tmp_path / "logs")
    assert len(fit.predictions) == len(wanted) - 1
    assert fit.failed == {NAMES[0]: "it reads values"}
    assert fit.find("02_bigger_batch").peak_bytes == 5_137_000_000
    assert (tmp_path / "memory.svg").read_text().startswith("<?xml")
    out = capsys.readouterr().out
    assert f"{NAMES[0]}: it reads values." in out
    assert run("--logdir", tmp_path / "logs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1


def test_what_failed_has_its_labs_name_and_its_words(monkeypatch, tmp_path):
    wanted = measure.programs()
    answers(monkeypatch, {"predictions": [{"failed": "it reads values"} for _ in wanted]})
    run("--logdir", tmp_path)
    failed = gpu_memory.read(tmp_path).failed
    assert len(failed) == len(wanted)
    assert {"00_baseline", "labs/memory/00_baseline", "labs/memory/00_baseline --batch-size 512"} <= set(failed)


def test_what_was_predicted_before_a_process_was_ended_is_kept(monkeypatch, capsys, tmp_path):
    def ended_after_one(command, settings, limit_seconds, on_line=None):
        if on_line:
            on_line(json.dumps({"predicted": asdict(make_prediction("00_baseline"))}), None)
        return "not done after 1800 s"

    monkeypatch.setattr(isolated, "answer", ended_after_one)
    assert run("--logdir", tmp_path) == 0
    fit = gpu_memory.read(tmp_path)
    assert [one.program for one in fit.predictions] == ["00_baseline"]
    assert fit.failed["01_amp"] == "not done after 1800 s"
    assert len(fit.failed) == len(measure.programs()) - 1
    assert f"fit: 1 of {len(measure.programs())}: 00_baseline" in capsys.readouterr().out


def test_each_prediction_is_printed_at_once(capsys):
    program.main(json.dumps({"wanted": [asdict(Wanted(step(2), SMALL))]}))
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(measure.PREDICTED)
    assert json.loads(line)["predicted"]["program"] == "02_bigger_batch"


@pytest.mark.parametrize(("words", "says"), [([], "seconds each"), (["--memory"], "a minute or so each")])
def test_how_long_all_programs_take_counts_their_data_and_the_search(monkeypatch, capsys, tmp_path, words, says):
    largest = {str(memory): 100 for memory in GPUS.values()} if words else {}
    rows = [asdict(make_prediction(largest=largest)) for _ in measure.programs()]
    asked = answers(monkeypatch, {"predictions": rows})
    assert run("--logdir", tmp_path, *words) == 0
    out = capsys.readouterr().out
    assert says in out
    assert "data" in out.partition("fit: ")[2].splitlines()[0]
    assert {one["tolerance"] for one in asked[0]["wanted"]} == {0.01}
    assert ("sought to within 1%" in out) == bool(words)


@pytest.mark.parametrize("inside", ["", "runs"])
def test_a_file_in_place_of_the_folder_is_refused_before_anything_is_predicted(monkeypatch, capsys, tmp_path, inside):
    asked = answers(monkeypatch, {"predictions": []})
    (tmp_path / "logs").write_text("")
    assert run("--logdir", tmp_path / "logs" / inside) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"cannot write {tmp_path / 'logs' / inside}: " in line
    assert asked == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--step", "99"], "--step 99: there is no such step; they are 00_baseline"),
        (["--program", "nowhere.py"], "--program nowhere.py: there is no such file"),
        (["--program", str(ROOT / "labs/memory/study.py")], "study.py: it does not call run_step"),
        (["--step", "02", "--optimizer", "adam"], "--optimizer: a program has its own"),
        (["--step", "02", "--plot", "a.svg"], "--plot draws all programs"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_line(words, reason, capsys):
    assert run(*words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert reason in line


def test_the_search_for_a_batch_says_first_that_it_takes_a_while(monkeypatch, capsys):
    answers(monkeypatch, {"predictions": [asdict(make_prediction(largest={"16000000000": 100}))]})
    assert run("--step", "02", "--memory", "16GB", "--json") == 0
    printed = capsys.readouterr()
    assert "a minute or so" in printed.err
    assert json.loads(printed.out)["largest_batch_size"] == 100


def test_why_a_program_cannot_be_predicted_is_the_commands_line(monkeypatch, capsys):
    answers(monkeypatch, {"predictions": [{"failed": "unknown model 'resnet5'"}]})
    assert run("--model", "resnet5") == 2
    assert "unknown model 'resnet5'" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["torch._subclasses.fake_tensor", "torch.utils._python_dispatch"])
def test_a_torch_that_has_moved_the_tools_is_named_in_one_line(missing):
    code = (
        f"import sys, torch; sys.modules[{missing!r}] = None\nfrom walkthrough.memory import program; program.main('')"
    )
    finished = run_program("-c", code, cwd=ROOT)
    answer = json.loads(finished.stdout.splitlines()[-1])["answer"]
    assert f"torch {torch.__version__} lacks what a prediction needs, or has moved it" in answer["moved"]


def test_moved_tools_end_the_command_with_one_line(monkeypatch, capsys):
    answers(monkeypatch, {"moved": "torch 9.9 lacks what a prediction needs, or has moved it (ImportError: x)"})
    assert run("--step", "02") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "fit cannot predict: torch 9.9 lacks what" in line
    assert "requirements.lock" in line


def test_a_tool_that_counts_something_else_is_a_moved_one(monkeypatch, capsys):
    monkeypatch.setattr(prediction.MemoryTracker, "mark_state", lambda self: None)
    program.main(json.dumps({"wanted": []}))
    assert "RuntimeError: a linear layer is predicted with" in json.loads(capsys.readouterr().out)["answer"]["moved"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"schema": 7}, "has schema 7"), ({"predictions": [{}]}, "is broken"), ({}, "do not sum up to its peak")],
)
def test_a_broken_file_is_refused(tmp_path, change, reason):
    value = asdict(make_fit(make_prediction(peak_bytes=1)))
    record.write_json(tmp_path / gpu_memory.FILE, value | change)
    with pytest.raises(InputError, match=reason):
        gpu_memory.read(tmp_path)


def test_beside_a_gpus_figures_only_a_prediction_of_the_same_training_is_shown():
    fit = make_fit(make_prediction())
    result = make_result("02_bigger_batch", batch_size=128, precision="bfloat16")
    assert fit.gpu_bytes(result) == 5_137_000_000
    assert fit.gpu_bytes(replace(result, precision="float16")) == 5_137_000_000  # as large
    for change in ({"batch_size": 64}, {"model": "resnet50"}, {"precision": "float32"}, {"image_size": 192}):
        assert fit.gpu_bytes(replace(result, **change)) is None
    assert fit.gpu_bytes(replace(result, step="03_reduced_h2d_copy")) is None


def test_a_gpu_that_is_out_of_memory_names_the_command_that_says_what_fits(monkeypatch):
    properties = SimpleNamespace(total_memory=15_843_721_216)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(failures, "device_name", lambda device: "Tesla T4")
    args = SimpleNamespace(model="mobilenet_v2", image_size=224, precision="auto", batch_size=512)
    loader = SimpleNamespace(batch_size=512, num_workers=0)
    error = torch.OutOfMemoryError("CUDA out of memory")
    for device, ends in (("cuda", " --precision auto --memory 15GB"), ("cpu", "try --batch-size 256")):
        with (
            pytest.raises(InputError) as refused,
            failures.as_input_error(args, loader, torch.device(device), str(STEPS[2])),
        ):
            raise error
        assert str(refused.value).endswith(ends)
        assert "\n" not in str(refused.value)
    assert "python -m walkthrough fit" not in str(refused.value)


def test_programs_without_images_have_no_image_size(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=16 * 10**9))
    assert failures.what_fits("own.py", torch.device("cuda"), "small", 0, "auto").endswith(
        "own.py --model small --precision auto --memory 16GB"
    )
    one = make_prediction("labs/simcls/00_baseline", model="small", image_size=0, batch_size=4)
    to = console()
    view.show_one(one, to)
    view.show(make_fit(one), to)
    text = " ".join(capsys.readouterr().out.split())
    assert "labs/simcls/00_baseline: small, text, batch 4" in text
    assert "labs/simcls/00_baseline small text 4" in text
