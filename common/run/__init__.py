"""What a run leaves behind: its folder, its TensorBoard events, its progress lines, and nothing private in them."""
