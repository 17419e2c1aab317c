"""Studies of the ladder, which train: see `studies.study` for the shape that all have."""
