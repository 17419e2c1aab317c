"""Ranks side by side: what is not said of traces that hold only a sample of their events."""

import pytest

from walkthrough.tensorboard import ranks as board_ranks
from walkthrough.trace.steps import ROLES


def _of(rank, exposed_us, sampled):
    parts = dict.fromkeys(ROLES, 100.0)
    row = {"rank": rank, "step_us": 1000.0, "parts": parts, "has_gpu": True, "communicates": True}
    row |= {"collectives_us": 500.0, "exposed_us": exposed_us, "hidden_us": 500.0 - exposed_us, "ways": "fewer bytes"}
    collectives = {"1": {"ncclDevKernel_AllReduce": [exposed_us]}}
    return f"rank{rank}.json", board_ranks._Report(row, collectives, False, sampled, {"parts_us": {}}, "a verdict")


@pytest.mark.parametrize("sampled", [False, True])
def test_who_waits_is_not_said_of_samples(sampled):
    compared = board_ranks._compared({0: _of(0, 100.0, sampled), 1: _of(1, 400.0, False)})
    waits = [row["wait_us"] for row in compared["ranks"]]
    if sampled:
        assert (waits, compared["straggler"], compared["advice"]) == ([None, None], None, "")
        assert "missing" in compared["no_waits"]
    else:
        assert (compared["straggler"], compared["no_waits"]) == (0, "")
        assert waits[1] > waits[0] and "rank 0" in compared["advice"]
