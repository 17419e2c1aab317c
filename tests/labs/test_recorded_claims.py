"""The claims of each recorded lab follow from its recorded tables, whatever the machine of this test."""

from importlib import import_module

import pytest
from support import ROOT

from walkthrough.compare.study import interval, read

RECORDED = sorted((ROOT / "logs/reference/labs").glob("*/study.json"))
pytestmark = pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)


def claims_of(path):
    """(The recorded study, its lab's function of tables and whether they are of a GPU)."""
    return read(path), import_module(f"labs.{path.parent.name}.study").claims


def test_recorded_claims_follow_from_the_recorded_tables(path):
    recorded, claims = claims_of(path)
    assert claims(recorded.tables, recorded.on_gpu) == recorded.claims
    ids = [claim.id for claim in recorded.claims]
    assert len(set(ids)) == len(ids)
    on_gpu = {claim.id: claim for claim in claims(recorded.tables, True)}
    for claim in recorded.claims:
        assert (claim.needs is None) == (claim.holds is not None), claim.id
        if "GPU" not in (claim.needs or ""):  # what a CPU could contradict is decided as on a GPU
            assert on_gpu.pop(claim.id).holds == claim.holds, claim.id


def test_claims_are_decided_by_the_intervals_of_the_tables(path):
    """With intervals so wide that they hold any limit no claim that has its interval from a table is decided."""
    recorded, claims = claims_of(path)
    low, high = {"ratio": 1e-9, "mean": -1e9}, 1e9

    def wide(cell):
        return {**cell, "low": low[next(iter(cell))], "high": high} if interval(cell) else cell

    tables = {
        name: [{header: wide(cell) for header, cell in row.items()} for row in rows]
        for name, rows in recorded.tables.items()
    }
    pairs = [*zip(recorded.claims, claims(tables, recorded.on_gpu), strict=True)]
    changed = [(before, after) for before, after in pairs if (before.low, before.high) != (after.low, after.high)]
    assert changed  # speedrun's are nearly all of its races, whatever the tables say
    assert {after.holds for _, after in changed} == {None}
