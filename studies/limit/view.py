"""The result of `limit` as tables in the terminal, understandable without the docs."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from studies import study
from studies.limit.record import Limit, TrainingSpeed
from studies.study import ratio_cell
from walkthrough.compare import statistics
from walkthrough.compare.roofs import Peak
from walkthrough.results.result import Throughput
from walkthrough.terminal import plain_table, share_text

MOST_NAMED = 6  # operators without a FLOP formula, by name


def show(limit: Limit, to: Console) -> None:
    """Print a `Limit` on a console."""
    to.print(
        f"\n[bold]{escape(limit.setup.model)}[/], {limit.setup.image_size} px, {limit.precision}, on "
        f"[bold]{escape(limit.setup.device)}[/] ({limit.environment.cores} CPU cores), torch "
        f"{escape(limit.environment.torch)}; one batch on the device, no input pipeline\n"
    )
    to.print(facts_table(limit))
    to.print()
    to.print(speeds_table(limit))
    to.print()
    if limit.groups:
        to.print(groups_table(limit))
        to.print()
    fastest = limit.fastest.samples_per_second
    to.print(
        f"[bold]The limit is {fastest.median:.1f} images/s ({limit.fastest.kind}, batch {limit.batch_size})[/], its "
        f"windows {min(fastest.windows):.1f} to {max(fastest.windows):.1f}: the fastest program found, so no input "
        "pipeline can make this model train faster here at this precision."
    )
    if sentence := memory_bound(limit):
        to.print(sentence)
    rates = [limit.peak_flops[0], limit.peak_bytes[0], *(speed.samples_per_second for speed in limit.speeds)]
    study.print_unsteady([rate.windows for rate in rates], to)
    if limit.not_compiled:
        to.print(Text(f"Not compiled: {limit.not_compiled}.", "yellow"))
    study.print_notes(limit.notes, to)
    to.print(Text(_legend(limit), "dim"))


def facts_table(limit: Limit) -> Table:
    """The measured peaks, and what a step computes and moves."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("quantity", "value", "remark"):
        table.add_column(header, overflow="fold")
    flops, moved = limit.peak_flops[0], limit.peak_bytes[0]
    step, image = limit.flops_per_step, limit.forward_flops_per_image
    least = limit.least_bytes(limit.uncompiled.batch_size, limit.precision)
    at_least = (
        ()
        if least is None
        else (
            (
                "bytes it must move at least",
                rate_text(least, "B"),
                f"{step / least:.3g} FLOPs per byte; {least / limit.bytes_per_step:.0%} of what it moves uncompiled",
            ),
        )
    )
    for row in (
        ("measured peak, computing", rate_text(flops.median, "FLOP/s"), f"{flops.what}, ±{_half_range(flops):.0%}"),
        ("measured peak, memory", rate_text(moved.median, "B/s"), f"{moved.what}, ±{_half_range(moved):.0%}"),
        ("forward, per image", rate_text(image, "FLOP"), f"{image / 2e9:.4g} G multiply-adds"),
        (
            f"a training step, batch {limit.uncompiled.batch_size}",
            rate_text(step, "FLOP"),
            f"{step / limit.uncompiled.batch_size / image:.2f} x forward",
        ),
        (
            "bytes it moves, uncompiled",
            rate_text(limit.bytes_per_step, "B"),
            f"{step / limit.bytes_per_step:.3g} FLOPs per byte; the peaks balance at "
            f"{limit.flops_roof / limit.bytes_roof:.3g}",
        ),
        *at_least,
    ):
        table.add_row(*row)
    return table


def speeds_table(limit: Limit) -> Table:
    """How fast the model trains on one batch on the device: the programs that the search tried, in its order."""
    shares = ["% of arithmetic peak", "% of memory roof", "% of peak bytes/s"]
    table = plain_table("program", ["batch", "images/s", "vs the limit", "step ms", *shares])
    for speed in limit.speeds:
        table.add_row(
            speed.kind,
            str(speed.batch_size),
            f"{speed.samples_per_second.median:.1f}",
            "1.00x" if speed is limit.fastest else _ratio(speed, limit.fastest),
            f"{speed.step_ms.median:.1f}",
            f"{speed.mfu:.1%}",
            share_text(speed.share_of_memory_roof),
            share_text(speed.bytes_per_second and speed.bytes_per_second / limit.bytes_roof, 0),
        )
    return table


def memory_bound(limit: Limit) -> str | None:
    """What a low MFU means where memory limits the uncompiled step, in sentences; None where arithmetic does."""
    speed, intensity = limit.uncompiled, limit.flops_per_step / limit.bytes_per_step
    highest = intensity * limit.bytes_roof / limit.flops_roof
    if highest >= 1 or speed.bytes_per_second is None:
        return None
    fastest, roof = limit.fastest, ""
    if fastest.share_of_memory_roof is not None:
        which = "arithmetic" if fastest.mfu > fastest.share_of_memory_roof else "memory"
        roof = (
            f" The fastest program reaches {fastest.mfu:.1%} of the measured arithmetic peak and "
            f"{fastest.share_of_memory_roof:.1%} of the memory roof: the larger, {which}, says how much is left."
        )
    return (
        f"Memory-bound by the roofline: at {intensity:.3g} FLOPs per byte, memory at its measured peak allows at most "
        f"{highest:.0%} of the measured arithmetic peak, so a low share is to be expected. Uncompiled it is "
        f"{speed.mfu:.1%}, at {speed.bytes_per_second / limit.bytes_roof:.0%} of the measured peak bytes/s; only "
        f"moving fewer bytes (fused operators, lower precision) raises that bound.{roof}"
    )


def groups_table(limit: Limit) -> Table:
    """The operators of a step by kind: what they compute and move, their time, and how near their roof they are."""
    table = plain_table("operators of a step", ["calls", "GFLOP", "MB", "FLOPs per byte", "ms", "time", "of its roof"])
    step_ms = limit.outside_ms + sum(group.traced_ms for group in limit.groups)
    for group in sorted(limit.groups, key=lambda group: -group.traced_ms):
        share = limit.share_of_roof(group)
        table.add_row(
            group.name,
            str(group.calls),
            "no formula" if group.flops is None else f"{group.flops / 1e9:.2f}",
            f"{group.bytes / 1e6:.1f}",
            f"{group.flops / group.bytes:.3g}" if group.flops and group.bytes else "-",
            f"{group.traced_ms:.1f}",
            _share(group.traced_ms, step_ms),
            share_text(share, 0),
        )
    table.add_row("other", "", "", "", "", f"{limit.outside_ms:.1f}", _share(limit.outside_ms, step_ms), "")
    return table


def without_formula(limit: Limit) -> str:
    """Which operators torch has no FLOP formula for, and their share of all, in a sentence."""
    left_out = limit.without_formula
    names = [f"{operator.name.removeprefix('aten::')} {operator.calls}" for operator in left_out.operators]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    share = f"{left_out.calls_share:.0%} of the operators' calls"
    if left_out.time_share is not None:
        share += f", {left_out.time_share:.0%} of their time"
    return f"Without a FLOP formula: {share}: {', '.join(names[:MOST_NAMED])}{more}."


def rate_text(rate: float, unit: str) -> str:
    """A rate per second, or an amount, with a prefix: "85.3 GFLOP/s"."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= scale * 0.9995:  # three digits of it are 1
            return f"{rate / scale:.3g} {prefix}{unit}"
    return f"{rate:.3g} {unit}"


def _legend(limit: Limit) -> str:
    gpu = limit.device_type == "cuda"
    time = "the kernels' on the GPU, by the operator that launched them" if gpu else "the operators' own on the CPU"
    return (
        "FLOPs: 2 x multiply-adds, counted from shapes by torch.utils.flop_counter (the weight gradient of grouped "
        "convolutions corrected).\n"
        f"{without_formula(limit)}\n"
        "peaks: measured here, the best size of large matrix products and of copies (bytes read + written), ± half the "
        "windows' range.\n"
        "% of arithmetic peak: FLOPs of a step, per second, as a share of the measured peak (MFU).\n"
        "% of memory roof: bytes that a step must move at least, per second, as a share of the measured peak: each "
        "parameter, gradient, optimizer state and activation kept for the backward pass, written once and read once. "
        "They are the same for each program of a batch size, so this share grows with the speed.\n"
        "MB: what operators that are not fused move at least, each tensor read or written once per operator. % of peak "
        "bytes/s: that per second, as a share of the measured peak, above 100%: served from caches; compiled: by "
        "Inductor's own count of its kernels' buffers, with the optimizer's; -: it gave none.\n"
        "images/s: the median window. vs the limit: times as "
        "fast, and the 95% interval from the windows of one run each, which says nothing of how runs differ; ~, grey: "
        "no measurable difference.\n"
        f"ms, time: of a traced step, uncompiled, {time}. of its roof: speed over what the measured peaks allow at its "
        "FLOPs per byte; without a formula, bytes/s over their peak; above 100%: served from caches.\n"
        "program: from uint8 images of 32 px on the device: resizing, normalisation, model, loss, backward pass, fused "
        "SGD; compiled: normalisation, model and loss as one function; CUDA graphs: of that function."
    )


def _half_range(rates: Peak | Throughput) -> float:
    """Half the range of the windows over their median."""
    return (max(rates.windows) - min(rates.windows)) / 2 / rates.median


def _ratio(speed: TrainingSpeed, other: TrainingSpeed) -> str:
    """Their `statistics.Ratio`."""
    return ratio_cell(statistics.of_windows(speed.samples_per_second.windows, other.samples_per_second.windows))


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"
