"""What Liu and Liu published ("SimCLS", ACL 2021, table 1): CNN/DailyMail, 16 candidates sampled from BART each.

The write-up from which this lab grew announces SimCLS and leaves it empty, so it has no figures for it.
"""

ROUGE = {  # {method: (ROUGE-1, ROUGE-2, ROUGE-L), in percent}, by our names for them
    "worst": (33.17, 11.67, 30.77),  # "Min"
    "random": (43.98, 20.06, 40.94),
    "first": (44.39, 21.21, 41.28),  # "Origin": what BART itself ranks first
    "re-ranked": (46.67, 22.15, 43.54),
    "oracle": (54.36, 28.73, 50.77),  # "Max"
}


def share_of_gap(method: str, kind: int = 0) -> float:
    """How far a method came from a random candidate to the best one, 0 to 1, in the kind of ROUGE of that number."""
    low, high = ROUGE["random"][kind], ROUGE["oracle"][kind]
    return (ROUGE[method][kind] - low) / (high - low)
