"""The claims of each recorded lab follow from its recorded tables, whatever the machine of this test."""

from importlib import import_module

import pytest
from support import ROOT

from walkthrough.compare.study import read

RECORDED = sorted((ROOT / "logs/reference/labs").glob("*/study.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_recorded_claims_follow_from_the_recorded_tables(path):
    recorded = read(path)
    claims = getattr(import_module(f"labs.{path.parent.name}.study"), "claims", None)
    if claims is None:
        pytest.skip("its study has no function of its claims yet")
    assert [claim for claim in claims(recorded.tables, recorded.on_gpu)] == recorded.claims
    for claim in recorded.claims:
        assert (claim.needs is None) == (claim.holds is not None), claim.id
