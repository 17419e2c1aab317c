"""`explain`: what one trace, two traces or all ranks of a training say, in the terminal or as JSON."""
