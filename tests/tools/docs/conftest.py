"""Fixtures of the course's tests: the records, read and drawn once, and one of a made-up GPU."""

import gzip
import json
import shutil

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from support import CPU_RECORD, NAMES, ROOT, make_result, write_run

from tools.docs import recorded
from tools.docs.recorded import Course
from walkthrough.results import result as record

SPECIMEN = ROOT / "docs" / "specimen" / "made_up_gpu" / "specimen.pt.trace.json"
GPU = "made-up-gpu"


@pytest.fixture(scope="session")
def course():
    """What the pages show: this project's records. For reading only."""
    return Course(recorded.records())


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The course as a site, built once: its folder."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


@pytest.fixture(scope="session")
def gpu_records(tmp_path_factory):
    """A folder of records: this project's, and a made-up GPU whose traces are the specimen. For reading only."""
    folder = tmp_path_factory.mktemp("records")
    shutil.copytree(recorded.RECORDS / CPU_RECORD, folder / CPU_RECORD)
    trace = gzip.compress(SPECIMEN.read_bytes(), compresslevel=1)
    for number, step in enumerate(NAMES):
        speeds = [100.0 * (number + 1) + window for window in range(5)]
        result = make_result(step, windows=speeds, device="made-up GPU", trace=f"{step}.1.pt.trace.json.gz")
        run = write_run(folder / GPU, result)
        (run / result.trace).write_bytes(trace)
        (run / "runs").mkdir()
        record.write_result(run / "runs" / "1.json", result)
    header = json.loads((folder / CPU_RECORD / "record.json").read_text(encoding="utf-8"))
    record.write_json(folder / GPU / "record.json", header)
    return folder


@pytest.fixture(scope="session")
def gpu_course(gpu_records):
    """What the pages show once a GPU is recorded. For reading only."""
    return Course(recorded.records(gpu_records))


@pytest.fixture
def own_gpu_records(gpu_records, tmp_path):
    """A copy of `gpu_records` that a test may change."""
    return shutil.copytree(gpu_records, tmp_path / "records")
