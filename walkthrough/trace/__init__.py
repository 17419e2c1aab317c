"""One trace of torch.profiler turned into numbers: `analysis.analyze(path)`. Knows nothing of torch or TensorBoard.

Read in this order: `chrome_trace` (bytes to events), `reader` (to a `Trace`, see `columns`), a module for each concept,
`analysis`.
"""
