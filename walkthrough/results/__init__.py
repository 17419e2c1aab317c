"""What a run leaves: its result, its folder, its TensorBoard events; and how errors reach the user."""
