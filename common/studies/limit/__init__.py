"""`limit`: how fast the model could train on this device if data cost nothing, and why not faster."""
