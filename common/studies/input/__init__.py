"""`limit --input`: how many images/s the input pipeline delivers, per number of workers."""
