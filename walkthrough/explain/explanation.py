"""`walkthrough.read`: a trace explained in Python, for scripts and notebooks."""

import warnings
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walkthrough.advice import analysis_of, ranks_in
from walkthrough.explain.command import traces_at
from walkthrough.explain.text import steps_text, text
from walkthrough.results.errors import InputError
from walkthrough.terminal import micro_sign

if TYPE_CHECKING:
    import pandas

Rows = list[dict[str, Any]]


class Explanation:
    """What `explain` says about a trace: times in µs per typical step, sizes in bytes, shares 0..1.

    `print` shows it on one screen, a notebook as HTML.
    """

    def __init__(self, path: str | Path, max_size: int | None = None) -> None:
        traces = traces_at(Path(path))
        if len(traces) > 1 and len(ranks := ranks_in(path)) > 1:
            raise InputError(
                f"{path} holds traces of {len(ranks)} ranks: name one, or run `walkthrough explain` on them"
            )
        self._analysis = analysis_of(traces[0], max_size)
        for line in self._analysis.trace.warnings:
            warnings.warn(line, stacklevel=3)

    @cached_property
    def _report(self) -> dict[str, Any]:
        from walkthrough.advice.report import page

        return page(self._analysis)

    @property
    def steps(self) -> dict[str, Any]:
        """count, names, mean_us of all steps, typical_us of those without outliers, us of each, outliers, …"""
        return self._report["steps"]

    @property
    def advice(self) -> Rows:
        """What to do, the surest largest gain first: id, step, title, why, estimated_gain, predicted_gain, …"""
        return self._report["advice"]

    @property
    def findings(self) -> Rows:
        """What stands out: id, what, why, us_per_step, do, …"""
        return self._report["findings"]

    @property
    def kernels(self) -> Rows:
        """The kernels by name, the longest time first: name, count, us, share, mean_us, tensor_cores."""
        return self._report["typical"]["kernels"]

    @property
    def operators(self) -> Rows:
        """The operators by name: count, us (self time on the CPU), device_us of the kernels that they launched."""
        return self._report["typical"]["operators"]

    def to_dict(self) -> dict[str, Any]:
        """All of it: the object that `explain --json` prints, with longer lists."""
        return self._report

    def to_pandas(self, table: str = "kernels") -> "pandas.DataFrame":
        """A table as a data frame: "kernels", "operators", "advice", "findings" or "steps".

        Raises InputError for another name, and where pandas is not installed.
        """
        tables = ("kernels", "operators", "advice", "findings", "steps")
        if table not in tables:
            raise InputError(f"no table {table!r}: name one of {', '.join(tables)}")
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        if table == "steps":
            return pandas.DataFrame({"name": self.steps["names"], "us": self.steps["us"]})
        return pandas.DataFrame(getattr(self, table))

    def __str__(self) -> str:
        return micro_sign(text(self._report))

    def __repr__(self) -> str:
        return f"<Explanation of {self._report['device']}, {steps_text(self._report)}>"

    def _repr_html_(self) -> str:
        from walkthrough.explain.html import fragment

        return fragment(self._report)
