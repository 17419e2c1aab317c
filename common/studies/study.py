"""What a record may hold beside its ladder: a file each of `limit`, `limit --input`, `ablate`, `overhead`, `sweep`."""

from pathlib import Path

from common.errors import InputError
from common.studies.ablation import record as ablation_record
from common.studies.input import record as input_limit_record
from common.studies.limit import record as limit_record
from common.studies.overhead import record as overhead_record
from common.studies.sweep import record as sweep_record

READERS = {
    limit_record.FILE: limit_record.read_limit,
    input_limit_record.FILE: input_limit_record.read_input_limit,
    ablation_record.FILE: ablation_record.read_ablation,
    overhead_record.FILE: overhead_record.read_overhead,
    sweep_record.FILE: sweep_record.read_sweep,
}


def read_study(path, settings):
    """What a file of `READERS` holds. settings: the record's.

    Raises InputError for a broken one, for one of another device, model, image size or data than the ladder's, and for
    a smoke run.
    """
    path = Path(path)
    found = READERS[path.name](path.parent)
    about = getattr(found, "settings", found)
    for name in ("device", "model", "image_size", "data"):
        there = getattr(about, name, settings[name])  # what trains on noise has no data
        if there != settings[name]:
            raise InputError(f"{path} is of {name} {there!r}, the record of {settings[name]!r}")
    if getattr(about, "quick", False) or any("smoke run" in note for note in getattr(found, "notes", ())):
        raise InputError(f"{path} is a smoke run (--quick), which is no measurement to keep")
    return found
