"""Each fifth step evaluates on the data that is trained on, in worker processes, as minGPT's addition demo does."""

import parts
import torch


def evaluate(network, data):
    network.eval()
    with torch.no_grad():
        for inputs, _ in torch.utils.data.DataLoader(data, batch_size=16, num_workers=1):
            network(inputs)
    network.train()


if __name__ == "__main__":
    data, network = parts.data(), parts.model()
    train = torch.utils.data.DataLoader(data, 4, sampler=torch.utils.data.RandomSampler(data, True, 10**6))
    optimizer = torch.optim.AdamW(network.parameters())
    for number, (inputs, labels) in enumerate(train, start=1):
        parts.loss(network, inputs, labels).backward()
        optimizer.step()
        if number % 5 == 0:
            evaluate(network, data)
        if number == 40:
            break
