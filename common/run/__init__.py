"""What a run writes (its folder, trace, TensorBoard events and progress), without private data, and its ranks."""
