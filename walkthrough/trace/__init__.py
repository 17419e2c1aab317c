"""One trace of torch.profiler turned into numbers: `analysis.analyze(path)`. Knows nothing of torch or TensorBoard.

From left to right: `chrome_trace` (bytes to events), `reader` (a `Trace` of `columns`), one module a concept, `analysis`.
"""
