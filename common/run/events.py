"""A run's scalars and hyper-parameters for TensorBoard's Time Series and HParams tabs, in one event file."""

import time

from common.record import writing


def write_events(path, scalars, settings, medians):
    """Write one whole TensorBoard event file.

    scalars: (tag, training step, value) of each point. settings: {name: number or text}, what the HParams tab lists.
    medians: {tag: number}, what it compares the settings by. Raises InputError where `path` cannot be written.
    """
    # Only here: a quarter of a second to import, and none of it is needed while a step is being measured.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard.summary import hparams, scalar

    last = max((step for _, step, _ in scalars), default=0)
    summaries = [(summary, 0) for summary in hparams(settings, medians)]
    summaries += [(scalar(tag, value), step) for tag, step, value in scalars]
    summaries += [(scalar(tag, value), last) for tag, value in medians.items()]
    with writing(path), open(path, "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        for summary, step in summaries:
            writer.write(Event(wall_time=time.time(), step=step, summary=summary).SerializeToString())
        writer.flush()
