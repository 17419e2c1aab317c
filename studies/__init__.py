"""Studies around the ladder, one package each, all of one shape: measure, record, view, figure."""

OPTION_TEXTS = {  # of the options that every study takes
    "--logdir": "folder of all runs; the result goes there as a JSON file (default: logs/ of this project)",
    "--batch-size": "images per step (default: %(default)s)",
    "--precision": "of autocast: auto, fp32, bf16 or fp16 (default: auto: 16 bits where that is faster)",
    "--quick": "smoke run: fewer and shorter measurements",
}
