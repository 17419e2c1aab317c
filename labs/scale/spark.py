"""Spark as an engine: one function over many items, on this machine's cores or on a cluster's.

An item and its answer are texts, in a table of two columns; `mapInArrow` hands a worker its rows as Arrow batches,
without converting them to pandas, and the worker reads the JPEGs by their paths. So pixels never pass through the JVM.
"""

import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from labs.scale.jpegs import PROCESS_LOST, Engine
from labs.shared.extras import imported, stderr_into
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, printable

MASTERS = r"local(\[[\w*,]+\])?$|yarn$|(spark|k8s)://."
WORKERS_NEED = ("decoding.py", "packing.py")  # of this lab
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",  # answers of so many items wait for each other
}
LOST = ("Python worker exited unexpectedly", "ExecutorLostFailure")


@contextmanager
def spark_engine(master: str) -> Iterator[Engine]:
    """An `Engine` by Spark; the session ends with it. master: "local[*]", "local[N]", or a cluster's URL.

    Raises InputError where Java, pyspark or pyarrow are not installed, and where Spark does not start or fails.
    """
    sql = imported("pyspark.sql", "scale", "--engine spark")
    imported("pyarrow", "scale", "--engine spark")
    if not _java():
        raise InputError(
            "--engine spark needs Java 17 or newer: apt-get install default-jre-headless, or set JAVA_HOME; "
            "--engine processes does without"
        )
    if not re.match(MASTERS, master):
        raise InputError(f"--master {master} is none of Spark's: local[*], local[N], spark://HOST:PORT, yarn, k8s://…")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no name that a network knows is needed
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # of pandas 3, which is not used here
    _silence_py4j()
    builder = sql.SparkSession.builder.master(master).appName("preprocess")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as messages,
        stderr_into(messages.fileno()),  # that of the JVM, its workers and pyspark's threads
    ):
        try:
            session = builder.getOrCreate()
        except Exception as error:  # of the launcher, of py4j, of the JVM
            reason = printable(error, 200) + _of_java(messages)
            raise InputError(f"Spark did not start with --master {master}: {reason}") from error
        try:
            session.sparkContext.addPyFile(str(_code(Path(folder))))
            yield lambda function, items, at_a_time: _answers(session, function, items, at_a_time)
        finally:
            with suppress(Exception):  # of py4j, where the JVM is gone
                session.stop()


def _answers(session: Any, function: Callable[[str], Any], items: Sequence[str], at_a_time: int) -> list[Any]:
    """[function(item) for each item], texts or None, by Spark's workers."""

    def answered(batches: Any) -> Any:
        import pyarrow

        for batch in batches:
            answers = [function(item) for item in batch.column("item").to_pylist()]
            columns = [batch.column("number"), pyarrow.array(answers, pyarrow.string())]
            yield pyarrow.RecordBatch.from_arrays(columns, names=["number", "answer"])

    try:
        table = session.createDataFrame(list(enumerate(items)), "number long, item string")
        parts = table.repartition(-(-len(items) // at_a_time))
        rows = parts.mapInArrow(answered, "number long, answer string").collect()
    except Exception as error:  # of py4j, which wraps what a worker raised
        if isinstance(error, ConnectionError) or any(text in str(error) for text in LOST):  # to the JVM; in it
            raise InputError(f"of Spark, {PROCESS_LOST}") from error
        raise InputError(f"Spark could not finish: {printable(error, 200)}") from error
    return [row["answer"] for row in sorted(rows, key=lambda row: row["number"])]


def _silence_py4j() -> None:
    """Keep py4j, which logs as itself and as the root, from printing tracebacks of what is told in a line."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(_not_of_py4j)


def _not_of_py4j(message: logging.LogRecord) -> bool:
    return "py4j" not in Path(message.pathname).parts


def _of_java(messages: IO[bytes]) -> str:
    """The first error that a JVM wrote, "" if none."""
    messages.seek(0)
    lines = messages.read().decode(errors="replace").splitlines()
    return next((f" ({printable(line, 120)})" for line in lines if "Error" in line), "")


def _java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return bool(shutil.which("java", path=os.path.join(home, "bin") if home else None))


def _code(folder: Path) -> Path:
    """A zip file of the modules that Spark's workers import."""
    path = folder / "scale_workers.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for parent in ("labs/", "labs/scale/"):
            archive.writestr(parent, "")
        for name in WORKERS_NEED:
            archive.write(ROOT / "labs" / "scale" / name, f"labs/scale/{name}")
    return path
