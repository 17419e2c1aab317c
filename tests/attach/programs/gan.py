"""Two optimizers: the critic steps three times as often as the generator, whose steps therefore mark."""

import parts
import torch

critic, generator, batches = parts.model(), parts.model(), parts.batches()
of_critic = torch.optim.Adam(critic.parameters())
of_generator = torch.optim.RMSprop(generator.parameters())
for _ in range(30):
    for _ in range(3):
        of_critic.zero_grad()
        parts.loss(critic, *next(batches)).backward()
        of_critic.step()
    of_generator.zero_grad()
    parts.loss(generator, *next(batches)).backward()
    of_generator.step()
