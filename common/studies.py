"""What a record may hold beside its ladder: a file each of `limit`, `limit --input`, `ablate`, `overhead`, `sweep`."""

from pathlib import Path

from common import ablation_record, input_limit_record, limit_record, overhead_record, sweep_record
from common.errors import InputError

READERS = {
    limit_record.FILE: limit_record.read_limit,
    input_limit_record.FILE: input_limit_record.read_input_limit,
    ablation_record.FILE: ablation_record.read_ablation,
    overhead_record.FILE: overhead_record.read_overhead,
    sweep_record.FILE: sweep_record.read_sweep,
}


def read_study(path, settings):
    """What a file of `READERS` holds. settings: the record's. Raises InputError for a broken one, or of another device.

    Also for another model or image size than the ladder's.
    """
    path = Path(path)
    found = READERS[path.name](path.parent)
    about = getattr(found, "settings", found)
    for name in ("device", "model", "image_size"):
        if getattr(about, name) != settings[name]:
            raise InputError(f"{path} is of {name} {getattr(about, name)!r}, the record of {settings[name]!r}")
    return found
