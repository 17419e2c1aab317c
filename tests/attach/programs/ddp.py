"""DistributedDataParallel over gloo, as torchrun starts it."""

import parts
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before a group is made: else gloo's threads outlive it

torch.manual_seed(0)
dist.init_process_group("gloo")
network = torch.nn.parallel.DistributedDataParallel(parts.model())
batches = parts.batches()
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for number in range(40):
    loss = parts.loss(network, *next(batches))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 5 == 4 and dist.get_rank() == 0:  # one rank alone evaluates
        network.eval()
        network.train()
if dist.get_rank() == 0:
    print(loss.item(), flush=True)
dist.destroy_process_group()
del network, optimizer, loss  # they hold the group: gloo's threads may abort a process that ends with them
