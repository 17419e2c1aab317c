"""What every step shares: one data set, one model, one way to measure, and tools to read what was measured."""
