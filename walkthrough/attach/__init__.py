"""`trace` and `time`: attach to the training in any command, without a change to it."""
