"""What was published about pruning MobileNetV2. Not measured here."""

WEIGHTS = 3_538_984  # "weights" whose magnitudes were sorted
PARAMETERS, STATISTICS = 3_504_872, 34_112  # what those are: all parameters, and batch norm's running statistics
QUANTILES = {"mean": 0.140, "50 %": 0.0218, "90 %": 0.123, "99 %": 2.95, "largest": 2226.8}  # of the magnitudes
