"""What the docs show of the recorded runs: figures, tables, differences between steps. Generated, never typed."""
