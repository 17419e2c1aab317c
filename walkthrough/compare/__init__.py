"""All steps together: run them, compare them, draw them."""
