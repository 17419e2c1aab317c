"""labs/scale: its JPEGs, what is prepared of them, and the input pipelines, by known answers."""

import importlib.util
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, assert_refused, run_program

from common.program import captured
from labs.scale import data as jpegs
from labs.scale import pipelines, shards
from labs.scale.data import Cached, Jpegs, as_float, as_uint8
from labs.scale.pipelines import Pipeline
from labs.scale.preprocess import KINDS, prepared
from walkthrough.results.errors import InputError

PROGRAMS = sorted((ROOT / "labs" / "scale").glob("[0-9][0-9]_*.py"))
PREPROCESS = ROOT / "labs" / "scale" / "preprocess.py"
OF_255 = 255 * 0.225  # a normalised value's unit, about
CPU = torch.device("cpu")
needs_spark = pytest.mark.skipif(
    not (shutil.which("java") and importlib.util.find_spec("pyspark")), reason="Spark needs Java and pyspark"
)
pytestmark = [
    pytest.mark.xdist_group("scale data"),  # images are drawn and prepared once
    pytest.mark.skipif(importlib.util.find_spec("webdataset") is None, reason="webdataset is not installed"),
    # webdataset leaves files to the garbage collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture
def data(drawn, tmp_path):
    """A copy of `drawn`, to be changed."""
    shutil.copytree(drawn, tmp_path / "data", ignore=shutil.ignore_patterns("*px"))
    return tmp_path / "data"


def test_labels_are_the_sorted_class_folders_of_train_for_both_parts(data):
    shutil.rmtree(data / "val" / "class_001")
    train, val = (Jpegs(data, part, str) for part in ("train", "val"))
    assert train.classes == val.classes == [f"class_00{label}" for label in range(4)]
    assert train[24] == (str(data / "train" / "class_001" / "000001.jpg"), 1)
    assert {label for _, label in val} == {0, 2, 3}


def test_a_folder_without_jpegs_and_a_program_without_its_gpu_are_refused_in_one_line(drawn, tmp_path, run_here):
    assert_refused(run_here(PROGRAMS[-1], "--data", drawn, "--device", "cpu"), "needs an NVIDIA GPU")
    assert_refused(run_here(PROGRAMS[0], "--data", tmp_path, "--device", "cpu"), str(tmp_path))


def test_a_shard_is_a_tar_file_of_small_jpegs_and_labels_dealt_once_and_evenly(drawn, prepared_32px):
    large, folder = Jpegs(drawn, "train", as_uint8(32)), prepared_32px["shards"]
    of_train = json.loads((folder / jpegs.INDEX).read_text())["parts"]["train"]
    assert [shard["nsamples"] for shard in of_train["shardlist"]] == [12] * 8
    with tarfile.open(folder / "train" / "000000.tar") as tar:
        names = tar.getnames()
        dealt = [int(name.split(".")[0]) for name in names[::2]]
        assert dealt == shards.dealt(96)[0].tolist()
        labels = [int(tar.extractfile(name).read()) for name in names[::2]]  # .cls
        assert labels == [large.targets[number] for number in dealt]
        image = jpegs.pixels(io.BytesIO(tar.extractfile(names[1]).read())).astype(int)
    assert abs(image - jpegs.pixels(large.samples[dealt[0]][0], 32).astype(int)).mean() < 6


@given(count=st.integers(1, 20_000))
def test_every_image_is_dealt_into_one_shard_and_none_is_empty(count):
    of = shards.dealt(count)
    assert sorted(np.concatenate(of)) == list(range(count)) and 0 < len(of) <= count
    assert max(map(len, of)) <= shards.PER_SHARD


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_cut_off_goes_on_and_what_is_there_is_not_made_again(data, kind):
    out = prepared(data, kind, 16)
    files = [path for path in out.rglob("*.*") if path.suffix in (".jpg", ".tar", ".npy") and "labels" not in path.name]
    contents = {path: path.read_bytes() for path in files}
    (out / jpegs.INDEX).unlink()
    files[0].unlink()
    before = os.stat(files[1]).st_mtime_ns
    assert prepared(data, kind, 16) == out == prepared(out, kind, 999)  # by itself, of its own size
    assert {path: path.read_bytes() for path in files} == contents
    assert kind == "cached" or os.stat(files[1]).st_mtime_ns == before
    with pytest.raises(InputError, match="name another folder"):
        prepared(data, kind, 32, out=out)


def test_corrupt_jpegs_are_named_counted_and_left_out(data, run_here):
    broken = data / "train" / "class_002" / "000006.jpg"
    broken.write_bytes(b"")
    words = ["--data", data, "--size", "32", "--to"]
    assert f"corrupt JPEG, left out: {broken}: " in run_here(PREPROCESS, *words, "shards").stdout
    pipeline = Pipeline(data / "shards-32px", "shards", 32, 5, CPU)
    assert (pipeline.images, sum(len(labels) for _, labels in pipeline.training(1, 19))) == (95, 95)
    for path in sorted((data / "train" / "class_003").iterdir())[:10]:
        path.write_bytes(b"")
    assert_refused(run_here(PREPROCESS, *words, "resized"), "11 of 96 JPEGs", "more than 10")


@pytest.fixture
def hub(drawn, tmp_path):
    """`drawn` as the Hugging Face hub stores ImageNet: data/train-00000-of-00002.parquet …"""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = importlib.import_module("pyarrow.parquet")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for part, name in (("train", "train"), ("val", "validation")):
        samples = Jpegs(drawn, part, str).samples
        for number, own in enumerate((samples[::2], samples[1::2])):
            images = [{"bytes": Path(path).read_bytes(), "path": None} for path, _ in own]
            file = tmp_path / "hub" / "data" / f"{name}-{number:05d}-of-00002.parquet"
            parquet.write_table(arrow.table({"image": images, "label": [label for _, label in own]}), file)
    return tmp_path / "hub"


def test_parquet_files_of_the_hub_are_prepared_and_trained_on_and_broken_ones_are_one_line(hub, drawn, run_here):
    assert pipelines.pipeline_of(hub, None) == "shards"
    pipeline = Pipeline(hub, "shards", 32, 8, CPU)
    assert (pipeline.images, pipeline.classes) == (96, ["0000", "0001", "0002", "0003"])
    assert sorted(label for _, label in pipeline.validation_set) == sorted(Jpegs(drawn, "val", str).targets)
    sets = [Jpegs(of, "train", as_uint8(32)) for of in (prepared(hub, "resized", 32), drawn)]
    means = [sorted((of[at][1], of[at][0].float().mean().item()) for at in range(96)) for of in sets]
    assert torch.allclose(*map(torch.tensor, means), atol=1)  # each image has its label
    few = Cached(prepared(hub, "cached", 32, classes=3), "train")
    assert (len(few), few.images.shape[0], set(few.labels)) == (72, 72, {0, 1, 2})
    (hub / "data" / "train-00001-of-00002.parquet").write_bytes(b"no table")
    assert_refused(run_here(PREPROCESS, "--data", hub), "train-00001-of-00002.parquet is no Parquet file")


@pytest.mark.spark
@pytest.mark.thorough
@needs_spark
def test_spark_makes_the_same_shards_as_processes(data, tmp_path):
    (data / "train" / "class_001" / "000001.jpg").write_bytes(b"")
    words = ["--data", data, "--size", "32", "--engine", "spark"]
    done = run_program(PREPROCESS, *words, "--out", tmp_path / "spark", "--master", "local[1]")
    assert "class_001/000001.jpg" in done.stdout, done.stderr
    prepared(data, "shards", 32, out=tmp_path / "processes")
    of_processes = sorted((tmp_path / "processes").rglob("*.*"))
    for path in of_processes:
        assert path.read_bytes() == (tmp_path / "spark" / path.relative_to(tmp_path / "processes")).read_bytes()


def test_all_programs_yield_the_same_images(drawn, prepared_32px, tmp_path):
    words = ["--data", drawn, "--batch-size", 6, "--image-size", 32, "--workers", 0, "--device", "cpu"]
    means = {}
    for file in PROGRAMS[:-2]:  # the last two need a GPU
        loader = captured(file, [str(word) for word in [*words, "--logdir", tmp_path]]).loader
        images, labels = (torch.cat(parts) for parts in zip(*loader, strict=True))
        assert images.shape == (96, 3, 32, 32) and len(loader) == 16
        assert sorted(labels.tolist()) == sorted(list(range(4)) * 24) != labels.tolist()
        means[file.stem] = images.flatten(1).sort(0).values  # whatever their order
    for name in ("01_workers", "02_batched"):
        assert torch.allclose(means[name], means["00_decode_each"])
    for name in ("04_cached", "05_shards"):
        assert torch.allclose(means[name], means["03_resized_once"])  # compressed a second time
    assert 0 < (means["03_resized_once"] - means["00_decode_each"]).abs().mean() * OF_255 < 6


@pytest.mark.parametrize("name", ["jpeg", *KINDS])
def test_a_pipeline_gives_each_image_once_cropped_by_its_seed_and_epoch(drawn, prepared_32px, name):
    def epoch(pipeline, number):
        torch.manual_seed(number)
        return [torch.cat(parts) for parts in zip(*pipeline.training(number, 16), strict=True)]

    pipeline = Pipeline(drawn, name, 32, 6, CPU, seed=3)
    first, again, second = epoch(pipeline, 1), epoch(Pipeline(drawn, name, 32, 6, CPU, seed=3), 1), epoch(pipeline, 2)
    assert sorted(first[1].tolist()) == sorted(list(range(4)) * 24)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    other = epoch(Pipeline(drawn, name, 32, 6, CPU, seed=4), 1)  # and not the second of the seed before
    assert first[1].tolist() != second[1].tolist() != other[1].tolist() != first[1].tolist()
    images, _ = (torch.cat(parts) for parts in zip(*pipeline.validation(), strict=True))
    whole = torch.stack([as_float(32)(path) for path, _ in Jpegs(drawn, "val", str).samples])
    sums, others = (of.flatten(1).mean(1).sort().values for of in (images, whole))
    assert torch.allclose(sums, others, atol=0.1)  # not cropped
    assert pipelines.pipeline_of(prepared_32px.get(name, drawn), None) == name


def test_processes_share_the_shards_and_begin_them_again_where_others_have_more(drawn, prepared_32px, monkeypatch):
    def pipeline(rank, processes):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(processes))
        return Pipeline(drawn, "shards", 32, 4, CPU, rank=rank, processes=processes)

    def labels(batches):
        return [label for _, batch in batches for label in batch.tolist()]

    one, other = (labels(pipeline(rank, 2).training(1, 12)) for rank in range(2))
    assert len(one) == len(other) == 48 and sorted(one + other) == sorted(list(range(4)) * 24)
    one, other = (labels(pipeline(rank, 2).validation()) for rank in range(2))
    assert len(one + other) == 19 and min(len(one), len(other)) > 0
    assert len(labels(pipeline(2, 3).training(1, 8))) == 32 > 2 * 12  # it has two shards of eight
    with pytest.raises(InputError, match="8 shards are too few for 9 processes"):
        Pipeline(drawn, "shards", 32, 4, CPU, processes=9)


def test_a_random_crop_is_a_part_of_the_image_at_times_mirrored(monkeypatch):
    ramp = torch.arange(16.0).expand(200, 3, 16, 16)  # bright to the right
    monkeypatch.setattr(jpegs, "CROP_AREA", (1.0, 1.0))
    whole = jpegs.random_crops(ramp, 16)
    mirrored = whole[:, 0, 0, 0] > 7
    assert 60 < mirrored.sum() < 140
    assert torch.allclose(torch.where(mirrored[:, None, None, None], whole.flip(3), whole), ramp, atol=1e-3)
    monkeypatch.setattr(jpegs, "CROP_AREA", (0.25, 0.25))
    parts = jpegs.random_crops(ramp, 8)[:, 0]
    assert torch.allclose((parts[:, :, -1] - parts[:, :, 0]).abs(), torch.full((200, 8), 7.0), atol=1e-3)
    assert parts.min() < 1 and parts.max() > 14  # anywhere


def test_nvjpegs_pipeline_gives_what_the_others_do(drawn, monkeypatch):
    monkeypatch.setattr(pipelines, "needs_cuda", lambda *_: None)  # it decodes on a CPU, too
    own, jpeg = (Pipeline(drawn, of, 32, 8, CPU) for of in ("nvjpeg", "jpeg"))
    (crops, labels), (images, others) = next(own.training(1, 1)), next(own.validation())
    wanted, theirs = next(jpeg.validation())
    assert crops.shape == (8, 3, 32, 32) and torch.equal(labels, next(jpeg.training(1, 1))[1])
    assert torch.equal(others, theirs) and ((images - wanted).abs() * OF_255).mean() < 2
