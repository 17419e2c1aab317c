"""Records the traces of this folder anew: python tests/data/record.py"""

import gzip
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from common.tracing import traced_window  # noqa: E402

PRIVATE = re.compile(r"(/[\w.+-]+)+/(?=[\w.+-]+\.py)")  # the folders of a path


def batches():
    data = TensorDataset(torch.rand(256, 3, 8, 8), torch.randint(10, (256,)))
    while True:
        yield from DataLoader(data, batch_size=16)


def record(name, stacks):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def train_step(images, labels):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    beside = HERE / "unpacked.json"
    traced_window(batches(), train_step, torch.device("cpu"), beside, stacks)
    trace = json.loads(PRIVATE.sub("", beside.read_text()))
    beside.unlink()
    kept = {
        key: value for key, value in trace.items() if key in ("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds")
    }
    events = [event for event in trace["traceEvents"] if event.get("ph") != "M"]  # names of processes and threads
    packed = gzip.compress(json.dumps(kept | {"traceEvents": events}, separators=(",", ":")).encode(), 9, mtime=0)
    (HERE / f"{name}.pt.trace.json.gz").write_bytes(packed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record("cpu", stacks=False)
    record("cpu_stacks", stacks=True)
