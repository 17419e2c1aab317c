"""The text of `explain`: one report, two of them, or those of a training's ranks; see `advice.report.report`.

The default is a verdict on one screen. Names from a trace pass through `printable`: none can control the terminal.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from walkthrough.explain.tables import Table, is_some, tables
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
LEAST_NAME = 20  # letters of a file's name
BEST = 3  # pieces of advice in the verdict
SMALLEST_GAIN = 1.02  # times faster: less is not printed
LARGEST_GAIN = 100  # times faster: more means that nothing else is in the step
MARKS = {"Optimizer.step": " by Optimizer.step,", "DataLoader": " by batches,"}  # that mark steps
FILE_SUFFIX = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$")
OUTLIERS = "outlier_steps"  # the cost that `steps_lines` are about
UNITS = {"share": share_text, "count": count_text, "bytes": size_text}
MEASURE = "`walkthrough time -- COMMAND --versus COMMAND` measures it."


def text(
    report: Report, everything: bool = False, width: int = SCREEN_WIDTH, colour: bool = False, more: str = ""
) -> str:
    """A trace on one screen: where a step's time goes, why the GPU waits, what to do.

    everything: the tables too. more: the command that prints them, of a trace that is printed as soon as it is written:
    then also how it was traced.
    """
    page = Page(width, colour)
    _verdict(report, page, everything, more)
    if everything:
        for table in tables(report):
            _table(table, page)
        _findings(report, page)
        if lines := steps_lines(report):
            page.title("Steps")
        for line in lines:
            page.wrapped(sentence(line))
    return page.text()


def _verdict(report: Report, page: Page, everything: bool, more: str) -> None:
    page.line(_header(report, page.width), BOLD)
    shares = report["typical"]["breakdown_shares"]
    parts = _bar(shares, page.width)
    page.lines.append("".join(painted(part, ROLES[role][2]) if page.colour else part for role, part in parts.items()))
    legend = [f"{ROLES[role][1]} {ROLES[role][0]} {max(shares[role], 0.01):.0%}" for role in parts]
    page.wrapped("   ".join(entry.replace(" ", HARD_BLANK) for entry in legend), 0)
    page.wrapped(verdict(report), 0)
    shown = numbered(report, everything)
    if shown:
        page.line()
        _advice(report, shown, page, everything)
        page.line()
    closing = together(report, everything)
    closing += [how_sure(shown.values(), report["steps"]["stacks"])] if shown else []
    closing += [] if everything else [f"More: {more or '--all'}".replace(" ", HARD_BLANK)]
    page.wrapped(" ".join(closing), 0)
    if more and report["recording_summary"]:
        page.wrapped(sentence(report["recording_summary"]["text"]), 0)


def _bar(shares: Mapping[str, float], width: int) -> dict[str, str]:
    """A bar of that width, divided by role; without those that have no place in it."""
    parts, column = {}, 0.0
    for role, (_, mark, _) in ROLES.items():
        begin, column = round(column), column + shares[role] * width
        parts[role] = mark * (round(column) - begin)
    return {role: part for role, part in parts.items() if part}


def verdict(report: Report) -> str:
    """Where the time goes and why the GPU is idle; without advice also what is left to try, or why there is none."""
    bound = report["bound"] if report["advice"] else report["verdict"]
    return " ".join(filter(None, map(sentence, (bound, report["why_idle"]))))


def numbered(report: Report, everything: bool) -> dict[int, Mapping[str, Any]]:
    """The pieces of advice that are printed, by their numbers: the first ones, and what is combined with them."""
    combined = {id for combination in report["combined"][-1:] for id in combination["ids"]}
    advice = dict(enumerate(report["advice"], start=1))
    return {number: item for number, item in advice.items() if everything or number <= BEST or item["id"] in combined}


def together(report: Report, everything: bool) -> list[str]:
    """What several pieces of advice gain together, by their numbers: the most of them, or each combination."""
    numbers = {item["id"]: str(number) for number, item in enumerate(report["advice"], start=1)}
    return [
        f"{' + '.join(numbers[id] for id in combination['ids'])} together: {combination['gain']}."
        for combination in report["combined"][0 if everything else -1 :]
    ]


def _header(report: Report, width: int) -> str:
    """The file, its device, its steps and how long they take; a long file's name is shortened in its middle."""
    name = printable(PurePath(report["file"]).name, 200)
    facts = f" · {printable(report['device'], 60)} · {steps_text(report)}"
    if len(facts) > width - min(LEAST_NAME, len(name)):
        facts = re.sub(r" \([^()]*\)(?=$|;)", "", facts)  # without the range
    room = max(width - len(facts), LEAST_NAME)
    if len(name) > room:
        name = FILE_SUFFIX.sub("", name)
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
    return f"{steps['count']} steps{MARKS.get(steps['marked_by'], ' of')} {mean}{spread}"


def sentence(text: str) -> str:
    """With a capital letter at its begin, unless that is a name in code, and a full stop at its end; "" for ""."""
    if not text:
        return ""
    is_code = re.match(r"\S*[._=(]\S", text)
    return f"{text[0] if is_code else text[0].upper()}{text[1:]}{'.' * (text[-1] not in '.!?…')}"


def how_sure(advice: Iterable[Mapping[str, Any]], stacks: bool) -> str:
    """What the gains of these pieces of advice are, in some sentences. stacks: whether they were recorded."""
    first, *others = advice
    gains = " ".join(item["gain"] for item in (first, *others))
    sentences = []
    if not first["gain"]:
        sentences.append(f"Try first: {first['title']}. The gain cannot be estimated here; measure it.")
    if "about" in gains or " to " in gains:
        sentences.append("Estimates replay this trace without that cost; the lower number allows for their error.")
    if "at most" in gains:
        sentences.append("At most: with that cost gone and all else as it is.")
    if stacks:
        sentences.append("Recording Python's functions made the CPU slower.")
    return " ".join([*sentences, "To measure: walkthrough time -- COMMAND --versus COMMAND."])


def _advice(report: Report, advice: Mapping[int, Mapping[str, Any]], page: Page, everything: bool) -> None:
    """A line for each piece of advice, and its evidence: what fits into one line, or all of it."""
    titles, gains = (max(len(item[key]) for item in advice.values()) for key in ("title", "gain"))
    for number, item in advice.items():
        step = f"steps/{item['step'][:2]}" if item["step"] else ""
        page.line(f"{number:2}  {item['title']:{titles}}  {item['gain']:{gains}}  {step}", BOLD)
        if not everything:
            page.line(f"    {_one_line(item['why'], page.width - 4)}")
            if item["do"]:
                page.line(f"    {_one_line(item['do'], page.width - 4)}", GREEN)
            continue
        details = [finding["why"] for finding in report["findings"] if finding["cost"] == item["id"]]
        if not any(why.startswith(item["why"]) for why in details):
            details.insert(0, item["why"])
        for why in details:
            page.wrapped(sentence(printable(why, 600)), 4)
        page.wrapped(sentence(item["do"]), 4, GREEN)


def _one_line(text: str, width: int) -> str:
    """As many of its clauses as fit into a line, then parts of the first one, else as many letters."""
    while len(text) >= width and "; " in text:
        text = text.rpartition("; ")[0]
    if len(text) >= width:
        text = re.sub(r" \([^()]*\)", "", text)
    if len(text) >= width:
        heads = [text[: end.start()] for end in re.finditer("[,:] ", text[:width])]
        text = next((head for head in reversed(heads) if not _is_open(head)), text)
    return printable(sentence(text), width)


def _is_open(text: str) -> bool:
    """Whether it ends inside a bracket, or inside code."""
    return text.count("(") != text.count(")") or text.count("`") % 2 == 1


def _table(table: Table, page: Page) -> None:
    page.title(table.title)
    headers = [header.removeprefix(">") for header in table.headers]
    sides = "".join("r" if header.startswith(">") else "l" for header in table.headers)
    page.table([headers, *table.rows], sides, headed=True)
    for note in table.notes:
        page.wrapped(note, 2, DIM)


def further_findings(report: Report) -> list[Mapping[str, Any]]:
    """What stands out and is said neither by the advice nor of the steps that are left out."""
    said = {item["id"] for item in report["advice"]} | {OUTLIERS}
    return [finding for finding in report["findings"] if finding["cost"] not in said]


def gain_without(finding: Mapping[str, Any]) -> str:
    """How many times as fast the steps would be without it; "" where that is unknown or little."""
    gain = finding["estimated_gain"] or 0.0
    text = finding["gain"] or f"about {gain:.2f}x"
    return f"; {text} without" if SMALLEST_GAIN <= gain < LARGEST_GAIN else ""


def _findings(report: Report, page: Page) -> None:
    for number, finding in enumerate(further_findings(report)):
        if not number:
            page.title("What else stands out")
        time = f": {time_text(finding['us_per_step'])} {report['per']}" if is_some(finding["us_per_step"]) else ""
        page.wrapped(f"{finding['what']}{time}{gain_without(finding)}", 2, BOLD)
        page.wrapped(sentence(printable(finding["why"], 600)), 4)
        page.wrapped(sentence(finding["do"]), 4, GREEN)


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
    page.wrapped(sentence(ranks["advice"]), 0, BOLD)
    has_gpu = any(report["gpus"] for report in reports.values())
    rows = [_rank(row, reports[row["rank"]], has_gpu) for row in ranks["ranks"]]
    page.table([list(rows[0]), *(list(row.values()) for row in rows)], "l" + "r" * (len(rows[0]) - 1), headed=True)
    for line in _left_out(reports):
        page.wrapped(line, 2, YELLOW)
    page.line()
    page.wrapped(f"Rank {ranks['first']}: {printable(ranks['verdict'])}. `explain` its trace to see more.", 0)
    for row in ranks["first_advice"]:
        alone = len(row["ranks"]) == len(reports)
        of = "every rank" if alone else f"rank{'s' * (len(row['ranks']) > 1)} {', '.join(map(str, row['ranks']))}"
        why = "" if alone else f", since {row['why']}"
        page.wrapped(f"First on {of}: {row['title']}{why}.", 0)
    page.wrapped("A rank that others wait for shows little time in collectives; those that wait show much.", 0, DIM)
    return page.text()


def _left_out(reports: Mapping[int, Report]) -> list[str]:
    """The steps that are not in the table, each with its ranks."""
    times = dict[tuple[str, str], dict[int, float]]()
    for rank, report in reports.items():
        for step in report["steps"]["outliers"]:
            times.setdefault((step["name"], step["doing"]), {})[rank] = step["us"]
    lines = []
    for (name, doing), us in times.items():
        of = "every rank" if len(us) == len(reports) else f"rank{'s' * (len(us) > 1)} {', '.join(map(str, us))}"
        least, most = time_text(min(us.values())), time_text(max(us.values()))
        spread = least if least == most else f"{least} to {most}"
        lines.append(f"not in the table: step {printable(name, 20)} of {of}, {doing + ', ' if doing else ''}{spread}")
    return lines


def _rank(row: Mapping[str, Any], report: Report, has_gpu: bool) -> dict[str, str]:
    """A rank's cells by their columns' names. has_gpu: whether a rank has one."""
    gpus, waits, communicates = report["gpus"], [idle["us"] for idle in report["idle"]], row["communicates"]
    busy = sum(gpu["utilization"] for gpu in gpus) / len(gpus) if gpus else None
    cells = {
        "rank": str(row["rank"]),
        "GPU": ", ".join(str(gpu["id"]) for gpu in gpus) or "-",
        "step": time_text(row["step_us"]),
        "kernel": time_text(row["parts"]["kernel"]),
        "busy": share_text(busy),
        "collectives": time_text(row["collectives_us"]) if communicates else "-",
        "exposed": time_text(row["exposed_us"]) if communicates else "-",
        "DataLoader": time_text(row["parts"]["dataloader"]),
        "no kernel": time_text(sum(waits) / len(waits)) if waits else "-",
    }
    of_gpu = () if has_gpu else ("GPU", "kernel", "busy", "no kernel")
    return {name: cell for name, cell in cells.items() if name not in of_gpu}
