"""`limit`: the highest speed of the model on this device if data cost nothing, and why it is not higher.

The command, its tables and its figure; `studies.fastest` measures. Starts without torch.

FLOPs are 2 x multiply-adds, counted from shapes by torch.utils.flop_counter; peaks are measured here, by large matrix
products and copies. The figure is a roofline, after Williams, Waterman and Patterson, "Roofline" (2009): FLOP/s over
FLOPs per byte; the roof is the lower of the peak FLOP/s and the intensity times the peak bytes/s. The time of operators
is from a trace of the uncompiled step (`studies.roofline`).
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from studies import input as input_study
from studies import study
from walkthrough.compare.figures import GREY, SPEED, in_style
from walkthrough.compare.roofs import of_study
from walkthrough.compare.statistics import of_windows
from walkthrough.compare.study import Row, Study
from walkthrough.results.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels last"  # memory layouts
MOST_NAMED = 6  # operators without a FLOP formula, by name
COLOURS = {  # of the groups of `roofline.GROUPS`
    "convolution": "#0072b2",
    "depthwise convolution": "#d55e00",
    "batch norm": "#009e73",
    "other norm": "#999999",
    "attention": "#f0e442",
    "matrix product": "#56b4e9",
    "pooling": "#e69f00",
    "resize": "#aa4499",
    "loss, softmax": "#cc79a7",
    "sum, mean": "#000000",
    "copy, cast": "#44aa99",
    "elementwise": "#882255",
    "optimizer": "#117733",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command `limit`, with those of `limit --input`."""
    texts = {
        "--batch-size": "images per step; without --input the first of the sizes tried (default: %(default)s)",
        "--data": "with --input: folder that holds cifar-10-batches-py (default: data/ of this project)",
        "--download": "with --input: fetch CIFAR-10 into --data first, 170 MB",
    }
    study.add_options(parser, ("--workers",), texts)
    parser.add_argument("--input", action="store_true", help="measure the input pipeline alone, per number of workers")


def run(args: argparse.Namespace) -> int:
    """Measure, write `limit.json` (with --input: `input.json`) into `args.logdir`, print it. Returns 0.

    Raises InputError for what the user can fix: options, a folder that cannot be written, a model that does not fit.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the profiler warns of memory that is older than the trace
    if args.input:
        return input_study.run(args)
    if args.download:
        raise InputError("--download fetches the data, which limit reads with --input only: leave it out")
    options = study.ready(args)
    from studies.fastest import measure

    return study.run(args, lambda: measure(options), figure, "; `compare` shows each step's share of the limit")


def fastest(measured: Mapping[str, Any]) -> Mapping[str, Any]:
    """The limit itself: the fastest of the speeds."""
    return _fastest(measured["speeds"])


def uncompiled(measured: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fastest uncompiled program: the one whose operators were counted and traced."""
    return _fastest([speed for speed in measured["speeds"] if not speed["compiled"]])


def _fastest(speeds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(speeds, key=lambda speed: speed["samples_per_second"]["median"])


def work(group: Mapping[str, Any]) -> int:
    """FLOPs of a group of operators, or where there is no formula one for each element written: for its place only."""
    return group["elements"] if group["flops"] is None else group["flops"]


def share_of_roof(measured: Mapping[str, Any], group: Mapping[str, Any]) -> float | None:
    """Speed of a group in the trace over its roof, 0..1 (above 1 where data came from caches), or None.

    Under the sloped roof this is bytes/s over the peak's, whatever counts as a FLOP.
    """
    if not (work(group) and group["bytes"] and group["traced_ms"]):
        return None
    flops_roof, bytes_roof = (measured[name][0]["median"] for name in ("peak_flops", "peak_bytes"))
    return work(group) / (group["traced_ms"] / 1e3) / min(flops_roof, work(group) / group["bytes"] * bytes_roof)


def tables(measured: Mapping[str, Any]) -> dict[str, list[Row]]:
    """The programs that the search tried, in its order; the measured peaks and what a step does; its operators."""
    return {"programs": _programs(measured), "facts": _facts(measured), "operators": _operators(measured)}


def _programs(measured: Mapping[str, Any]) -> list[Row]:
    best, bytes_roof = fastest(measured), measured["peak_bytes"][0]["median"]

    def percent(share: float | None) -> float | None:
        return None if share is None else 100 * share

    rows = []
    for speed in measured["speeds"]:
        windows, moved = speed["samples_per_second"]["windows"], speed["bytes_per_second"]
        rows.append(
            {
                "program": speed["kind"],
                "batch": speed["batch_size"],
                "images/s": speed["samples_per_second"]["median"],
                "vs the limit": None if speed is best else of_windows(windows, best["samples_per_second"]["windows"]),
                "step ms": speed["step_ms"]["median"],
                "% of arithmetic peak": percent(speed["mfu"]),
                "% of memory roof": percent(speed["share_of_memory_roof"]),
                "% of peak bytes/s": percent(moved and moved / bytes_roof),
            }
        )
    return rows


def _facts(measured: Mapping[str, Any]) -> list[Row]:
    flops, moved = measured["peak_flops"][0], measured["peak_bytes"][0]
    step, image = measured["flops_per_step"], measured["forward_flops_per_image"]
    batch_size, step_bytes = uncompiled(measured)["batch_size"], measured["bytes_per_step"]

    def spread(peak: Mapping[str, Any]) -> str:
        return f"{peak['what']}, ±{(max(peak['windows']) - min(peak['windows'])) / 2 / peak['median']:.0%}"

    facts = [
        ("measured peak, computing", flops["median"] / 1e9, "GFLOP/s", spread(flops)),
        ("measured peak, memory", moved["median"] / 1e9, "GB/s", spread(moved)),
        ("forward, per image", image / 1e6, "MFLOP", f"{image / 2e6:.3g} M multiply-adds"),
        (
            f"a training step, batch {batch_size}",
            step / 1e9,
            "GFLOP",
            f"{step / batch_size / image:.2f} x forward",
        ),
        (
            "bytes it moves, uncompiled",
            step_bytes / 1e9,
            "GB",
            f"{step / step_bytes:.3g} FLOPs per byte; the peaks balance at {flops['median'] / moved['median']:.3g}",
        ),
    ]
    if measured["step_bytes"]:
        own = measured["step_bytes"][-1]  # in the precision in use
        least = own["fixed"] + own["per_image"] * batch_size
        share = f"{step / least:.3g} FLOPs per byte; {least / step_bytes:.0%} of what it moves uncompiled"
        facts.append(("bytes it must move at least", least / 1e9, "GB", share))
    return [dict(zip(("quantity", "value", "unit", "remark"), fact, strict=True)) for fact in facts]


def _operators(measured: Mapping[str, Any]) -> list[Row]:
    groups, outside_ms = measured["groups"], measured["outside_ms"]
    step_ms = outside_ms + sum(group["traced_ms"] for group in groups)
    rows = []
    for group in sorted(groups, key=lambda group: -group["traced_ms"]):
        share, flops = share_of_roof(measured, group), group["flops"]
        rows.append(
            {
                "operators of a step": group["name"],
                "calls": group["calls"],
                "GFLOP": None if flops is None else flops / 1e9,
                "MB": group["bytes"] / 1e6,
                "FLOPs per byte": flops / group["bytes"] if flops and group["bytes"] else None,
                "ms, traced": group["traced_ms"],
                "% of the time": 100 * group["traced_ms"] / step_ms,
                "% of its roof": None if share is None else 100 * share,
            }
        )
    if rows:
        share = 100 * outside_ms / step_ms
        rows.append({"operators of a step": "other", "ms, traced": outside_ms, "% of the time": share})
    return rows


def conclusions(measured: Mapping[str, Any]) -> dict[str, list[str]]:
    """What the limit is, what a low share of the peak means, and which operators are not counted."""
    best = fastest(measured)
    speed = best["samples_per_second"]
    limit = (
        f"The limit is {speed['median']:.1f} images/s ({best['kind']}, batch {best['batch_size']}), its windows "
        f"{min(speed['windows']):.1f} to {max(speed['windows']):.1f}: the fastest program found, so no input pipeline "
        "can make this model train faster here at this precision."
    )
    return {"programs": [limit], "facts": memory_bound(measured), "operators": [without_formula(measured)]}


def memory_bound(measured: Mapping[str, Any]) -> list[str]:
    """What a low share of the peak means where memory limits the uncompiled step; [] where arithmetic does."""
    flops_roof, bytes_roof = (measured[name][0]["median"] for name in ("peak_flops", "peak_bytes"))
    speed, best = uncompiled(measured), fastest(measured)
    intensity = measured["flops_per_step"] / measured["bytes_per_step"]
    highest = intensity * bytes_roof / flops_roof
    if highest >= 1 or speed["bytes_per_second"] is None:
        return []
    sentences = [
        f"Memory-bound by the roofline: at {intensity:.3g} FLOPs per byte, memory at its measured peak allows at most "
        f"{highest:.0%} of the measured arithmetic peak, so a low share is to be expected.",
        f"Uncompiled it is {speed['mfu']:.1%}, at {speed['bytes_per_second'] / bytes_roof:.0%} of the measured peak "
        "bytes/s; only moving fewer bytes (fused operators, lower precision) raises that bound.",
    ]
    share = best["share_of_memory_roof"]
    if share is not None:
        sentences.append(
            f"The fastest program reaches {best['mfu']:.1%} of the measured arithmetic peak and {share:.1%} of the "
            f"memory roof: the larger, {'arithmetic' if best['mfu'] > share else 'memory'}, says how much is left."
        )
    return sentences


def without_formula(measured: Mapping[str, Any]) -> str:
    """Which operators torch has no FLOP formula for, and their share of all, in a sentence."""
    left_out = measured["without_formula"]
    names = [f"{operator['name']} {operator['calls']}" for operator in left_out["operators"]]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    share = f"{left_out['calls_share']:.0%} of the operators' calls"
    if left_out["time_share"] is not None:
        share += f", {left_out['time_share']:.0%} of their time"
    return f"Without a FLOP formula: {share}: {', '.join(names[:MOST_NAMED])}{more}."


def rate_text(rate: float, unit: str) -> str:
    """A rate per second, or an amount, with a prefix: "85.3 GFLOP/s"."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= scale * 0.9995:  # three digits of it are 1
            return f"{rate / scale:.3g} {prefix}{unit}"
    return f"{rate:.3g} {unit}"


@in_style
def figure(result: Study) -> "Figure":
    """A matplotlib `Figure`: the measured roofs, a point for each group, its area by time, and one for the step."""
    import numpy as np
    from matplotlib.collections import PathCollection  # half a second to import
    from matplotlib.figure import Figure

    measured, roofs = result.measured, of_study(result)
    drawn = Figure(figsize=(9, 5))
    axes = drawn.subplots()
    groups = [group for group in measured["groups"] if share_of_roof(measured, group)]
    places = [roofs.flops_roof / roofs.bytes_roof, *(work(group) / group["bytes"] for group in groups)]
    edge = np.array([min(places) / 4, places[0], max(places) * 8])
    axes.loglog(
        edge, np.minimum(edge * roofs.bytes_roof, roofs.flops_roof), color=GREY, linewidth=1.5,
        label=f"measured roofs: {rate_text(roofs.bytes_roof, 'B/s')}, {rate_text(roofs.flops_roof, 'FLOP/s')}",
    )  # fmt: skip
    step_ms = measured["outside_ms"] + sum(group["traced_ms"] for group in measured["groups"])
    for group in groups:
        colour = GREY if COLOURS[group["name"]] == "#000000" else COLOURS[group["name"]]
        share, counted = group["traced_ms"] / step_ms, group["flops"] is not None
        axes.scatter(
            work(group) / group["bytes"], work(group) / group["traced_ms"] * 1e3, s=30 + 900 * share,
            facecolors=colour if counted else "none", edgecolors=colour, linewidths=1.8, alpha=0.85, zorder=3,
            label=f"{group['name']}, {share:.0%} of the time{'' if counted else ' *'}",
        )  # fmt: skip
    best = fastest(measured)
    stars = [(uncompiled(measured), GREY, 380)]
    if best["compiled"]:
        stars.append((best, SPEED, 150))  # smaller: where they meet, both are seen
    for speed, colour, size in stars:
        axes.scatter(
            measured["flops_per_step"] / measured["bytes_per_step"], speed["flops_per_second"], marker="*", s=size,
            color=colour, edgecolors=GREY, linewidths=0.7, zorder=4,
            label=f"the whole step, timed{' **' if speed['compiled'] else ''}:\n{speed['kind']}, batch "
            f"{speed['batch_size']}{of_roofs(speed)}",
        )  # fmt: skip
    axes.set_xlabel("FLOPs per byte of the operators' tensors")
    axes.set_ylabel("FLOP/s")
    axes.set_title(study.title(result))
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([50])
    remarks = []
    if any(group["flops"] is None for group in groups):
        remarks.append(
            "* no FLOP formula: drawn with one FLOP for each element written, so only the distance to the sloped roof "
            "(bytes/s) means something"
        )
    if best["compiled"]:
        remarks.append("** fused, it moves fewer bytes than are counted, so its true place is further right")
    drawn.supxlabel("\n".join(remarks), fontsize=8)
    return drawn


def of_roofs(speed: Mapping[str, Any]) -> str:
    """How near the measured peaks a program is, as more lines of a label; "" where the least bytes are not known."""
    share = speed["share_of_memory_roof"]
    if share is None:
        return ""
    return f"\n{speed['mfu']:.1%} of measured arithmetic peak,\n{share:.1%} of measured memory roof"
