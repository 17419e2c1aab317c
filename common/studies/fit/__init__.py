"""`fit`'s programs: what runs a training program on a GPU that is none; see `walkthrough.memory`."""
