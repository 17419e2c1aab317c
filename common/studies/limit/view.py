"""What `limit` found, as tables in the terminal, understandable without the docs."""

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from common.explain.terminal import plain_table
from common.ladder.table import UNSTEADY
from common.studies.limit.figure import of_roof, told_rate

MOST_NAMED = 6  # operators without a FLOP formula, by name


def print_limit(limit, to):
    """Print a `limit_record.Limit` to the console `to`."""
    to.print(
        f"\n[bold]{escape(limit.model)}[/], batch {limit.batch_size}, {limit.image_size} px, {limit.precision}, on "
        f"[bold]{escape(limit.device)}[/] ({limit.environment.cores} CPU cores), torch "
        f"{escape(limit.environment.torch)}; one batch on the device, no input pipeline\n"
    )
    to.print(facts_table(limit))
    to.print()
    to.print(floors_table(limit))
    to.print()
    to.print(groups_table(limit))
    to.print()
    best, speeds = limit.floor, [each.samples_per_second for each in limit.floors]
    windows = best.samples_per_second.windows
    to.print(
        f"[bold]The floor is {best.samples_per_second.median:.1f} images/s ({best.kind})[/], its windows "
        f"{min(windows):.1f} to {max(windows):.1f}: no input pipeline can make this model train faster here, at this "
        "batch size and precision."
    )
    if max(map(_half, [*limit.peak_flops[:1], *limit.peak_bytes[:1], *speeds])) > UNSTEADY:
        to.print(
            Text("UNSTEADY: windows differ widely, so something else kept this machine busy. Run it again.", "red")
        )
    if limit.not_compiled:
        to.print(Text(f"Not compiled: {limit.not_compiled}.", "yellow"))
    for note in limit.notes:
        to.print(Text(f"{note[0].upper()}{note[1:]}.", "yellow"))
    to.print(Text(_legend(limit), "dim"))


def facts_table(limit):
    """The measured peaks, and what a step computes and moves."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in ("quantity", "value", "remark"):
        table.add_column(header, overflow="fold")
    flops, moved = limit.peak_flops[0], limit.peak_bytes[0]
    step, image = limit.flops_per_step, limit.forward_flops_per_image
    for row in (
        ("measured peak, computing", told_rate(flops.median, "FLOP/s"), f"{flops.what}, ±{_half(flops):.0%}"),
        ("measured peak, memory", told_rate(moved.median, "B/s"), f"{moved.what}, ±{_half(moved):.0%}"),
        ("forward, an image", told_rate(image, "FLOP"), f"{image / 2e9:.4g} G multiply-adds"),
        ("a training step", told_rate(step, "FLOP"), f"{step / limit.batch_size / max(image, 1):.2f} x forward"),
        (
            "what it moves",
            told_rate(limit.bytes_per_step, "B"),
            f"{step / limit.bytes_per_step:.3g} FLOPs a byte; the peaks balance at "
            f"{limit.flops_roof / limit.bytes_roof:.3g}",
        ),
    ):
        table.add_row(*row)
    return table


def floors_table(limit):
    """How fast the model trains on one batch that lies on the device, a row for each way."""
    table = plain_table("floor", ["images/s", "windows", "step ms", "achieved", "of peak (MFU)", "moved"])
    for each in limit.floors:
        speed = each.samples_per_second
        moved = "-"
        if each.bytes_per_second is not None:
            moved = f"{told_rate(each.bytes_per_second, 'B/s')}, {each.bytes_per_second / limit.bytes_roof:.0%}"
        table.add_row(
            each.kind,
            f"{speed.median:.1f}",
            f"{min(speed.windows):.1f} to {max(speed.windows):.1f}",
            f"{each.step_ms.median:.1f}",
            told_rate(each.flops_per_second, "FLOP/s"),
            f"{each.mfu:.1%}",
            moved,
        )
    return table


def groups_table(limit):
    """The operators of a step by kind: what they compute and move, their time, and how near their roof they are."""
    table = plain_table("operators of a step", ["calls", "GFLOP", "MB", "FLOPs a byte", "ms", "time", "of its roof"])
    whole = limit.outside_ms + sum(group.traced_ms for group in limit.groups)
    for group in sorted(limit.groups, key=lambda group: -group.traced_ms):
        share = of_roof(limit, group)
        table.add_row(
            group.name,
            str(group.calls),
            "no formula" if group.flops is None else f"{group.flops / 1e9:.2f}",
            f"{group.bytes / 1e6:.1f}",
            f"{group.flops / group.bytes:.3g}" if group.flops and group.bytes else "-",
            f"{group.traced_ms:.1f}",
            _share(group.traced_ms, whole),
            "-" if share is None else f"{share:.0%}",
        )
    table.add_row("outside of them", "", "", "", "", f"{limit.outside_ms:.1f}", _share(limit.outside_ms, whole), "")
    return table


def without_formula(limit):
    """Which operators torch has no FLOP formula for, and what they are of all, in a sentence."""
    left = limit.without_formula
    named = ", ".join(f"{each.name.removeprefix('aten::')} {each.calls}" for each in left.operators[:MOST_NAMED])
    more = len(left.operators) - MOST_NAMED
    return (
        f"Without a FLOP formula: {left.calls_share:.0%} of the operators' calls, {left.time_share:.0%} of their "
        f"time: {named}{f' and {more} more' if more > 0 else ''}."
    )


def _legend(limit):
    gpu = limit.device_type == "cuda"
    time = "the kernels' on the GPU, by the operator that launched them" if gpu else "the operators' own on the CPU"
    return (
        "FLOPs: 2 x multiply-adds, counted from shapes by torch.utils.flop_counter (the weight gradient of grouped "
        "convolutions put right).\n"
        f"{without_formula(limit)}\n"
        "peaks: measured here, the best size of large matrix products and of copies (bytes read + written), ± half the "
        "windows' range.\n"
        "MB: what operators that are not fused would move at least, each tensor read or written once an operator; "
        "fused (compiled), less need move. moved: that a second, and its share of the measured peak.\n"
        "achieved, MFU: FLOPs of a step over its time, and that over the measured peak; images/s: the median window.\n"
        f"ms, time: of a traced step, uncompiled, {time}. of its roof: speed over what the measured peaks allow at its "
        "FLOPs a byte; without a formula, bytes/s over their peak; above 100%: served from caches.\n"
        "floor: uncompiled in the layout and with the optimizer of steps 01 to 05; channels last with the fused "
        "optimizer as step 07; compiled as step 08."
    )


def _half(rates):
    """Half the range of windows over their median."""
    return (max(rates.windows) - min(rates.windows)) / 2 / rates.median


def _share(part, whole):
    return f"{part / whole:.0%}" if whole else "-"
