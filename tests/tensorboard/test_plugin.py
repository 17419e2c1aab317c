"""The plugin by itself: which Host headers are answered; what is not said of ranks whose traces are samples."""

import pytest

from walkthrough.tensorboard import plugin
from walkthrough.tensorboard.plugin import guarded, host_of, is_allowed
from walkthrough.trace.steps import ROLES


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost:6006", "localhost"),
        ("LocalHost.", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]:6006", "::1"),
        ("[::1", "::1"),
        ("a.example:80", "a.example"),
        ("", ""),
    ],
)
def test_the_host_of_a_header(header, host):
    assert host_of(header) == host


@pytest.mark.parametrize("header", ["localhost:6006", "127.0.0.1:6006", "127.8.9.1", "[::1]:6006", "LOCALHOST", ""])
@pytest.mark.parametrize("served", [None, "localhost", "127.0.0.1", "::1", "0.0.0.0", "gpu-box"])
def test_this_machine_is_always_answered(header, served):
    assert is_allowed(header, served, False)


@pytest.mark.parametrize(
    "header",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]", "127.1@evil", "*"],
)
def test_other_names_are_refused_where_only_this_machine_is_served(header):
    for served in (None, "localhost", "127.0.0.1", "::1"):
        assert not is_allowed(header, served, False)
        assert is_allowed(header, served, True)  # --bind_all
    assert is_allowed(header, "0.0.0.0", False)
    assert is_allowed(header, "gpu-box", False)


def test_names_of_the_users_own():
    assert is_allowed("hub.example:443", None, False, ["other", " Hub.example "])
    assert is_allowed("hub.example", None, False, ["*"])
    assert not is_allowed("hub.example", None, False, [""])


def test_a_refusal_holds_no_more_of_the_name_than_a_name_may_have(monkeypatch):
    monkeypatch.delenv("WALKTHROUGH_HOSTS", raising=False)
    statuses = []
    app = guarded(lambda environ, start_response: [b"secret"], None)
    (text,) = app({"HTTP_HOST": "<b>\r\nx-" + 500 * "y"}, lambda status, headers: statuses.append(status))
    assert statuses == ["403 Forbidden"]
    assert b"<" not in text
    assert text.count(b"\n") == 1
    monkeypatch.setenv("WALKTHROUGH_HOSTS", "hub.example,proxy")
    assert app({"HTTP_HOST": "proxy:80"}, None) == [b"secret"]


def _of(rank, exposed_us, sampled):
    parts = dict.fromkeys(ROLES, 100.0)
    row = {"rank": rank, "step_us": 1000.0, "parts": parts, "has_gpu": True, "communicates": True}
    row |= {"collectives_us": 500.0, "exposed_us": exposed_us, "hidden_us": 500.0 - exposed_us, "ways": "fewer bytes"}
    collectives = {"1": {"ncclDevKernel_AllReduce": [exposed_us]}}
    return f"rank{rank}.json", plugin._Report(row, collectives, False, sampled, {"parts_us": {}}, "a verdict")


@pytest.mark.parametrize("sampled", [False, True])
def test_who_waits_is_not_said_of_samples(sampled):
    compared = plugin._compared({0: _of(0, 100.0, sampled), 1: _of(1, 400.0, False)})
    waits = [row["wait_us"] for row in compared["ranks"]]
    if sampled:
        assert (waits, compared["straggler"], compared["advice"]) == ([None, None], None, "")
        assert "missing" in compared["no_waits"]
    else:
        assert (compared["straggler"], compared["no_waits"]) == (0, "")
        assert waits[1] > waits[0] and "rank 0" in compared["advice"]
