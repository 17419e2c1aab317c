"""The claims of each recorded lab follow from its recorded tables, whatever the machine of this test."""

from importlib import import_module

import pytest
from support import ROOT

from walkthrough.compare.study import read

RECORDED = sorted((ROOT / "logs/reference/labs").glob("*/study.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_recorded_claims_follow_from_the_recorded_tables(path):
    recorded, claims = read(path), import_module(f"labs.{path.parent.name}.study").claims
    assert claims(recorded.tables, recorded.on_gpu) == recorded.claims
    ids = [claim.id for claim in recorded.claims]
    assert len(set(ids)) == len(ids)
    on_gpu = {claim.id: claim for claim in claims(recorded.tables, True)}
    for claim in recorded.claims:
        assert (claim.needs is None) == (claim.holds is not None), claim.id
        if "GPU" not in (claim.needs or ""):  # what a CPU could contradict is decided as on a GPU
            assert on_gpu.pop(claim.id).holds == claim.holds, claim.id
