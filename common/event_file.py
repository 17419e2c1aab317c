"""What a TensorBoard event file is made of, read without TensorBoard: enough to say that it holds scalars and no more.

Records in TFRecord framing (length, its checksum, data, its checksum), each an `Event` of TensorFlow's event.proto.
"""

import struct

from common.errors import InputError

_EVENT = {1, 2, 3, 5}  # wall_time, step, file_version, summary
_VALUE = {1, 2, 9}  # tag, simple_value, metadata: no image, audio, text, histogram or tensor
_SUMMARY, _SCALAR, _METADATA = 5, 2, 9


def count_scalars(content):
    """How many scalars an event file's bytes hold. Hyper-parameters may stand beside them, nothing else.

    Raises InputError where it is damaged, holds anything else, or no scalar.
    """
    try:
        count = sum(_scalars(event) for event in _records(content))
    except (struct.error, IndexError, ValueError) as error:
        raise InputError(f"it is damaged ({error})") from error
    if not count:
        raise InputError("it holds no scalar")
    return count


def _records(content):
    at = 0
    while at < len(content):
        [length] = struct.unpack_from("<Q", content, at)
        if length > len(content) - at - 16:
            raise ValueError("a record is cut off")
        yield content[at + 12 : at + 12 + length]
        at += 16 + length


def _scalars(event):
    fields = list(_fields(event))
    if {number for number, _ in fields} - _EVENT:
        raise InputError("it holds an event that is no summary")
    values = [value for number, summary in fields if number == _SUMMARY for _, value in _fields(summary)]
    kinds = [dict(_fields(value)) for value in values]
    for kind in kinds:
        if set(kind) - _VALUE or (_SCALAR not in kind and b"hparams" not in kind.get(_METADATA, b"")):
            raise InputError("it holds something else than scalars and hyper-parameters")
    return sum(_SCALAR in kind for kind in kinds)


def _fields(message):
    """(number, value) of a protobuf message's fields; the value's bytes, an int for a varint."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
        else:
            length, at = _varint(message, at) if key & 7 == 2 else ({1: 8, 5: 4}.get(key & 7, len(message)), at)
            if length > len(message) - at:
                raise ValueError("a field is cut off")
            value, at = message[at : at + length], at + length
        yield key >> 3, value


def _varint(message, at):
    value = shift = 0
    while True:
        value |= (message[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 128:
            return value, at
