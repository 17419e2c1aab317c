"""Read, explain, compare and show PyTorch training traces; see `walkthrough --help`."""
