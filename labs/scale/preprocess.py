"""Offline preprocessing: JPEGs are decoded and resized once, for training and for validation.

    python labs/scale/preprocess.py --data DIR --to shards [--size 64] [--engine spark] [--master local[*]]

makes DIR/shards-64px with train/ and val/; --to resized a folder of small JPEGs, --to cached decoded images in one file
that is mapped into memory. `train.py --data DIR/shards-64px` reads it, and so does `--data DIR --pipeline shards
--image-size 64`; without a size, that makes shards of its own where there is a GPU, as its default is 224 px there.
Spark works on all cores of this machine, or on a cluster whose machines see the folders under the same paths; the other
engine, processes of this machine, makes the same files. What is there is not made again: after a cut the same command
goes on. JPEGs that cannot be decoded are named, counted and left out.

DIR may also hold train-*.parquet and validation-*.parquet, with columns image {bytes, path} and label, as the Hugging
Face hub stores ImageNet. They need pyarrow, and are resized first: shards of them are compressed a second time.
"""

import io
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from labs.scale.data import (
    INDEX,
    UNREADABLE,
    Jpegs,
    as_uint8,
    class_names,
    image_folder,
    on_all_cores,
    parquet_files,
    small_jpeg,
    source_of,
    write_beside,
)
from labs.scale.shards import dealt, write_shard
from labs.shared.extras import imported, stderr_into
from walkthrough.results import result
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, OneLineParser, folder, printable, whole_number

import numpy as np
from filelock import FileLock

KINDS = ("resized", "cached", "shards")
PARTS = ("train", "val")
NAMED = 10  # corrupt files, at most; the index has all of them
CORRUPT_FILES, CORRUPT_SHARE = 10, 0.01  # left out at most: so many, or that share of the files, whichever is more
FILES = 64  # JPEGs that are resized in one job, and rows of a Parquet file that are in memory
SPARK = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}

Engine = Callable[[Callable[[Any], Any], Sequence[Any], int], list[Any]]  # as `on_all_cores`


@contextmanager
def spark_engine(master: str) -> Iterator[Engine]:
    """Spark as an `Engine`; its session ends with it. master: "local[*]", or a cluster's URL.

    Workers read the JPEGs by their paths, so pixels never pass through Java; they import this project from its folder.
    Raises InputError where Java or pyspark are not installed, and where Spark does not start or fails.
    """
    sql = imported("pyspark.sql", "scale", "--engine spark")
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java", path=os.path.join(home, "bin") if home else None):
        raise InputError("--engine spark needs Java 17 or newer: apt-get install default-jre-headless")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no name that a network knows is needed
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # of pandas 3, which is not used here
    settings = {**SPARK, "spark.executorEnv.PYTHONPATH": path}
    # Java and its workers print tracebacks of what is told here in a line.
    with tempfile.TemporaryFile() as messages, stderr_into(messages.fileno()):
        session = None
        try:
            session = sql.SparkSession.builder.master(master).appName("preprocess").config(map=settings).getOrCreate()
            spread = session.sparkContext.parallelize
            yield (
                lambda function, items, at_a_time: (
                    spread(items, max(1, len(items) // at_a_time)).map(function).collect()
                )
            )
        except InputError:
            raise
        except Exception as error:  # of the launcher, of py4j, of Java: whatever a worker raised is wrapped
            messages.seek(0)
            lines = messages.read().decode(errors="replace").splitlines()
            said = next((f" ({printable(line, 120)})" for line in lines if "Error" in line), "")
            raise InputError(f"Spark with --master {master} failed: {printable(error, 200)}{said}") from error
        finally:
            with suppress(Exception):  # of py4j, where Java is gone
                if session:
                    session.stop()


def kind_and_size(data: Path) -> tuple[str | None, int | None]:
    """(One of `KINDS`, px) of a folder that was made by `prepared`; (None, None) of a folder of JPEGs."""
    index = result.read_json(data / INDEX) if (data / INDEX).exists() else {}
    return index.get("kind"), index.get("size")


def prepared(
    data: Path, kind: str, size: int, engine: Engine = on_all_cores, out: Path | None = None, classes: int | None = None
) -> Path:  # fmt: skip
    """The folder of prepared images that --data means, made at the first time; both parts.

    data: a folder of JPEGs or Parquet files, or one that is prepared, in which images may have another size. kind: one
    of `KINDS`. out: DIR/shards-64px if None. engine: what does the work. classes: the first so many alone, where there
    are more; then out is DIR/shards-64px-100-classes. Several processes may call this: one works, the others wait.
    Raises InputError for a folder that cannot be read or written, and where too many JPEGs are corrupt.
    """
    there, _ = kind_and_size(data)
    if there not in (None, kind):
        raise InputError(f"{data} holds {there} images, not {kind}: name the folder of JPEGs with --data")
    if there:
        return data
    files = parquet_files(data)
    if classes and not files and classes >= len(class_names(data)):
        classes = None
    out = out or data / (f"{kind}-{size}px" + (f"-{classes}-classes" if classes else ""))
    if out.resolve() == data.resolve():
        raise InputError(f"{out} holds the JPEGs themselves: name another folder with --out")
    with result.writing(out):
        out.mkdir(parents=True, exist_ok=True)
        with FileLock(out / ".lock"):
            if not (out / INDEX).exists():
                source, own = data, out / ".resized"
                if kind == "cached" or (files and kind == "shards"):  # of a folder of small JPEGs, theirs or its own
                    source = data / f"resized-{size}px"
                    if not (source / INDEX).exists():
                        source = prepared(data, "resized", size, engine, own, classes)
                print(f"preparing {data} as {kind}, {size} px, in {out}, once", flush=True)
                _made(source, kind, out, size, engine, classes)
                if source == own:
                    shutil.rmtree(own)
    if (there := kind_and_size(out)) != (kind, size):
        raise InputError("{} is {} of {} px, not {} of {}: name another folder".format(out, *there, kind, size))
    return out


def _made(data: Path, kind: str, out: Path, size: int, engine: Engine, classes: int | None) -> None:
    if files := parquet_files(data):
        rows = {part: partial(_resize_rows, out=out / part, size=size, classes=classes) for part in PARTS}
        parts = {part: _resized(resize, files[part], engine) for part, resize in rows.items()}
        source, names = source_of(data), class_names(out)
    else:
        make = {"resized": _resized_files, "cached": _cached, "shards": _shards}[kind]
        sets = {part: Jpegs(data, part, as_uint8(), classes) for part in PARTS}
        parts = {part: make(images, out / part, size, engine) for part, images in sets.items()}
        source, names = sets["train"].source, sets["train"].classes
    for part, of in parts.items():
        _tell(out / part, of["corrupt"], of["images"] + len(of["corrupt"]))
    result.write_json(out / INDEX, {"kind": kind, "size": size, "source": source, "classes": names, "parts": parts})


def _resized(
    resize: Callable[[Any], tuple[int, dict[str, str]]], jobs: Sequence[Any], engine: Engine
) -> dict[str, Any]:
    """A folder of small JPEGs. resize: `_write_small` of a job."""
    answers = engine(resize, jobs, 1)
    corrupt = {name: why for _, those in answers for name, why in those.items()}
    return {"images": sum(count for count, _ in answers) - len(corrupt), "corrupt": corrupt}


def _write_small(samples: Iterable[tuple[str, Any, Path]], size: int) -> tuple[int, dict[str, str]]:
    """Write small JPEGs that are not there yet: (how many samples, those that cannot be decoded, and why).

    samples: of each its name, its file, and the file that it becomes.
    """
    count, corrupt = 0, {}
    for name, file, target in samples:
        count += 1
        if not target.exists():
            try:
                small = small_jpeg(file, size)
            except UNREADABLE as error:
                corrupt[name] = printable(error, 120)
                continue
            target.parent.mkdir(exist_ok=True)
            write_beside(target, small)
    return count, corrupt


def _resize_rows(file: Path, out: Path, size: int, classes: int | None) -> tuple[int, dict[str, str]]:
    """Of a Parquet file; its classes are labels, such as 0007."""
    out.mkdir(exist_ok=True)
    rows = ((at, image, label) for at, (image, label) in enumerate(_rows(file)) if not classes or label < classes)
    samples = (
        (f"{file}, row {at}", io.BytesIO(image), out / f"{label:04d}" / f"{file.stem}-{at:06d}.jpg")
        for at, image, label in rows
    )
    return _write_small(samples, size)


def _rows(file: Path) -> Iterator[tuple[bytes, int]]:
    """(Image file, label) of each row. Raises InputError for a file that is none of that format."""
    parquet = imported("pyarrow.parquet", "scale", "reading Parquet files")
    try:
        for batch in parquet.ParquetFile(file).iter_batches(FILES, columns=["image", "label"]):
            for row in batch.to_pylist():
                yield row["image"]["bytes"], row["label"]
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise InputError(
            f"{file} is no Parquet file with the columns image (bytes, path) and label: {printable(error, 80)}"
        ) from error


def _resized_files(images: Jpegs, out: Path, size: int, engine: Engine) -> dict[str, Any]:
    """A folder of small JPEGs, with the names of the large ones."""
    for name in images.classes:  # also one whose files are all corrupt: it stays a label
        (out / name).mkdir(parents=True, exist_ok=True)
    jobs = [(path, path, out / images.classes[label] / Path(path).name) for path, label in images.samples]
    return _resized(
        partial(_write_small, size=size), [jobs[at : at + FILES] for at in range(0, len(jobs), FILES)], engine
    )


def _shards(images: Jpegs, out: Path, size: int, engine: Engine) -> dict[str, Any]:
    """Tar files of small JPEGs that are dealt into them at random."""
    out.mkdir(exist_ok=True)
    jobs = [
        (
            str(out.resolve() / f"{number:06d}.tar"),
            size,
            [(f"{at:08d}", str(Path(images.samples[at][0]).resolve()), images.samples[at][1]) for at in own.tolist()],
        )
        for number, own in enumerate(dealt(len(images)))
    ]
    shards = engine(write_shard, jobs, 1)
    corrupt = {path: why for shard in shards for path, why in shard.pop("corrupt").items()}
    return {"images": sum(shard["nsamples"] for shard in shards), "corrupt": corrupt, "shardlist": shards}


def _cached(images: Jpegs, out: Path, size: int, _: Engine) -> dict[str, Any]:
    """All images in one file, decoded; their labels in another. images: resized ones."""
    beside = out.with_name(f".{out.name}.partial.npy")
    array = np.lib.format.open_memmap(beside, "w+", np.uint8, (len(images), 3, size, size))
    for number in range(len(images)):
        array[number] = images[number][0].numpy()
    array.flush()
    np.save(out.with_name(f"{out.name}-labels.npy"), np.array(images.targets))
    beside.replace(out.with_suffix(".npy"))
    return {"images": len(images), "corrupt": {}}


def _tell(part: Path, corrupt: dict[str, str], of: int) -> None:
    """Name what is corrupt. Raises InputError where it is too much."""
    limit = max(CORRUPT_FILES, int(CORRUPT_SHARE * of))
    if len(corrupt) > limit or len(corrupt) == of:
        name, why = next(iter(corrupt.items()))
        raise InputError(
            f"{len(corrupt)} of {of} JPEGs for {part} cannot be decoded, such as {name} ({why}): more than {limit}, "
            f"which are left out; bring them again, and remove {part.parent}"
        )
    for name, why in list(corrupt.items())[:NAMED]:
        print(f"corrupt JPEG, left out: {name}: {why}")


def bytes_on_disk(path: Path, pattern: str) -> int:
    """Bytes of files in a folder, such as "train/**/*": their lengths, not the blocks that they fill."""
    return sum(file.stat().st_size for file in path.glob(pattern) if file.is_file())


def main() -> None:
    parser = OneLineParser(description=__doc__)
    add = parser.add_argument
    data = "folder of train/CLASS/*.jpg and val/CLASS/*.jpg, or of Parquet files (without one: pictures that are drawn)"
    add("--data", type=folder, default=ROOT / "data", metavar="DIR", help=data)
    add("--to", choices=KINDS, default="shards", help="default: %(default)s")
    add("--out", type=folder, metavar="DIR", help="folder that is made (default: DIR/shards-64px)")
    add("--size", type=whole_number(16, 1024), default=64, metavar="PX", help="of the images (default: %(default)s)")
    add("--engine", choices=("spark", "processes"), default="processes", help="default: %(default)s")
    master = "Spark's: local[N], or a cluster's, such as spark://HOST:7077 (default: %(default)s)"
    add("--master", default="local[*]", metavar="URL", help=master)
    args = parser.parse_args()
    data = image_folder(args.data)
    with spark_engine(args.master) if args.engine == "spark" else nullcontext(on_all_cores) as engine:
        out = prepared(data, args.to, args.size, engine, args.out)
    for part, of in result.read_json(out / INDEX)["parts"].items():
        shards = f" in {len(of['shardlist'])} shards" if "shardlist" in of else ""
        size = bytes_on_disk(out, f"{part}*.npy" if args.to == "cached" else f"{part}/**/*.*")
        left_out = f", {len(of['corrupt'])} corrupt JPEGs left out" if of["corrupt"] else ""
        print(f"{out / part}: {of['images']} images of {args.size} px{shards}, {size / 1e6:.1f} MB{left_out}")


if __name__ == "__main__":
    main()
