"""Small trainings, which print each loss: `trainings.py NAME…`.

One runs in this process. Of several each runs in a fork of it, and a line says its name, process and exit code.
Those that are cut off while they are traced count on a warm-up of 4 steps; then the profiler takes one for itself.
"""

import io
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before a group is made: else gloo's threads outlive it
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader, TensorDataset

FORKS = multiprocessing.get_context("fork")


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def data(samples=64):
    return TensorDataset(torch.randn(samples, 8), torch.randint(2, (samples,)))


def endless(batch_size=4):
    loader = DataLoader(data(), batch_size)
    while True:
        yield from loader


def loss(network, inputs, labels):
    value = nn.functional.cross_entropy(network(inputs), labels)
    print(value.item(), flush=True)
    return value


def evaluate(network, batches):
    network.eval()
    with torch.no_grad():
        for inputs, *_ in batches:
            network(inputs)
    network.train()


def fit(network, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        loss(network, *batch).backward()
        optimizer.step()


class Training:
    """A model, batches of 4 and an optimizer. A call makes steps."""

    def __init__(self, kind=SGD, network=None, batch_size=4, **options):
        self.network, self.batches = network or model(), endless(batch_size)
        self.optimizer = kind(self.network.parameters(), **options)

    def __call__(self, steps=1):
        fit(self.network, self.optimizer, (next(self.batches) for _ in range(steps)))

    def closure(self, batch):
        def run():
            self.optimizer.zero_grad()
            value = loss(self.network, *batch)
            value.backward()
            return value

        return run


def plain():
    """Epochs of 16 steps, each with a validation."""
    training, valid = Training(), DataLoader(data(), 16)
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1)
    for _ in range(4):
        training(16)
        evaluate(training.network, valid)
        scheduler.step()


def accumulate():
    """Eight backward passes per step."""
    training = Training(AdamW)
    for _ in range(30):
        for _ in range(8):
            (loss(training.network, *next(training.batches)) / 8).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()


def scaler():
    """GradScaler skips every third step: its gradients are infinite."""
    training = Training()
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(60):
        training.optimizer.zero_grad()
        value = loss(training.network, *next(training.batches)) * (float("inf") if number % 3 == 0 else 1.0)
        grad_scaler.scale(value).backward()
        grad_scaler.step(training.optimizer)
        grad_scaler.update(4.0)


def closure():
    """The whole step inside `optimizer.step(closure)`, by an optimizer whose class calls its base class's step."""

    class Careful(Adam):
        def step(self, closure=None):
            return super().step(closure)

    training = Training(Careful)
    for _ in range(30):
        training.optimizer.step(training.closure(next(training.batches)))


def functional():
    """No optimizer: the weights are changed by hand."""
    network, batches = model(), endless()
    for _ in range(60):
        loss(network, *next(batches)).backward()
        for parameter in network.parameters():
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None


def in_backward():
    """An optimizer for each parameter, which steps in a hook of the backward pass."""
    network, batches = model(), endless()
    for parameter in network.parameters():
        optimizer = SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    for _ in range(60):
        loss(network, *next(batches)).backward()


def compiled():
    """The model, and the function in which the optimizer's step is called."""
    training = Training(network=torch.compile(model(), backend="eager"))

    @torch.compile(backend="eager")
    def update():
        training.optimizer.step()

    for _ in range(40):
        training.closure(next(training.batches))()
        update()


def without_loader():
    """Evaluates and saves every sixth step, as language models do."""
    network = model()
    optimizer = AdamW(network.parameters())
    for number in range(60):
        if number % 6 == 0:
            evaluate(network, [(torch.randn(4, 8),)] * 20)
            torch.save(network.state_dict(), io.BytesIO())
        fit(network, optimizer, [(torch.randn(4, 8), torch.randint(2, (4,)))])


def own_profiler():
    """Runs all the time."""
    training = Training()
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=100, warmup=1, active=1)) as profiler:
        for _ in range(30):
            training()
            profiler.step()


def raises():
    """While the third step is traced."""
    training = Training()
    training(7)
    training.closure(next(training.batches))()
    raise ValueError("the data are at an end")


def terminated():
    Training()(7)
    os.kill(os.getpid(), signal.SIGTERM)


def vanishes():
    Training()(6)
    os._exit(5)


def no_room():
    """A limit refuses larger files, as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    Training()(40)


def in_thread():
    """Trains in another thread than the main one, as some frameworks do."""
    training, stop = Training(), threading.Event()

    def train():
        for _ in range(600):
            if not stop.is_set():
                training()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        thread.join()
    finally:
        stop.set()


def workers():
    """Forked from a new Python."""
    training = Training()
    fit(
        training.network, training.optimizer, DataLoader(data(), 4, num_workers=1, multiprocessing_context="forkserver")
    )


def ranks():
    """As a launcher starts them."""
    with tempfile.TemporaryDirectory() as folder:
        start = {"init_method": f"file://{folder}/store", "world_size": 2}
        processes = [FORKS.Process(target=ddp, kwargs=start | {"rank": rank}) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


def ddp(**start):
    """DistributedDataParallel over gloo; one rank alone evaluates. start: by default as torchrun sets it."""
    dist.init_process_group("gloo", **start)
    training = Training(network=nn.parallel.DistributedDataParallel(model()))
    for _ in range(8):
        training(5)
        if dist.get_rank() == 0:
            evaluate(training.network, [])
    dist.destroy_process_group()
    del training  # it holds the group: gloo's threads may abort a process that ends with it


def run(name):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    environment = dict(os.environ)
    globals()[name]()
    assert os.environ == environment


if __name__ == "__main__" and len(sys.argv) == 2:
    run(sys.argv[1])
elif __name__ == "__main__":
    import torch._dynamo  # else each fork imports it, which takes over a second

    for name in sys.argv[1:]:
        process = FORKS.Process(target=run, args=(name,))
        process.start()
        process.join()
        print(name, process.pid, process.exitcode, flush=True)
