"""A run's scalars and hyper-parameters for TensorBoard's Time Series and HParams tabs: one event file, made and read.

Records in TFRecord framing: length, its checksum, data, its checksum; each an `Event` of TensorBoard's event.proto.
"""

import json
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from walkthrough.results.errors import InputError, printable
from walkthrough.results.files import open_new
from walkthrough.results.result import writing

_FRAME = 16  # bytes around a record's data
_MEASURED = ("loss", "step_ms", "images_per_second", "tokens_per_second", "peak_memory_bytes", "first_step_seconds")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')  # in JSON
_TEXTS = {  # all that an event file of a run holds: tags, settings and their values, and the names of the fields
    *_MEASURED, *(f"median/{name}" for name in _MEASURED),
    *("batch_size", "precision", "transfer", "workers", "pin_memory"),
    *("None", "True", "False", "float32", "float16", "bfloat16", "uint8"),
    *("_hparams_/experiment", "_hparams_/session_start_info", "_hparams_/session_end_info", "hparams"),
    *("brain.Event:2", "DATA_TYPE_FLOAT64", "DATA_TYPE_STRING", "STATUS_SUCCESS"),
    *("wallTime", "fileVersion", "summary", "value", "tag", "simpleValue", "metadata", "pluginData", "pluginName"),
    *("experiment", "hparamInfos", "metricInfos", "name", "type", "sessionStartInfo", "sessionEndInfo"),
    "status",
}  # fmt: skip


def write_events(
    path: Path,
    scalars: Sequence[tuple[str, int, float]],
    settings: Mapping[str, str | float | None],
    medians: Mapping[str, float],
) -> None:
    """Write one whole TensorBoard event file.

    scalars: (tag, training step, value) of each point. settings: {name: number or text}, what the HParams tab lists.
    medians: {tag: number}, what it compares the settings by. Raises InputError where `path` cannot be written.
    """
    # Only here: a quarter of a second to import, and none of it is needed while a step is being measured.
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  # made at import
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard.summary import hparams, scalar

    last = max((step for _, step, _ in scalars), default=0)
    summaries = [(summary, 0) for summary in hparams(dict(settings), dict(medians))]
    summaries += [(scalar(tag, value), step) for tag, step, value in scalars]
    summaries += [(scalar(tag, value), last) for tag, value in medians.items()]
    with writing(path), open_new(path) as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        for summary, step in summaries:
            writer.write(Event(wall_time=time.time(), step=step, summary=summary).SerializeToString())
        writer.flush()


def scalars(content: bytes) -> dict[str, float]:
    """An event file's scalars: {tag: the last value}. Hyper-parameters may be among them, nothing else.

    Raises InputError where the bytes are damaged, hold anything else, a text that no run writes, or no scalar.
    """
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError  # with TensorBoard, a quarter of a second to import
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]  # made at import
    from tensorboard.plugins.hparams.plugin_data_pb2 import (
        HParamsPluginData,  # pyright: ignore[reportAttributeAccessIssue]
    )

    values: dict[str, float] = {}
    for record in _records(content):
        try:
            event = Event.FromString(record)
            settings = [
                HParamsPluginData.FromString(value.metadata.plugin_data.content) for value in event.summary.value
            ]
        except DecodeError as error:
            raise InputError("it is damaged (no event)") from error
        if event.WhichOneof("what") not in ("file_version", "summary"):
            raise InputError("it holds an event that is no summary")
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value" and not value.node_name:
                values[value.tag] = value.simple_value
            elif kind is not None or value.metadata.plugin_data.plugin_name != "hparams":
                raise InputError("it holds something else than scalars and hyper-parameters")
        sizes = [len(record), *(len(value.metadata.plugin_data.content) for value in event.summary.value)]
        for message, size in zip((event, *settings), sizes, strict=True):
            message.DiscardUnknownFields()
            if message.ByteSize() != size:
                raise InputError("it holds a field that no event has, or one that is there twice")
        event.ClearField("step")  # a number, which would be a text below
        for value in event.summary.value:
            value.metadata.plugin_data.ClearField("content")  # one of `settings`
        held = json.dumps([MessageToDict(message) for message in (event, *settings)])
        if foreign := sorted({*_TEXT.findall(held)} - _TEXTS):  # keys are texts, too
            raise InputError(f"it holds a text that no run writes: {printable(foreign[0], 60)!r}")
    if not values:
        raise InputError("it holds no scalar")
    return values


def _records(content: bytes) -> Iterator[bytes]:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    at = 0
    while at < len(content):
        if len(content) - at < _FRAME:
            raise InputError("it is damaged (a record is cut off)")
        [length] = struct.unpack_from("<Q", content, at)
        data = content[at + 12 : at + 12 + length]
        if length > len(content) - at - _FRAME:
            raise InputError("it is damaged (a record is cut off)")
        for part, checksum in ((content[at : at + 8], at + 8), (data, at + 12 + length)):
            if struct.unpack_from("<I", content, checksum)[0] != masked_crc32c(part):
                raise InputError("it is damaged (a checksum is wrong)")
        yield data
        at += _FRAME + length
