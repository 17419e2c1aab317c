"""How much GPU memory a training step needs: predicted on fake tensors, without a GPU."""
