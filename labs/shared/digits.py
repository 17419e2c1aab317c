"""scikit-learn's handwritten digits, for every lab that needs real images where there is no network."""

from labs.shared.extras import imported

import numpy as np


def stored_digits(lab: str) -> tuple[np.ndarray, np.ndarray]:
    """(images uint8 [1797, 8, 8] with values 0..255, labels int64 [1797] in 0..9), in the order of the package.

    From the UCI "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998), whose test set they are; who
    wrote which is not known. lab: that needs them. Raises InputError where scikit-learn is not installed.
    """
    datasets = imported("sklearn.datasets", lab, "training without CIFAR-10, on real images of digits,")
    images, labels = datasets.load_digits(return_X_y=True)
    return (np.asarray(images).reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), np.asarray(labels)
