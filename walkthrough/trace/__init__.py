"""One trace of torch.profiler turned into numbers: `summarize(path)`. Knows nothing of torch or TensorBoard.

From left to right: `source` (bytes) → `decode` (events) → `reader` (a `Trace` of `columns`) → one module a concept,
built on `intervals` and `operators` → `advice` → `summary`.
"""
