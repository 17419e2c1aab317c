"""`sweep`: throughput, cores and memory by workers, batch size and pinned memory."""
