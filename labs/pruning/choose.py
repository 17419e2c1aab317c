"""How the plan of digits was chosen: accuracy on folds of the training images, by epochs and learning rate.

python labs/pruning/choose.py
"""

from dataclasses import replace
from itertools import product

from common import step_options
from labs.pruning.model import DEFAULTS
from labs.pruning.training import Training, data_of
from labs.shared.images import FOLDS
from walkthrough.compare.statistics import mean

EPOCHS, RATES = (8, 16), (0.05, 0.1, 0.2, 0.4)


def main() -> None:
    options = step_options(__doc__, defaults=DEFAULTS)
    for epochs, lr in product(EPOCHS, RATES):
        accuracies = []
        for fold in range(FOLDS):
            data, plan = data_of(options, fold)
            training = Training(options, data, replace(plan, epochs=epochs, lr=lr), options.seed + fold)
            training.run()
            accuracies.append(100 * training.accuracy())
        print(f"{epochs} epochs, rate {lr}: {mean(accuracies)} %", flush=True)


if __name__ == "__main__":
    main()
