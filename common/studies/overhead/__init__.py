"""`overhead`: what the profiler itself costs a training step."""
