"""labs/scale: its JPEGs, shards and input pipelines, by known answers."""

import importlib.util
import io
import itertools
import json
import os
import shutil
import signal
import sys
import tarfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support import ROOT, assert_refused, run_program
from torch import nn
from torch.nn import functional as F

from common.program import captured
from labs.scale import batches, dali, decoding, drawing, gpu, jpegs, order, packing, preprocess, resized, shards, spark
from labs.scale.model import mobilenet, width_of
from walkthrough.results.errors import InputError

PROGRAMS = sorted((ROOT / "labs" / "scale").glob("[0-9][0-9]_*.py"))
ON_CPU = [path.stem for path in PROGRAMS if path.stem not in ("06_nvjpeg", "07_dali")]
needs_webdataset = pytest.mark.skipif(
    importlib.util.find_spec("webdataset") is None, reason="webdataset is not installed"
)
needs_spark = pytest.mark.skipif(
    not (spark._java() and importlib.util.find_spec("pyspark") and importlib.util.find_spec("pyarrow")),
    reason="Spark needs Java, pyspark and pyarrow, which are not all installed",
)


class CutOff(BaseException):
    pass


@pytest.fixture
def data(drawn, tmp_path):
    """A copy of `drawn`, to be changed."""
    shutil.copytree(drawn, tmp_path / "data", ignore=shutil.ignore_patterns(".*", "shards*", "resized*"))
    return tmp_path / "data"


@pytest.fixture(scope="session")
def packed(drawn, tmp_path_factory):
    """Shards of `drawn`."""
    out = tmp_path_factory.mktemp("shards")
    preprocess.preprocess(drawn, out, 32)
    return out


# JPEGs


def test_a_class_is_a_shape_a_texture_and_a_colour_of_its_own():
    assert len({drawing.kind_of(label) for label in range(drawing.MOST_CLASSES)}) == drawing.MOST_CLASSES == 100


def test_pictures_have_the_sizes_of_photographs_and_are_of_their_seed():
    files = [drawing.drawn_jpeg(label % 10, (0, 0, label)) for label in range(12)]
    sizes = [Image.open(io.BytesIO(file)).size for file in files]
    assert len(set(sizes)) == len(sizes)
    assert all(200 <= side <= 900 for size in sizes for side in size)
    assert drawing.drawn_jpeg(3, (0, 0, 3)) == files[3] != drawing.drawn_jpeg(3, (0, 0, 4))


def test_a_small_network_learns_the_classes_and_a_single_pixel_does_not_tell_them(drawn, monkeypatch):
    monkeypatch.setattr(drawing, "SIDES", (60, 90))
    monkeypatch.setattr(drawing, "LARGE_SIDE", 100)
    labels = torch.arange(400) % 4
    files = [io.BytesIO(drawing.drawn_jpeg(int(label), (7, number))) for number, label in enumerate(labels)]
    images = torch.stack([torch.from_numpy(decoding.middle_square(file, 24)) for file in files]).permute(0, 3, 1, 2)
    images, train, test = images.float() / 128 - 1, slice(0, 300), slice(300, 400)
    middles = images[:, :, 12, 12]
    means = torch.stack([middles[train][labels[train] == label].mean(0) for label in range(4)])
    assert (torch.cdist(middles[test], means).argmin(1) == labels[test]).float().mean() < 0.6

    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 5, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.BatchNorm2d(32)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _, part in itertools.product(range(12), torch.arange(300).split(50)):
        optimizer.zero_grad()
        F.cross_entropy(model(images[part]), labels[part]).backward()
        optimizer.step()
    assert (model.eval()(images[test]).argmax(1) == labels[test]).float().mean() > 0.85


def test_a_drawn_folder_that_was_cut_off_goes_on_and_one_that_is_whole_is_left(data, drawn, monkeypatch):
    monkeypatch.setattr(drawing, "SIDES", (70, 130))
    monkeypatch.setattr(drawing, "LARGE_SIDE", 200)
    monkeypatch.setattr(jpegs, "usable_cores", lambda: 1)
    lost, kept = data / "train" / "class_001" / "000001.jpg", data / "train" / "class_002" / "000002.jpg"
    (data / jpegs.MADE).rename(data / jpegs.BEGUN)
    lost.unlink()
    kept.write_bytes(b"kept")
    with pytest.raises(InputError, match=r"holds other pictures.*96"):
        jpegs.drawn_folder(data, images=10, classes=2)
    jpegs.drawn_folder(data, images=96, classes=4)
    assert not (data / jpegs.BEGUN).exists()
    assert lost.read_bytes() == (drawn / lost.relative_to(data)).read_bytes()
    assert kept.read_bytes() == b"kept"
    lost.unlink()
    jpegs.drawn_folder(data, images=96, classes=4)
    assert not lost.exists()
    with pytest.raises(InputError, match="holds other pictures"):
        jpegs.drawn_folder(data, images=97, classes=4)
    (data / jpegs.MADE).unlink()
    with pytest.raises(InputError, match="was not drawn by this program"):
        jpegs.drawn_folder(data, images=96, classes=4)


def test_the_settings_of_a_drawing_are_kept_from_its_start(tmp_path, monkeypatch):
    def cut(*_):
        raise CutOff

    monkeypatch.setattr(jpegs, "on_all_cores", cut)
    for _ in range(2):
        with pytest.raises(CutOff):
            jpegs.drawn_folder(tmp_path / "out", images=30, classes=3)
    with pytest.raises(InputError, match=r"holds other pictures.*'seed': 0"):
        jpegs.drawn_folder(tmp_path / "out", images=30, classes=3, seed=5)


def test_a_killed_process_of_the_pool_is_one_line(monkeypatch):
    monkeypatch.setattr(jpegs, "usable_cores", lambda: 2)
    with pytest.raises(InputError, match=r"a process was ended.*memory.*the same command goes on"):
        jpegs.on_all_cores(signal.raise_signal, [signal.SIGKILL] * 4, at_a_time=1)


def test_labels_are_the_sorted_class_folders(drawn):
    listing = jpegs.listed(drawn)
    assert listing.classes == ("class_000", "class_001", "class_002", "class_003")
    assert len(listing) == 96 and listing.labels == tuple(np.repeat(range(4), 24))
    assert listing.files[24] == "class_001/000001.jpg"
    assert len(jpegs.listed(drawn, "val")) == 19
    two = listing.first_classes(2)
    assert two.classes == listing.classes[:2] and len(two) == 48 and set(two.labels) == {0, 1}


def test_corrupt_jpegs_are_named_counted_and_left_out(data, capsys):
    folder = data / "train" / "class_001"
    (folder / "000001.jpg").write_bytes((folder / "000001.jpg").read_bytes()[:-200])
    (folder / "000005.jpg").write_bytes(b"no picture")
    Image.new("RGB", (80, 80)).save(folder / "000009.jpg", "PNG")
    listing = jpegs.listed(data)
    assert len(listing) == 93
    assert [file.split("/")[1] for file in listing.corrupt] == ["000001.jpg", "000005.jpg", "000009.jpg"]
    assert not set(listing.corrupt) & set(listing.files)
    printed = capsys.readouterr().out
    assert "000001.jpg: image file is truncated" in printed
    assert "000009.jpg: a PNG file, not a JPEG" in printed
    assert "3 of 96 JPEGs" in printed


def test_a_link_to_nothing_is_a_corrupt_jpeg_and_a_hidden_folder_is_no_class(data):
    listing = jpegs.listed(data)
    link = data / "train" / "class_001" / "000000.jpg"
    link.symlink_to(data / "nothing.jpg")
    shutil.copytree(data / "train" / "class_000", data / "train" / ".ipynb_checkpoints")
    again = jpegs.listed(data)
    assert (again.classes, again.files, again.labels) == (listing.classes, listing.files, listing.labels)
    assert again.corrupt == {"class_001/000000.jpg": "[Errno 2] No such file or directory: the file"}
    shutil.copy(data / "train" / listing.files[0], data / "nothing.jpg")
    assert len(jpegs.listed(data)) == len(listing) + 1


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff"])
def test_jpegs_are_checked_again_where_what_is_kept_of_a_check_is_damaged(data, content):
    listing = jpegs.listed(data)
    (data / ".train-checked.json").write_bytes(content)
    assert jpegs.listed(data) == listing
    assert json.loads((data / ".train-checked.json").read_text())["files"] == listing.digest


def test_files_are_decoded_for_the_check_once_and_again_only_if_one_changed(data):
    checked = []

    def engine(function, items, at_a_time):
        checked.append(len(items))
        return jpegs.on_all_cores(function, items, 1000)

    for _ in range(2):
        assert len(jpegs.listed(data, engine=engine)) == 96
    assert checked == [96]
    (data / "train" / "class_000" / "000000.jpg").write_bytes(b"other")
    assert len(jpegs.listed(data, engine=engine)) == 95
    assert checked == [96, 96]


def test_too_many_corrupt_jpegs_end_a_program_in_one_line(data, run_here, tmp_path):
    for path in sorted((data / "train" / "class_003").iterdir())[:11]:
        path.write_bytes(b"")
    done = run_here(PROGRAMS[0], "--data", data, "--device", "cpu", "--logdir", tmp_path)
    assert_refused(done, "11 of 96 JPEGs", "class_003/000003.jpg", "more than 10")


@pytest.mark.parametrize("missing", ["train", "class"])
def test_a_folder_without_jpegs_is_refused_in_one_line(tmp_path, run_here, missing):
    if missing == "class":
        (tmp_path / "train" / "empty").mkdir(parents=True)
    assert_refused(run_here(PROGRAMS[0], "--data", tmp_path, "--device", "cpu"), str(tmp_path))


def test_a_model_has_the_published_count_of_parameters_and_its_width_by_its_name():
    assert sum(parameter.numel() for parameter in mobilenet("w32", 1000).parameters()) == 3_504_872
    assert mobilenet("w8", 4)(torch.zeros(2, 3, 64, 64)).shape == (2, 4)
    for name in ("w12", "resnet18", "w0", "w4096"):
        with pytest.raises(InputError, match="unknown model"):
            width_of(name)


# The order


def test_images_are_dealt_once_into_even_shards():
    dealt = order.shards_of(2000)
    assert [len(shard) for shard in dealt] == [250] * 8
    assert sorted(np.concatenate(dealt)) == list(range(2000))
    assert len(order.shards_of(1_281_167)) == 1252 and len(order.shards_of(5)) == 5


def test_one_reader_reads_shard_after_shard_and_every_epoch_in_another_order():
    sampler = order.ShardOrder(64, batch_size=5, workers=0, seed=3)
    first, second = list(sampler), list(sampler)
    assert len(first) == len(set(first)) == len(sampler) == 60
    assert first != second
    number_of = {image: number for number, shard in enumerate(order.shards_of(64)) for image in shard}
    read = [number for number, _ in itertools.groupby(number_of[image] for image in first)]
    assert len(read) == 8 and sorted(read) == list(range(8))
    assert first == list(order.ShardOrder(64, 5, 1, 3)) != list(order.ShardOrder(64, 5, 1, 4))


def test_several_readers_give_whole_batches_of_their_own_shards_in_turn():
    sampler = order.ShardOrder(64, batch_size=5, workers=3, seed=0)
    assert sampler.counts == [4, 4, 3]  # of 3, 3 and 2 shards of 8
    taken = np.array(list(sampler)).reshape(-1, 5)
    number_of = {image: number for number, shard in enumerate(order.shards_of(64)) for image in shard}
    for place, batch in enumerate(taken):
        own = order.of_reader(8, place % 3, 3, 0, 0)
        assert {number_of[image] for image in batch} <= set(own)


def test_too_few_images_for_a_batch_of_any_reader_are_refused():
    with pytest.raises(InputError, match="64 images are no batch of 40 for any of 2 readers"):
        order.ShardOrder(64, batch_size=40, workers=2, seed=0)


# Shards


def test_a_shard_is_a_tar_file_of_small_jpegs_and_labels(drawn, packed):
    index = shards.check(packed / "train")
    listing = jpegs.listed(drawn)
    assert (index.size, index.samples, len(index.shards), index.classes) == (32, 96, 8, list(listing.classes))
    assert index.bytes == sum(path.stat().st_size for path in (packed / "train").glob("*.tar"))
    with tarfile.open(packed / "train" / "000000.tar") as tar:
        names = tar.getnames()
        dealt = [int(name.split(".")[0]) for name in names[::2]]
        assert dealt == order.shards_of(96)[0].tolist()
        assert names[1::2] == [f"{number:08d}.cls" for number in dealt]
        labels = [int(tar.extractfile(name).read()) for name in names[1::2]]
        assert labels == [listing.labels[number] for number in dealt]
        image = decoding.pixels(io.BytesIO(tar.extractfile(names[0]).read())).astype(int)
        assert image.shape == (32, 32, 3)
        sharp = decoding.middle_square(listing.path(dealt[0]), 32).astype(int)
        assert abs(image - sharp).mean() < 6


@pytest.mark.parametrize("what", ["cut short", "changed", "missing", "too long"])
def test_a_shard_that_is_not_whole_is_named(packed, tmp_path, what, run_here):
    out = tmp_path / "shards"
    shutil.copytree(packed / "train", out)
    shard = out / "000003.tar"
    content = bytearray(shard.read_bytes())
    content[700] ^= 1
    match what:
        case "cut short":
            shard.write_bytes(content[:-1])
        case "changed":
            shard.write_bytes(content)
        case "missing":
            shard.unlink()
        case _:
            shard.write_bytes(bytes(content) + b"\0")
    assert_refused(run_here(ROOT / "labs" / "scale" / "shards.py", out), str(shard), what)


def test_only_shards_that_are_missing_or_broken_are_made_again(data, tmp_path):
    out = tmp_path / "shards"
    preprocess.preprocess(data, out, 32)
    (out / "train" / shards.INDEX).unlink()  # as if it was cut off before the end
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (out / "train").glob("*.tar")}
    (out / "train" / "000002.tar").unlink()
    os.truncate(out / "train" / "000005.tar", 100)
    preprocess.preprocess(data, out, 32)
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (out / "train").glob("*.tar")}
    assert {name for name in before if before[name][0] != after[name][0]} == {"000002.tar", "000005.tar"}
    assert all(before[name][1] == after[name][1] for name in before)
    preprocess.preprocess(data, out, 24)
    assert shards.check(out / "train").size == 24


def test_a_shard_that_cannot_be_written_leaves_nothing_under_its_name(data, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packing.os, "replace", full)
    monkeypatch.setattr(jpegs, "usable_cores", lambda: 1)
    (tmp_path / "out" / "train").mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot make 8 of 8 shards.*No space left"):
        preprocess._of_part(jpegs.listed(data), tmp_path / "out" / "train", 32, jpegs.on_all_cores)
    assert list((tmp_path / "out" / "train").iterdir()) == []


def test_preprocessing_names_and_counts_corrupt_jpegs(data, tmp_path, run_here):
    broken = data / "train" / "class_002" / "000006.jpg"
    broken.write_bytes(b"")
    words = ["--data", data, "--out", tmp_path / "out", "--size", "32", "--engine", "processes"]
    done = run_here(ROOT / "labs" / "scale" / "preprocess.py", *words)
    assert done.returncode == 0, done.stderr
    assert f"{broken}: cannot identify image file" in done.stdout
    assert "95 images of 32 px in 8 shards" in done.stdout and "1 corrupt JPEGs left out" in done.stdout
    assert list(shards.check(tmp_path / "out" / "train").corrupt) == ["class_002/000006.jpg"]


def test_pictures_that_are_not_all_drawn_are_no_data(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / jpegs.BEGUN).write_text("{}")
    with pytest.raises(InputError, match="not all drawn"):
        jpegs.image_folder(tmp_path)
    (tmp_path / jpegs.MADE).write_text("{}")  # a cut between the two
    assert jpegs.image_folder(tmp_path) == tmp_path


@pytest.mark.spark
@needs_spark
def test_spark_makes_the_same_shards_as_processes(data, packed, tmp_path):
    (data / "train" / "class_001" / "000001.jpg").write_bytes(b"")
    program = ROOT / "labs" / "scale" / "preprocess.py"
    words = ["--data", data, "--size", "32"]
    done = run_program(program, *words, "--out", tmp_path / "spark", "--master", "local[1]")
    assert done.returncode == 0, done.stderr
    assert "class_001/000001.jpg" in done.stdout  # which Spark found: it was the first to look
    preprocess.preprocess(data, tmp_path / "processes", 32)
    for path in (tmp_path / "processes").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "spark" / path.relative_to(tmp_path / "processes")).read_bytes()
    assert len(list((tmp_path / "spark").rglob("*.tar"))) == 16


def test_without_java_or_pyspark_there_is_one_line(drawn, tmp_path, run_here, monkeypatch):
    program = ROOT / "labs" / "scale" / "preprocess.py"
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert_refused(run_here(program, "--data", drawn), "pip install pyspark")
    monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert_refused(run_here(program, "--data", drawn), "apt-get install default-jre-headless", "--engine processes")


@pytest.mark.spark
@needs_spark
def test_a_master_that_spark_does_not_know_is_refused_in_one_line(drawn, run_here):
    done = run_here(ROOT / "labs" / "scale" / "preprocess.py", "--data", drawn, "--master", "locl[2]")
    assert_refused(done, "--master locl[2]")


SPARK = """
import os, signal, sys, time
from walkthrough.results.errors import exit_in_one_line
from labs.scale.spark import spark_engine

def answer(item):
    if item == "kill the worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "interrupt":
        os.kill(PROGRAM, signal.SIGINT)
        time.sleep(30)
    return item.upper()

PROGRAM = os.getpid()
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has its background jobs ignore
exit_in_one_line()
with spark_engine("local[2]") as engine:
    print(engine(answer, ["a", "b"], 1), flush=True)
    engine(answer, ["a", sys.argv[1]], 1)
"""


@pytest.mark.spark
@needs_spark
@pytest.mark.parametrize(
    ("what", "code", "line"),
    [
        ("kill the worker", 2, f"-c: of Spark, {jpegs.PROCESS_LOST}\n"),
        pytest.param(
            *("interrupt", 130, "-c: interrupted; every run that was complete is kept\n"), marks=pytest.mark.thorough
        ),
    ],
)
def test_spark_ends_in_one_line(what, code, line):
    done = run_program("-c", SPARK, what, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    assert (done.returncode, done.stderr, done.stdout) == (code, line, "['A', 'B']\n")


@pytest.mark.spark
@needs_spark
def test_java_that_does_not_start_is_one_line_with_its_reason(drawn, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho first\necho 'java.lang.LinkageError: too old' >&2\nexit 1\n")
    java.chmod(0o755)
    program = ROOT / "labs" / "scale" / "preprocess.py"
    done = run_program(program, "--data", drawn, "--out", tmp_path, JAVA_HOME=tmp_path)
    assert_refused(done, "Spark did not start with --master local[*]", "java.lang.LinkageError: too old")


# Pipelines


@pytest.fixture
def loader_of(drawn, tmp_path):
    """loader_of(name, workers): the loader that a program passes to `run_step`, of batches of 6 at 32 px."""

    def capture(name, workers):
        words = ["--data", drawn, "--batch-size", 6, "--image-size", 32, "--workers", workers, "--device", "cpu"]
        words += ["--seed", 5, "--logdir", tmp_path]
        return captured(ROOT / "labs" / "scale" / f"{name}.py", list(map(str, words))).loader

    return capture


@needs_webdataset
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset leaves files to the GC
@pytest.mark.parametrize("workers", [0, 2])
def test_all_pipelines_give_the_same_batches(loader_of, workers):
    epochs = {}
    for name in ON_CPU:
        loader = loader_of(name, workers)
        assert loader.batch_size == 6 and len(loader) == 16
        epochs[name] = [list(loader), list(loader)]
        assert [len(epoch) for epoch in epochs[name]] == [16, 16]
    labels = {name: torch.stack([own for epoch in both for _, own in epoch]) for name, both in epochs.items()}
    images = {name: torch.stack([own for epoch in both for own, _ in epoch]) for name, both in epochs.items()}
    first = ON_CPU[0]
    assert images[first].shape == (32, 6, 3, 32, 32) and images[first].dtype == torch.float32
    assert not torch.equal(labels[first][:16], labels[first][16:])
    for name in ON_CPU[1:]:
        assert torch.equal(labels[name], labels[first]), name
    assert torch.equal(images["01_workers"], images[first])
    assert torch.equal(images["02_batched"], images[first])
    again = images["03_resized_once"]  # compressed a second time
    assert torch.equal(images["04_cached"], again) and torch.equal(images["05_shards"], again)
    of_255 = (again - images[first]).abs() * 255 * 0.225
    assert of_255.mean() < 6
    others = (again - images[first].roll(1, dims=1)).abs() * 255 * 0.225
    assert others.mean() > 5 * of_255.mean()


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_opens_as_a_step_does(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f'"""Scale {path.stem[:2]}: ')
    assert all(f"\n{part}" in text for part in ("Idea  ", "Change  ", "Look for  ", "Caution  "))
    assert len(text.splitlines()) < 75


@pytest.mark.parametrize(("before", "after"), [("00", "01"), ("01", "02"), ("02", "03"), ("03", "04"), ("02", "06")])
def test_programs_differ_in_one_thing(before, after):
    one, other = (next(path for path in PROGRAMS if path.stem.startswith(name)) for name in (before, after))
    lines = [set(path.read_text(encoding="utf-8").partition("def main")[2].splitlines()) for path in (one, other)]
    assert 0 < len(lines[1] - lines[0]) <= 6


def test_a_program_is_measured_and_learns_something_of_its_data(drawn, run_here, tmp_path):
    words = ["--data", drawn, "--batch-size", "8", "--image-size", "32", "--quick", "--workers", "0", "--device", "cpu"]
    file = next(path for path in PROGRAMS if path.stem == "04_cached")
    done = run_here(file, *words, "--logdir", tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "04_cached" / "result.json").read_text())
    assert (result["data"], result["image_size"], result["batch_size"]) == ("drawn JPEGs", 32, 8)
    assert result["batch_bytes"] == 8 * 3 * 32 * 32 * 4 + 8 * 8


@pytest.mark.parametrize("name", ["06_nvjpeg", "07_dali"])
def test_a_program_for_a_gpu_says_so_in_one_line(drawn, run_here, name):
    file = next(path for path in PROGRAMS if path.stem == name)
    assert_refused(run_here(file, "--data", drawn, "--device", "cpu"), "needs an NVIDIA GPU")


def test_images_are_resized_again_if_they_changed_and_else_only_once(data, capsys):
    listing = jpegs.listed(data)
    small = resized.resized_once(listing, 16)
    assert small.labels == listing.labels and decoding.pixels(small.path(5)).shape == (16, 16, 3)
    before = os.stat(small.path(5)).st_mtime_ns
    assert resized.resized_once(listing, 16).files == small.files
    assert os.stat(small.path(5)).st_mtime_ns == before
    capsys.readouterr()
    other = data / "train" / listing.files[5]
    Image.new("RGB", (90, 80), (255, 0, 0)).save(other)
    again = resized.resized_once(jpegs.listed(data), 16)
    assert "resizing 96 JPEGs" in capsys.readouterr().out
    assert decoding.pixels(again.path(5))[8, 8].tolist() == pytest.approx([254, 0, 0], abs=2)


def test_resizing_that_was_cut_off_goes_on_unless_a_jpeg_has_changed_since(data, monkeypatch):
    listing = jpegs.listed(data)
    small, index = replace(listing, root=data / "resized-16px" / "train"), 5

    def cut(function, jobs):
        function(jobs[index])
        raise CutOff

    def cut_off():
        with monkeypatch.context() as patch:
            patch.setattr(resized, "on_all_cores", cut)
            with pytest.raises(CutOff):
                resized.resized_once(listing, 16)
        return os.stat(small.path(index)).st_mtime_ns

    before = cut_off()
    assert not os.path.exists(small.path(0))
    resized.resized_once(listing, 16)
    assert os.path.exists(small.path(0)) and os.stat(small.path(index)).st_mtime_ns == before

    shutil.rmtree(data / "resized-16px")
    cut_off()
    Image.new("RGB", (90, 80), (255, 0, 0)).save(listing.path(index))
    again = resized.resized_once(jpegs.listed(data), 16)
    assert decoding.pixels(again.path(index))[8, 8].tolist() == pytest.approx([254, 0, 0], abs=2)


def test_files_decoded_as_on_a_gpu_are_those_of_the_cpu(drawn):
    listing = jpegs.listed(drawn)
    paths = [listing.path(index) for index in (0, 30, 95)]
    labels, lengths, files = gpu.encoded_batch([(gpu.as_bytes(path), label) for label, path in enumerate(paths)])
    assert labels.tolist() == [0, 1, 2] and len(files) == lengths.sum() == sum(map(os.path.getsize, paths))
    got = gpu.decoded_batch(lengths, files, 32, torch.device("cpu"))
    wanted = torch.stack([jpegs.as_float(32)(path) for path in paths])
    assert ((got - wanted).abs() * 255 * 0.225).max() < 4


def test_files_decoded_by_dali_are_those_of_the_cpu(drawn):
    pytest.importorskip("nvidia.dali", reason="nvidia-dali is not installed")
    listing = jpegs.listed(drawn)
    paths = [listing.path(index) for index in (0, 30, 95)]
    _, lengths, files = gpu.encoded_batch([(gpu.as_bytes(path), 0) for path in paths])
    decode = dali.DaliDecoder(3, 32, torch.device("cpu"), 1)
    for order_of in ([0, 1, 2], [2, 0, 1]):
        lengths_of = lengths[order_of]
        got = decode(lengths_of, torch.cat([files.split(lengths.tolist())[place] for place in order_of]))
        wanted = torch.stack([jpegs.as_float(32)(paths[place]) for place in order_of])
        assert ((got - wanted).abs() * 255 * 0.225).mean() < 2


@pytest.mark.parametrize(
    ("cuda", "needed"),
    [
        ("12.8", "pip install nvidia-dali-cuda120 (this torch is built for CUDA 12.8)"),
        ("13.0", "pip install nvidia-dali-cuda130 (this torch is built for CUDA 13.0)"),
        (None, "a torch for CUDA, not this one"),
    ],
)
def test_dali_is_named_for_the_cuda_version_of_torch(monkeypatch, cuda, needed):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(InputError) as refused:
        dali.DaliDecoder(3, 32, torch.device("cpu"), 1)
    assert needed in str(refused.value)


def test_images_per_second_are_those_after_the_workers_queue(monkeypatch):
    class Loader:
        num_workers, prefetch_factor, asked = 2, 3, 0

        def __iter__(self):
            for _ in range(4):
                self.asked += 1
                yield torch.zeros(10, 3), torch.zeros(10)

    clock = itertools.count(100, 2)
    monkeypatch.setattr(batches.time, "perf_counter", lambda: next(clock))
    loader = Loader()
    assert batches.delivered(loader, 7.0) == 30 / 8  # asked for at 2, 4 and 6 s, stopped at 8 s
    assert loader.asked == 7 + 3


def test_bytes_on_disk_are_those_of_all_files(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x").write_bytes(b"123")
    (tmp_path / "a" / "b" / "y").write_bytes(b"4567")
    assert batches.bytes_on_disk(tmp_path) == 7
    assert batches.bytes_on_disk(tmp_path / "a" / "x") == 3
