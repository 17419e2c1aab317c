"""torch.multiprocessing.spawn starts two processes, which train."""

import sys

import parts
import torch
import torch.distributed.nn.functional  # before a group is made: else gloo's threads outlive it


def train(rank, folder):
    network, batches = parts.model(), parts.batches()
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    network = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(40):
        parts.loss(network, *next(batches)).backward()
        optimizer.step()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (sys.argv[1],), nprocs=2)
    print("all have ended")
