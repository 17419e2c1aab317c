"""A report as one self-contained page, and its verdict and bar for notebooks: HTML and SVG without any script.

All texts from a trace are escaped; nothing is loaded from anywhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path, PurePath
from typing import Any

from walkthrough.explain.tables import Table, tables
from walkthrough.explain.text import (
    ROLES,
    further_findings,
    gain_without,
    how_sure,
    numbered,
    sentence,
    steps_lines,
    steps_text,
    together,
    verdict,
)
from walkthrough.results.errors import printable
from walkthrough.terminal import micro_sign, time_text

Report = Mapping[str, Any]

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c3e", "#7a68c4", "#a35d3d", "#8a8a8a")
ROLE_COLOURS = dict(zip(ROLES, (COLOURS[at] for at in (2, 1, 6, 3, 4, 5, 0, 9)), strict=True))
GROUP_COLOURS = {  # of the strip: those of the bar where they are the same
    "DataLoader": ROLE_COLOURS["dataloader"],
    "operators": ROLE_COLOURS["cpu_exec"],
    "to the GPU": ROLE_COLOURS["memcpy"],
    "waits for the GPU": COLOURS[9],
}
LEAST_SHARE = 0.005  # of a step: roles that take less are not in the legend of its bar
WIDTH, LANE = 1000, 46  # of a lane of the strip, in its own units
STYLE = """
.walkthrough { font: 15px/1.5 system-ui, sans-serif; max-width: 1040px; }
.walkthrough svg { width: 100%; height: auto; display: block; margin: 6px 0; }
.walkthrough i { display: inline-block; width: 11px; height: 11px; margin: 0 5px 0 0; }
.walkthrough .legend span { margin-right: 16px; white-space: nowrap; }
.walkthrough .quiet { opacity: .72; }
.walkthrough ol b { margin-right: 10px; }
.walkthrough table { border-collapse: collapse; display: block; overflow-x: auto; }
.walkthrough td, .walkthrough th { padding: 2px 14px 2px 0; text-align: left; font-weight: normal; background: none; }
.walkthrough th { opacity: .72; }
.walkthrough .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; background: #fff; color: #1f1f1f; }}
@media (prefers-color-scheme: dark) {{ :root {{ background: #1f1f1f; color: #ececec; }} }}
body {{ margin: 24px; display: flex; justify-content: center; }}
h1 {{ font-size: 19px; overflow-wrap: anywhere; }} h2 {{ font-size: 16px; margin: 28px 0 6px; }}
{style}</style></head><body><main class="walkthrough">
{body}
</main></body></html>
"""


def write_page(report: Report, path: Path) -> None:
    """Write the page of a report (see `advice.page_of`), whole or not at all. Raises InputError."""
    from walkthrough.results.result import write_whole

    write_whole(path, page(report))


def page(report: Report) -> str:
    """A whole page: the verdict, a typical step, the advice and the tables."""
    name = escape(printable(PurePath(report["file"]).name, 200))
    warnings = [f"<p><b>{_words(sentence(line))}</b></p>" for line in report["warnings"]]
    parts = [f"<h1>{name}</h1>", *warnings, _verdict(report), _strip(report), _advice(report, True), _findings(report)]
    lines = [f"<p>{_words(sentence(line))}</p>" for line in steps_lines(report)]
    parts += [*map(_table, tables(report)), "".join([_title("Steps"), *lines]) if lines else ""]
    return PAGE.format(title=f"{name}: explained", style=STYLE, body="\n".join(filter(None, parts)))


def fragment(report: Report) -> str:
    """The verdict, the bar and the best advice, for a notebook."""
    return f'<style>{STYLE}</style><div class="walkthrough">{_verdict(report)}{_advice(report, False)}</div>'


def _words(text: str) -> str:
    return escape(micro_sign(printable(text, 1000)))


def _verdict(report: Report) -> str:
    device = f"{_words(report['device'])} · {_words(steps_text(report))}"
    shares = report["typical"]["breakdown_shares"]
    parts, column = [], 0.0
    for role, (name, _, _) in ROLES.items():
        width = shares[role] * WIDTH
        label = f"<title>{name} {shares[role]:.1%}</title>"
        parts.append(
            f'<rect x="{column:.1f}" width="{width:.1f}" height="24" fill="{ROLE_COLOURS[role]}">{label}</rect>'
        )
        column += width
    legend = {f"{name} {shares[role]:.0%}": ROLE_COLOURS[role] for role, (name, _, _) in ROLES.items()
              if shares[role] >= LEAST_SHARE}  # fmt: skip
    bar = f'<svg viewBox="0 0 {WIDTH} 24" preserveAspectRatio="none" style="height:24px">{"".join(parts)}</svg>'
    return f"<div class=quiet>{device}</div>{bar}{_legend(legend)}<p>{_words(verdict(report))}</p>"


def _legend(colours: Mapping[str, str]) -> str:
    entries = "".join(
        f'<span><i style="background:{colour}"></i>{_words(name)}</span>' for name, colour in colours.items()
    )
    return f'<div class="legend">{entries}</div>'


def _advice(report: Report, everything: bool) -> str:
    advice = numbered(report, everything)
    if not advice:
        return ""
    items = []
    for number, item in advice.items():
        step = f" (step {item['step'][:2]})" if item["step"] else ""
        words = f"{sentence(item['why'])} {sentence(item['do'])}" if everything else sentence(item["why"])
        items.append(
            f"<li value={number}><b>{_words(item['title'])}</b>{_words(item['gain'] + step)}<br>{_words(words)}</li>"
        )
    closing = " ".join([*together(report, everything), how_sure(advice.values(), report["steps"]["stacks"])])
    return f"{_title('What to do') if everything else ''}<ol>{''.join(items)}</ol><p class=quiet>{_words(closing)}</p>"


def _findings(report: Report) -> str:
    items = [
        f"<li><b>{_words(finding['what'])}</b>{time_text(finding['us_per_step'])} {report['per']}"
        f"{gain_without(finding)}<br>{_words(sentence(finding['why']))} {_words(sentence(finding['do']))}</li>"
        for finding in further_findings(report)
    ]
    return f"{_title('What else stands out')}<ol>{micro_sign(''.join(items))}</ol>" if items else ""


def _strip(report: Report) -> str:
    """A typical step: a lane for the CPU and for each GPU's kernels and copies, stacked by what they do."""
    strip, lanes = report["strip"], []
    for lane, groups in strip["lanes"].items():
        free = iter([colour for colour in COLOURS if colour not in {GROUP_COLOURS.get(name) for name in groups}])
        legend, paths = {name: GROUP_COLOURS.get(name) or next(free) for name in groups}, []
        below = [0.0] * len(next(iter(groups.values())))
        for name, shares in groups.items():
            above = [min(low + share, 1.0) for low, share in zip(below, shares, strict=True)]
            paths.append(f'<path d="{_area(below, above)}" fill="{legend[name]}"><title>{_words(name)}</title></path>')
            below = above
        paths.append(f'<path d="M0 {LANE}H{WIDTH}" stroke="currentColor" opacity=".4"/>')
        svg = f'<svg viewBox="0 0 {WIDTH} {LANE + 1}" role="img" aria-label="{_words(lane)}">{"".join(paths)}</svg>'
        lanes.append(f"<div class=quiet>{_words(lane)}</div>{svg}{_legend(legend)}")
    title = f"Step {strip['step']}, {time_text(strip['us'])}" if report["steps"]["marked"] else "This trace"
    return _title(title) + "".join(lanes)


def _area(below: Sequence[float], above: Sequence[float]) -> str:
    """The path of what lies between two stepped lines of heights 0..1; equal neighbours are one box."""
    width, boxes, begin = WIDTH / len(below), [], 0
    for end in range(1, len(below) + 1):
        if end < len(below) and (below[end], above[end]) == (below[begin], above[begin]):
            continue
        if (height := (above[begin] - below[begin]) * LANE) > 0:
            left, top = begin * width, (1 - above[begin]) * LANE
            boxes.append(f"M{left:.1f} {top:.1f}h{(end - begin) * width:.1f}v{height:.1f}H{left:.1f}z")
        begin = end
    return "".join(boxes)


def _title(text: str) -> str:
    return f"<h2>{_words(text)}</h2>"


def _table(table: Table) -> str:
    numeric = [' class="n"' if header.startswith(">") else "" for header in table.headers]

    def row(cells: Iterable[str], tag: str) -> str:
        shown = (f"<{tag}{of}>{_words(cell)}</{tag}>" for of, cell in zip(numeric, cells, strict=True))
        return f"<tr>{''.join(shown)}</tr>"

    head = row((header.removeprefix(">") for header in table.headers), "th")
    body = "".join(row(cells, "td") for cells in table.rows)
    notes = "".join(f"<p class=quiet>{_words(note)}</p>" for note in table.notes)
    return f"{_title(table.title)}<table>{head}{body}</table>{notes}"
