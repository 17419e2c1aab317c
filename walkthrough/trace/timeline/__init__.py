"""The events of a trace as the board's timeline draws them: one lane for each thread, stream and kind of event."""
