"""The text of `explain`: one report, two of them, or those of a training's ranks; see `advice.report.report`.

The default is a verdict on one screen. Names from a trace pass through `printable`: none can control the terminal.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from walkthrough.results.errors import printable
from walkthrough.terminal import (
    BOLD,
    DIM,
    GREEN,
    HARD_BLANK,
    SCREEN_WIDTH,
    YELLOW,
    Page,
    count_text,
    painted,
    share_text,
    size_text,
    time_text,
)

Report = Mapping[str, Any]

ROLES = {  # its name, the mark that keeps a bar readable without colour, and its colour on a terminal
    "kernel": ("kernels", "▓", 32),
    "memcpy": ("copies", ">", 33),
    "memset": ("memset", "~", 93),
    "communication": ("communication", "▒", 35),
    "runtime": ("runtime calls", "-", 36),
    "dataloader": ("DataLoader", "░", 31),
    "cpu_exec": ("CPU operators", "=", 34),
    "other": ("other", ".", 90),
}
BEST = 3  # pieces of advice in the verdict
SMALLEST_GAIN = 1.02  # times faster: less is not printed
LARGEST_GAIN = 100  # times faster: more means that nothing else is in the step
LEAST_SHARE = 0.01  # of a step: roles that take less are not in the legend of its bar
TOP_ALLOCATIONS = 4  # rows per device
LEAST_BYTES = 1000  # of memory that is worth a line
OUTLIERS = "outlier_steps"  # the cost that `steps_lines` are about
CPU = -1  # the device of a CPU's memory
DIRECTIONS = {"h2d": "to the GPU", "d2h": "from the GPU", "d2d": "within the GPU"}
UNITS = {"share": share_text, "count": count_text, "bytes": size_text}
MEASURE = "`walkthrough time -- COMMAND --versus COMMAND` measures it."


def text(report: Report, everything: bool = False, width: int = SCREEN_WIDTH, colour: bool = False) -> str:
    """A trace on one screen: where a step's time goes, why the GPU waits, what to do. everything: the tables too."""
    page = Page(width, colour)
    _verdict(report, page, everything)
    if everything:
        for part in (_roles, _gpus, _idle, _kernels, _kinds, _operators, _copies, _memory, _findings, _steps):
            part(report, page)
    return page.text()


def _verdict(report: Report, page: Page, everything: bool) -> None:
    page.line(_header(report, page.width), BOLD)
    page.lines.append(_bar(report["typical"]["breakdown_shares"], page))
    if not everything:
        shares = report["typical"]["breakdown_shares"]
        legend = [f"{mark} {name} {shares[role]:.0%}" for role, (name, mark, _) in ROLES.items()
                  if shares[role] >= LEAST_SHARE]  # fmt: skip
        page.wrapped("   ".join(entry.replace(" ", HARD_BLANK) for entry in legend), 0)
    page.wrapped(verdict(report), 0)
    shown = report["advice"] if everything else report["advice"][:BEST]
    if shown:
        page.line()
        _advice(report, shown, page, everything)
        page.line()
    closing = together(report, shown) if everything else together(report, shown)[-1:]
    closing += [how_sure(shown)] if shown else []
    closing += [] if everything else ["More: --all"]
    page.wrapped(" ".join(closing), 0)


def _bar(shares: Mapping[str, float], page: Page) -> str:
    """A bar as wide as the page, divided by role."""
    bar, column = "", 0.0
    for role, (_, mark, colour) in ROLES.items():
        begin, column = round(column), column + shares[role] * page.width
        part = mark * (round(column) - begin)
        bar += painted(part, colour) if page.colour and part else part
    return bar


def verdict(report: Report) -> str:
    """Where the time goes and why the GPU is idle; without advice also what is left to try, or why there is none."""
    bound = report["bound"] if report["advice"] else report["verdict"]
    return " ".join(filter(None, map(sentence, (bound, report["why_idle"]))))


def together(report: Report, advice: Sequence[Mapping[str, Any]]) -> list[str]:
    """What several of these pieces of advice gain together, by their numbers."""
    numbers = {item["id"]: str(number) for number, item in enumerate(advice, start=1)}
    return [
        f"{' + '.join(numbers[id] for id in combination['ids'])} together: {combination['gain']}."
        for combination in report["combined"]
        if set(combination["ids"]) <= numbers.keys()
    ]


def _header(report: Report, width: int) -> str:
    """The file, its device, its steps and how long they take; a long file name is shortened in its middle."""
    facts = f" · {printable(report['device'], 60)} · {steps_text(report)}"
    name, room = printable(PurePath(report["file"]).name, 200), max(width - len(facts), 20)
    if len(name) > room:
        name = f"{name[: room // 2 - 1]}…{name[-(room - room // 2) :]}"
    return name + facts


def steps_text(report: Report) -> str:
    """How many steps there are, and how long the typical ones are: their mean, and range if that is over 5 %."""
    steps, typical, outliers = report["steps"], report["typical"], report["steps"]["outliers"]
    mean = time_text(typical["mean_us"])
    if not steps["marked"]:
        return f"no step marks: {mean} in all"
    if not steps["whole"]:
        return f"no whole step: {mean} recorded"
    least, most = (time_text(typical[key]) for key in ("least_us", "most_us"))
    if least.split()[1] == most.split()[1]:
        least = least.split()[0]
    spread = f" ({least} to {most})" if typical["most_us"] > 1.05 * typical["least_us"] else ""
    if outliers:
        return (
            f"{typical['count']} typical of {steps['count']} steps, {mean}{spread}; all: {time_text(steps['mean_us'])}"
        )
    if steps["count"] == 1:
        return f"step {printable(steps['names'][0], 20)}, {mean}"
    return f"{steps['count']} steps of {mean}{spread}"


def sentence(text: str) -> str:
    """With a capital letter at its begin, unless that is a name in code, and a full stop at its end; "" for ""."""
    if not text:
        return ""
    is_code = re.match(r"\S*[._=(]\S", text)
    return f"{text[0] if is_code else text[0].upper()}{text[1:]}{'.' * (text[-1] not in '.!?…')}"


def how_sure(advice: Sequence[Mapping[str, Any]]) -> str:
    """What the gains of these pieces of advice are, in a sentence or two."""
    if not advice[0]["gain"]:
        return f"Try first: {advice[0]['title']}. The gain cannot be estimated here; measure it."
    gains = " ".join(item["gain"] for item in advice)
    words = ["Estimates replay this trace without that cost;"] if "about" in gains or " to " in gains else []
    words += ["at most: with that cost gone and all else as it is;"] if "at most" in gains else []
    return sentence(" ".join([*words, "`walkthrough time` measures"]))


def _advice(report: Report, advice: Sequence[Mapping[str, Any]], page: Page, everything: bool) -> None:
    """A line for each piece of advice, and its evidence: what fits into one line, or all of it."""
    titles, gains = max(len(item["title"]) for item in advice), max(len(item["gain"]) for item in advice)
    for number, item in enumerate(advice, start=1):
        step = f"step {item['step'][:2]}" if item["step"] else ""
        page.line(f"{number:2}  {item['title']:{titles}}  {item['gain']:{gains}}  {step}", BOLD)
        if not everything:
            page.line(f"    {_one_line(item['why'], page.width - 4)}")
            continue
        page.wrapped(sentence(item["why"]), 4)
        page.wrapped(sentence(item["do"]), 4, GREEN)
        for finding in report["findings"]:
            if finding["cost"] == item["id"] and finding["why"] != item["why"]:
                page.wrapped(sentence(printable(finding["why"], 600)), 4)
                page.wrapped(sentence("" if item["do"] else finding["do"]), 4, GREEN)


def _one_line(text: str, width: int) -> str:
    """As many of its clauses as fit into a line, else as many letters."""
    while len(text) >= width and "; " in text:
        text = text.rpartition("; ")[0]
    return printable(sentence(text), width)


def _roles(report: Report, page: Page) -> None:
    typical, meanings = report["typical"], report["meanings"]["roles"]
    page.title(f"{'One step' if report['steps']['marked'] else 'This trace'} by role")
    page.table(
        [
            [mark, role, time_text(us), share_text(typical["breakdown_shares"][role]), meanings[role]]
            for role, (_, mark, _) in ROLES.items()
            if is_some(us := typical["breakdown_us"][role])
        ],
        "llrrl",
    )


def is_some(us: float) -> bool:
    """Whether a time is more than "0.0 us"."""
    return time_text(us) != time_text(0.0)


def _gpus(report: Report, page: Page) -> None:
    if not report["gpus"]:
        return
    units = report["matrix_units"]
    page.title(f"GPU{'s' * (len(report['gpus']) > 1)}, all {report['steps']['count']} steps"
               if report["steps"]["outliers"] else f"GPU{'s' * (len(report['gpus']) > 1)}")  # fmt: skip
    rows = [["", "busy", "SMs at work", "occupancy", units, "name"]]
    for gpu in report["gpus"]:
        unsure = f" (unknown: {gpu['unsure']:.1%})" if gpu["unsure"] >= 0.005 else ""
        occupancy = "-" if gpu["occupancy_percent"] is None else f"{gpu['occupancy_percent']:.1f}%"
        shares = share_text(gpu["utilization"]), share_text(gpu["sm_efficiency"]), occupancy
        tensor = share_text(gpu["tensor_core_share"]) + unsure
        rows.append([f"GPU {gpu['id']}", *shares, tensor, printable(gpu["name"] or "", 40)])
    page.table(rows, "lrrrrl", headed=True)
    eligible = report["eligible_kernel_share"]
    could = "" if eligible is None else f" {eligible:.1%} of it is in operators that could use them."
    page.wrapped(
        f"busy: a kernel runs. SMs and occupancy are estimates. {units}: of the time of operators' and CUDA graphs' "
        f"kernels.{could}",
        2,
        DIM,
    )
    if collectives := report["typical"]["communication"]:
        page.wrapped(
            f"collectives: {count_text(collectives['count'])} {report['per']}, {time_text(collectives['us'])}, "
            f"{time_text(collectives['hidden_us'])} of it overlapped by other kernels; TensorBoard counts them as "
            "kernels"
        )


def _idle(report: Report, page: Page) -> None:
    for idle in report["idle"]:
        if not is_some(idle["us"]):
            continue
        page.title(f"GPU {idle['gpu']} runs no kernel for {time_text(idle['us'])} {report['per']}; meanwhile")
        page.table(
            [
                [cause, time_text(idle["causes_us"][cause]), share_text(idle["cause_shares"][cause]), meaning]
                for cause, meaning in report["meanings"]["causes"].items()
                if idle["cause_shares"][cause] > 0.0005 and is_some(idle["causes_us"][cause])
            ],
            "lrrl",
        )
        for line in idle["notes"]:
            page.wrapped(line, 2, DIM)


def _kernels(report: Report, page: Page) -> None:
    typical = report["typical"]
    if typical["kernels"]:
        count, us = count_text(typical["kernel_count"]), time_text(typical["kernel_us"])
        page.title(f"Kernels: {count} {report['per']}, {us}")
        units = "".join(word[0] for word in report["matrix_units"].upper().split())
        uses = {True: "yes", False: "no", None: "?"}
        rows = [
            [*_times(kernel), uses[kernel["tensor_cores"]], printable(kernel["short"])] for kernel in typical["kernels"]
        ]
        page.table([["time", "share", "count", "mean", units, "name"], *rows], "rrrrll", headed=True)


def _operators(report: Report, page: Page) -> None:
    typical = report["typical"]
    if not typical["kernels"] and typical["operators"]:
        page.title(f"Operators on the CPU, self time: {time_text(typical['operator_us'])} {report['per']}")
        rows = [[*_times(row), printable(row["name"], page.width - 42)] for row in typical["operators"]]
        page.table([["time", "share", "count", "mean", "name"], *rows], "rrrrl", headed=True)


def _times(row: Mapping[str, Any]) -> list[str]:
    """Time, share, count and mean of what has a name."""
    return [time_text(row["us"]), share_text(row["share"]), count_text(row["count"]), time_text(row["mean_us"])]


def _kinds(report: Report, page: Page) -> None:
    typical = report["typical"]
    kinds = [f"{kind} {time_text(typical['kinds'][kind])} ({share:.1%})"
             for kind, share in typical["kind_shares"].items() if share >= 0.0005]  # fmt: skip
    if kinds:
        page.title(f"Kernels by kind, {report['per']}")
        page.wrapped(", ".join(kinds))


def _copies(report: Report, page: Page) -> None:
    copies = {name: row for name, row in report["typical"]["copies"].items() if row["count"]}
    if not copies:
        return
    page.title(f"Copies {report['per']}")
    rows = []
    for name, row in copies.items():
        kinds = [f"{kind} {row[f'{kind}_share']:.0%}" for kind in ("pinned", "pageable") if row[f"{kind}_share"]]
        speed = row["gigabytes_per_second"]
        rate = f"{speed:.1f} GB/s" if speed else ""
        rows.append([DIRECTIONS[name], count_text(row["count"]), size_text(row["bytes"]), time_text(row["us"]), rate])
        rows[-1].append(", ".join(kinds))
    page.table([["", "count", "size", "time", "speed", "host memory"], *rows], "lrrrrl", headed=True)


def _memory(report: Report, page: Page) -> None:
    devices = [memory for memory in report["memory"]["devices"]
               if max(memory["peak_allocated"] or 0, abs(memory["growth"])) >= LEAST_BYTES]  # fmt: skip
    # The allocator numbers the GPUs that the process sees, HIP's events those of the machine.
    one = len(report["gpus"]) == 1 == sum(memory["device"] != CPU for memory in report["memory"]["devices"])
    for number, memory in enumerate(devices):
        if not number:
            page.title("Memory")
        label = "CPU" if memory["device"] == CPU else f"GPU {report['gpus'][0]['id'] if one else memory['device']}"
        growth = f"grew {size_text(memory['growth'])} while tracing"
        if memory["peak_allocated"] is None:
            page.wrapped(f"{label}: {growth}; this trace does not record totals")
            continue
        reserved = f", reserved {size_text(memory['peak_reserved'])}" if memory["peak_reserved"] else ""
        page.wrapped(f"{label}: peak {size_text(memory['peak_allocated'])}{reserved}; {growth}")
        if memory["at_peak"]:
            page.wrapped("top allocations at the peak, of those made while tracing, by operator:", 2, DIM)
            rows = [[size_text(size), printable(name, 60)] for name, size in memory["at_peak"][:TOP_ALLOCATIONS]]
            page.table(rows, "rl")


def further_findings(report: Report) -> list[Mapping[str, Any]]:
    """What stands out and is said neither by the advice nor of the steps that are left out."""
    said = {item["id"] for item in report["advice"]} | {OUTLIERS}
    return [finding for finding in report["findings"] if finding["cost"] not in said]


def gain_without(finding: Mapping[str, Any]) -> str:
    """How many times as fast the steps would be without it; "" where that is unknown or little."""
    gain = finding["estimated_gain"] or 0.0
    return f"; about {gain:.2f}x without" if SMALLEST_GAIN <= gain < LARGEST_GAIN else ""


def _findings(report: Report, page: Page) -> None:
    for number, finding in enumerate(further_findings(report)):
        if not number:
            page.title("What else stands out")
        time = f": {time_text(finding['us_per_step'])} {report['per']}" if is_some(finding["us_per_step"]) else ""
        page.wrapped(f"{finding['what']}{time}{gain_without(finding)}", 2, BOLD)
        page.wrapped(sentence(printable(finding["why"], 600)), 4)
        page.wrapped(sentence(finding["do"]), 4, GREEN)


def _steps(report: Report, page: Page) -> None:
    if lines := steps_lines(report):
        page.title("Steps")
    for line in lines:
        page.wrapped(sentence(line))


def steps_lines(report: Report) -> list[str]:
    """Which steps are left out and why, and what was recorded of the program beside its events."""
    todo = [finding["do"] for finding in report["findings"] if finding["cost"] == OUTLIERS]
    left_out = [outlier["why"] for outlier in report["steps"]["outliers"]]
    return [*left_out, *todo, *filter(None, [report["of_which_steps"]]), *report["recorded"]]


def change_text(
    before: Report, after: Report, change: Mapping[str, Any], width: int = SCREEN_WIDTH, colour: bool = False
) -> str:
    """Two traces side by side: first the step times by role, then the numbers of both. change: `comparison.change`."""
    page = Page(width, colour)
    for label, report in (("before", before), ("after", after)):
        page.line(f"{label:6}  {_header(report, width - 8)}", BOLD)
    if change["caution"]:
        page.wrapped(sentence(change["caution"]), 0, YELLOW)
    if change["speed"]:
        page.wrapped(f"After: {change['speed']}, under the profiler. {MEASURE}", 0)
    page.line()
    rows = [["typical step", *_moved(before["typical"]["mean_us"], after["typical"]["mean_us"])]]
    rows += [[ROLES[row["name"]][0], *_moved(row["before_us"], row["after_us"])] for row in change["moved"]
             if row["before_us"] or row["after_us"]]  # fmt: skip
    rows += [
        [
            row["name"],
            *("-" if row[side] is None else UNITS[row["unit"]](row[side]) for side in ("before", "after")),
            "",
        ]
        for row in change["figures"]
    ]
    page.table([["", "before", "after", "change"], *rows], "lrrr", headed=True)
    page.line()
    page.wrapped(f"Now: {after['verdict']}", 0, BOLD)
    return page.text()


def _moved(was: float, now: float) -> list[str]:
    difference = time_text(abs(now - was))
    sign = "" if not is_some(abs(now - was)) else "+" if now > was else "-"
    return [time_text(was), time_text(now), sign + difference]


def ranks_text(
    reports: Mapping[int, Report], ranks: Mapping[str, Any], width: int = SCREEN_WIDTH, colour: bool = False
) -> str:
    """A row for each rank of one training, and what their comparison says. ranks: `comparison.ranks`."""
    page = Page(width, colour)
    page.line(f"{len(reports)} ranks; {ranks['difference']}", BOLD)
    page.table(
        [
            ["rank", "GPU", "step", "kernel", "busy", "collectives", "exposed", "DataLoader", "no kernel"],
            *(_rank(row, reports[row["rank"]]) for row in ranks["ranks"]),
        ],
        "lrrrrrrrr",
        headed=True,
    )
    for rank, report in reports.items():
        for step in report["steps"]["outliers"]:
            doing = f", {step['doing']}" if step["doing"] else ""
            page.wrapped(f"rank {rank}, step {printable(step['name'], 20)}{doing}: {time_text(step['us'])}, and not in "
                         "the table", 2, YELLOW)  # fmt: skip
    page.line()
    page.wrapped(f"Rank {ranks['first']}: {printable(ranks['verdict'])}. `explain` its trace to see more.", 0)
    for row in ranks["first_advice"]:
        alone = len(ranks["first_advice"]) == 1
        of = "every rank" if alone else f"rank {', '.join(map(str, row['ranks']))}"
        why = "" if alone else f", since {row['why']}"
        page.wrapped(f"First on {of}: {row['title']}{why}.", 0)
    if ranks["advice"]:
        page.wrapped(f"Overlap communication: {ranks['advice']}.", 0, BOLD)
    page.wrapped("A rank that others wait for shows little time in collectives; those that wait show much.", 0, DIM)
    return page.text()


def _rank(row: Mapping[str, Any], report: Report) -> list[str]:
    gpus, waits = report["gpus"], [idle["us"] for idle in report["idle"]]
    return [
        str(row["rank"]),
        ", ".join(str(gpu["id"]) for gpu in gpus) or "-",
        time_text(row["step_us"]),
        time_text(row["parts"]["kernel"]),
        share_text(sum(gpu["utilization"] for gpu in gpus) / len(gpus) if gpus else None),
        time_text(row["collectives_us"]) if row["communicates"] else "-",
        time_text(row["exposed_us"]) if row["communicates"] else "-",
        time_text(row["parts"]["dataloader"]),
        time_text(sum(waits) / len(waits)) if waits else "-",
    ]
