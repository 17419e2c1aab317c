"""Soft actor-critic: the critic steps in each round, actor and temperature twice in every second one."""

import parts
import torch

critic, actor, temperature = parts.model(), parts.model(), torch.zeros(1, requires_grad=True)
networks = [torch.optim.Adam(network.parameters(), lr=0.01) for network in (critic, actor)]
last = torch.optim.Adam([temperature], lr=0.01)
for number in range(80):
    inputs, labels = torch.randn(16, 8), torch.randint(2, (16,))
    networks[0].zero_grad()
    parts.loss(critic, inputs, labels).backward()
    networks[0].step()
    for _ in range(2 * (number % 2)):
        networks[1].zero_grad()
        parts.loss(actor, inputs, labels).backward()
        networks[1].step()
        (temperature.exp() * 0.1).sum().backward()
        last.step()
