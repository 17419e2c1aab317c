"""Small trainings, which print each loss: `trainings.py NAME…`.

One runs in this process. Of several each runs in a fork of it, and a line says its name, process and exit code.
"""

import atexit
import copy
import io
import multiprocessing
import os
import signal
import sys
import threading

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before a group is made: else gloo's threads outlive it
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, RMSprop
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset


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
    if not threading.current_thread().daemon:  # whose last step depends on when the program ends
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


def few():
    Training()(3)


def ten_steps():
    """Then an evaluation."""
    training = Training()
    training(10)
    evaluate(training.network, data(1))


def plain():
    """Epochs of 16 steps, each with a validation."""
    network, train, valid = model(), DataLoader(data(), 4), DataLoader(data(), 16)
    optimizer = SGD(network.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(4):
        fit(network, optimizer, train)
        evaluate(network, valid)
        scheduler.step()


def short_epochs():
    """Of two steps: no window of three is without a new epoch."""
    network, train = model(), DataLoader(data(), 32)
    optimizer = SGD(network.parameters(), lr=0.1)
    for _ in range(40):
        fit(network, optimizer, train)


def accumulate():
    """Eight backward passes per step."""
    training = Training(AdamW)
    for _ in range(30):
        for _ in range(8):
            (loss(training.network, *next(training.batches)) / 8).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()


def gan():
    """The critic steps three times as often as the generator, whose steps therefore mark."""
    critic, generator = Training(Adam), Training(RMSprop)
    for _ in range(30):
        critic(3)
        generator()


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


def one_call():
    """All of a training is one step: an image, or a physical field, is optimised so."""
    training = Training(LBFGS, batch_size=64, max_iter=60, tolerance_grad=0, tolerance_change=0)
    training.optimizer.step(training.closure(next(training.batches)))


def functional():
    """No optimizer: the weights are changed by hand."""
    network, batches = model(), endless()
    for _ in range(60):
        loss(network, *next(batches)).backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


def in_backward():
    """An optimizer for each parameter, which steps in a hook of the backward pass."""
    network, batches = model(), endless()
    optimizers = {parameter: SGD([parameter], lr=0.1) for parameter in network.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(60):
        loss(network, *next(batches)).backward()


def compiled():
    """The model is compiled, the optimizer is not."""
    Training(network=torch.compile(model(), backend="eager"))(30)


def compiled_step():
    """The optimizer's step is called in a function that is compiled."""
    training = Training()

    @torch.compile(backend="eager")
    def update():
        training.optimizer.step()

    for _ in range(60):
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


def evaluates_training_data():
    """Each fifth step, in worker processes, as minGPT's addition demo does."""
    network, rows = model(), data()
    optimizer, train = AdamW(network.parameters()), DataLoader(rows, 4, sampler=RandomSampler(rows, True, 160))
    for number, batch in enumerate(train, start=1):
        fit(network, optimizer, [batch])
        if number % 5 == 0:
            evaluate(network, DataLoader(rows, batch_size=16, num_workers=1))


def rollouts():
    """Reinforcement learning: 1000 forward passes without gradients, then 8 steps on what they found."""
    network = model()
    optimizer = Adam(network.parameters(), lr=0.01)
    for _ in range(12):
        with torch.no_grad():
            seen = [network(torch.randn(16, 8)) for _ in range(1000)]
        fit(network, optimizer, [(torch.randn(16, 8), seen[0].argmax(1)) for _ in range(8)])


def recreated():
    """The optimizer is made anew in each epoch of three steps."""
    network = model()
    for _ in range(30):
        Training(network=network)(3)


def two_trainings():
    """The first ends while it is traced."""
    Training()(6)
    Training()(60)


def federated():
    """Thirty clients, each with a copy of the model, an optimizer and four batches of its own."""
    server = model()
    for _ in range(30):
        client = copy.deepcopy(server)
        fit(client, SGD(client.parameters(), lr=0.1), DataLoader(data(16), 4))
        server.load_state_dict(client.state_dict())


def odd_batches():
    """Batches are objects of the program's own, and lists of images; a sampler's length may have effects."""

    class Batch(dict):
        __getattr__ = dict.__getitem__

    class Sampler(BatchSampler):
        def __len__(self):
            raise RuntimeError("nobody else asks for this")

    rows, network = data(), model()
    optimizer = SGD(network.parameters(), lr=0.1)
    for collate in (lambda rows: Batch(rows=rows), lambda rows: tuple(zip(*rows, strict=True))):
        sampler = Sampler(SequentialSampler(rows), 2, drop_last=True)
        for batch in DataLoader(rows, batch_sampler=sampler, collate_fn=collate):
            pairs = batch.rows if isinstance(batch, Batch) else list(zip(*batch, strict=True))
            fit(network, optimizer, [[torch.stack(column) for column in zip(*pairs, strict=True)]])


def odd_classes():
    """An optimizer that has no hash before its constructor has ended, and a data set whose `==` is no truth value."""

    class Named(SGD):
        def __init__(self, parameters):
            super().__init__(parameters, lr=0.1)
            self.name = "named"

        def __hash__(self):
            return hash(self.name)

    network = model()
    optimizer = Named(network.parameters())
    for _ in range(3):
        fit(network, optimizer, ((rows, rows.argmax(1) % 2) for rows in DataLoader(torch.randn(64, 8), batch_size=4)))


def own_profiler():
    """Runs all the time."""
    training = Training()
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=100, warmup=1, active=1)) as profiler:
        for _ in range(30):
            training()
            profiler.step()


def late_profiler():
    """Starts while the steps are traced."""
    training = Training()
    training(6)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        training(20)


def legacy_profiler():
    training = Training()
    training(6)
    with torch.autograd.profiler.profile():
        training(24)


def own_handler():
    """Sets a handler of its own for SIGTERM while it is traced, which stays."""
    training = Training()
    training(6)
    signal.signal(signal.SIGTERM, handler := lambda *_: sys.exit(3))
    try:
        training(14)
    finally:
        assert signal.getsignal(signal.SIGTERM) is handler


def swallows():
    """Catches everything, SystemExit too."""
    training = Training()
    for _ in range(40):
        try:
            training()
        except BaseException:
            continue


def raises():
    """While the third step is traced: 4 of warm-up, 1 of the profiler's, 2 whole ones."""
    training = Training()
    training(7)
    training.closure(next(training.batches))()
    raise ValueError("the data are at an end")


def vanishes():
    """Ends by os._exit while it is traced."""
    Training()(6)
    os._exit(5)


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


def epochs_in_threads():
    """Each ends while it is traced."""
    network, loader = model(), DataLoader(data(), batch_size=8)
    optimizer = SGD(network.parameters(), lr=0.1)
    for _ in range(5):
        thread = threading.Thread(target=fit, args=(network, optimizer, loader))
        thread.start()
        thread.join()


def daemon():
    """Trains in a daemon thread, which is stopped as the program ends: while it is traced."""
    training, traced, stop = Training(), threading.Event(), threading.Event()

    def train():
        training(6)
        traced.set()
        stop.wait(1.0)  # a step that takes long
        while not stop.is_set():
            training()

    def end():
        stop.set()
        thread.join()

    atexit.register(end)
    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    traced.wait()


def forks_meanwhile():
    """Forks a process that trains as well, while its own training is traced."""
    training = Training()
    training(6)
    process = multiprocessing.get_context("fork").Process(target=Training(), args=(20,))
    process.start()
    process.join()
    training(14)


def warns():
    """Its DataLoaders warn: of the length of their data, of too many workers, of memory that cannot be pinned."""

    class Stream(IterableDataset):
        def __len__(self):
            return 6

        def __iter__(self):
            return iter(data(8))

        def __repr__(self):
            return "a stream"

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    training, stream = Training(), DataLoader(Stream())
    assert len(stream) == 6
    pin = not torch.cuda.is_available()
    loaders = stream, DataLoader(data(), 4, num_workers=2, pin_memory=pin, persistent_workers=True)
    for loader in (*loaders, *loaders):
        fit(training.network, training.optimizer, loader)


def workers():
    """Started by each method in turn."""
    training = Training()
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(data(), 4, num_workers=1, multiprocessing_context=method)
        fit(training.network, training.optimizer, loader)


def ddp():
    """DistributedDataParallel over gloo, as torchrun starts it; one rank alone evaluates."""
    dist.init_process_group("gloo")
    network, batches = nn.parallel.DistributedDataParallel(model()), endless()
    optimizer = SGD(network.parameters(), lr=0.1)
    for _ in range(8):
        fit(network, optimizer, (next(batches) for _ in range(5)))
        if dist.get_rank() == 0:
            evaluate(network, [])
    dist.destroy_process_group()
    del network, optimizer  # they hold the group: gloo's threads may abort a process that ends with them


def spawned():
    """Two processes."""
    torch.multiprocessing.spawn(train_rank, (f"{os.getcwd()}/store",), nprocs=2)
    print("all have ended")


def train_rank(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    Training(network=nn.parallel.DistributedDataParallel(model()))(40)
    dist.destroy_process_group()


def run(name):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    globals()[name]()


if __name__ == "__main__" and len(sys.argv) == 2:
    run(sys.argv[1])
elif __name__ == "__main__":
    for name in sys.argv[1:]:
        process = multiprocessing.get_context("fork").Process(target=run, args=(name,))
        process.start()
        process.join()
        print(name, process.pid, process.exitcode, flush=True)
