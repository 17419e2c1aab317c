"""Event files: what is written is read back, and anything else than scalars is refused."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from walkthrough.results.errors import InputError
from walkthrough.results.events import scalars, write_events


def test_what_is_written_is_read_back_the_last_value_of_each_tag(tmp_path):
    points = [("loss", 1, 2.5), ("loss", 2, 3.5)]
    write_events(tmp_path / "events", points, {"precision": "float32", "workers": 0}, {"median/step_ms": 1.0})
    assert scalars((tmp_path / "events").read_bytes()) == {"loss": 3.5, "median/step_ms": 1.0}


def test_events_that_are_no_scalars_are_refused(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    image = Summary.Value(tag="a", image=Summary.Image(height=1, width=1, colorspace=1, encoded_image_string=b"x"))
    scalar = Summary.Value(tag="a", simple_value=1.0, node_name="x")
    for event, message in (
        (Event(summary=Summary(value=[image])), "something else"),
        (Event(summary=Summary(value=[scalar])), "something else"),
        (Event(graph_def=b"x"), "no summary"),
    ):
        with open(tmp_path / "events", "wb") as file:
            RecordWriter(file).write(event.SerializeToString())
        with pytest.raises(InputError, match=message):
            scalars((tmp_path / "events").read_bytes())


def framed(*records):
    """Records as an event file frames them."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    content = b""
    for data in records:
        length = struct.pack("<Q", len(data))
        content += length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
    return content


@settings(deadline=None)  # the first example imports TensorBoard
@given(st.lists(st.binary(max_size=60), max_size=3))
def test_whatever_an_event_file_holds_is_read_or_refused(records):
    with contextlib.suppress(InputError):
        assert scalars(framed(*records))


UNKNOWN_FIELD, NO_EVENT = framed(bytes.fromhex("2a040a024805")), framed(b"\xff" * 50)


@pytest.mark.parametrize("content", [b"x", bytes(16), UNKNOWN_FIELD, NO_EVENT])
def test_a_damaged_event_file_is_refused(content):
    with pytest.raises(InputError):
        scalars(content)
