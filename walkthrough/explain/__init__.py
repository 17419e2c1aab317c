"""`explain`: prints the numbers of one trace, of two traces or of all ranks of a training, as text or as JSON."""
