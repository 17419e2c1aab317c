"""What a TensorBoard event file holds, for files of strangers: scalars and hyper-parameters, undamaged, and no more.

Records in TFRecord framing: length, its checksum, data, its checksum; each an `Event` of TensorBoard's event.proto.
"""

import struct

from common.errors import InputError

_FRAME = 16  # bytes around a record's data


def scalars(content):
    """An event file's scalars: {tag: the last value}. Hyper-parameters may stand beside them, nothing else.

    Raises InputError where the bytes are damaged, hold anything else, or no scalar.
    """
    from google.protobuf.message import DecodeError  # with TensorBoard, a quarter of a second to import
    from tensorboard.compat.proto.event_pb2 import Event

    found = {}
    for record in _records(content):
        try:
            event = Event.FromString(record)
        except DecodeError as error:
            raise InputError("it is damaged (no event)") from error
        if event.WhichOneof("what") not in ("file_version", "summary"):
            raise InputError("it holds an event that is no summary")
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value" and not value.node_name:
                found[value.tag] = value.simple_value
            elif kind is not None or value.metadata.plugin_data.plugin_name != "hparams":
                raise InputError("it holds something else than scalars and hyper-parameters")
    if not found:
        raise InputError("it holds no scalar")
    return found


def _records(content):
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
