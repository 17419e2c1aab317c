"""Spark as an engine of preprocessing: one function over many items, on this machine's cores or on a cluster's.

Workers read the JPEGs by their paths, so pixels never pass through Java. They import this project from its folder,
which all machines have to see, like the data.
"""

import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from labs.shared.extras import imported, stderr_into
from walkthrough.results.environment import ROOT
from walkthrough.results.errors import InputError, printable

MASTERS = r"local(\[[\w*,]+\])?$|yarn$|(spark|k8s)://."
SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


@contextmanager
def spark_engine(master: str) -> Iterator[Callable[[Callable[[Any], Any], Sequence[Any], int], list[Any]]]:
    """An `Engine` of `preprocess`, by Spark; the session ends with it. master: "local[*]", or a cluster's URL.

    Raises InputError where Java or pyspark are not installed, and where Spark does not start or fails.
    """
    sql = imported("pyspark.sql", "scale", "--engine spark")
    home = os.environ.get("JAVA_HOME")
    if not shutil.which("java", path=os.path.join(home, "bin") if home else None):
        raise InputError("--engine spark needs Java 17 or newer: apt-get install default-jre-headless")
    if not re.match(MASTERS, master):
        raise InputError(f"--master {master} is none of Spark's: local[*], local[N], spark://HOST:PORT, yarn, k8s://…")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # no name that a network knows is needed
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")  # of pandas 3, which is not used here
    builder = sql.SparkSession.builder.master(master).appName("preprocess").config("spark.executorEnv.PYTHONPATH", path)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    # Java and its workers print tracebacks of what is told here in a line.
    with tempfile.TemporaryFile() as messages, stderr_into(messages.fileno()):
        session = None
        try:
            session = builder.getOrCreate()
            yield lambda function, items, at_a_time: _mapped(session.sparkContext, function, items, at_a_time)
        except InputError:
            raise
        except Exception as error:  # of the launcher, of py4j, of Java: whatever a worker raised is wrapped
            messages.seek(0)
            lines = messages.read().decode(errors="replace").splitlines()
            said = next((f" ({printable(line, 120)})" for line in lines if "Error" in line), "")
            raise InputError(f"Spark with --master {master} failed: {printable(error, 200)}{said}") from error
        finally:
            with suppress(Exception):  # of py4j, where Java is gone
                session and session.stop()


def _mapped(context: Any, function: Callable[[Any], Any], items: Sequence[Any], at_a_time: int) -> list[Any]:
    return context.parallelize(items, max(1, len(items) // at_a_time)).map(function).collect()
