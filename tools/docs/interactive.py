"""The course's figures for a notebook: plotly's where it can run, the drawn ones where it cannot (GitHub, paper)."""

from collections.abc import Callable, Mapping

import plotly.graph_objects as go
from IPython.display import display

from studies.ablation import Ablation
from studies.effects import control, effects
from tools.docs import figures
from tools.docs.recorded import Recorded
from walkthrough.compare.figures import (
    GREY,
    MEMORY,
    SPEED,
    colour_of,
    interval_label,
    reach,
    short,
    step_label,
    svg_text,
)

PLOTLY = "application/vnd.plotly.v1+json"


def show(recorded: Recorded, name: str) -> None:
    """Display one of `FIGURES` of a `Recorded` in a notebook; a line of text where the record lacks what it shows."""
    drawing, figure = figures.FIGURES[name](recorded), FIGURES[name](recorded)
    if drawing is None or figure is None:
        print(figures.NOT_DRAWN[name])
        return
    drawn, text = drawing
    figure.update_layout(template="plotly_white", margin={"l": 10, "r": 10, "t": 50, "b": 40})
    display({PLOTLY: figure.to_plotly_json(), "image/svg+xml": svg_text(drawn), "text/plain": text}, raw=True)


def ladder(recorded: Recorded) -> go.Figure:
    """plotly's `figures.ladder`: times the baseline; the gain over the step before and the windows on hover."""
    rows, acting = recorded.ladder.rows, recorded.ladder.acting
    ratios = [row.relative for row in rows]
    below, above = reach((ratio.low, ratio.ratio, ratio.high) for ratio in ratios)
    details = [
        f"{row.result.samples_per_second.median:.1f} images/s<br>"
        + (f"{row.gain} the step before<br>" if row.gain else "")
        + "windows:<br>"
        + "<br>".join(f"{speed:.1f}" for speed in row.result.samples_per_second.windows)
        for row in rows
    ]
    bar = go.Bar(
        x=[step_label(row.result.step) + ("" if row in acting else f"<br>{row.needs}") for row in rows],
        y=[row.relative.ratio if row in acting else None for row in rows],
        error_y={"array": above, "arrayminus": below},
        text=[short(ratio) for ratio in ratios],
        textposition="inside",
        marker_color=[colour_of(ratio) for ratio in ratios],
        customdata=details,
        hovertemplate="%{x}: %{y:.2f}x the baseline<br>%{customdata}<extra></extra>",
    )
    title = f"times the baseline, {interval_label(recorded.ladder)}; grey, ~: no measurable difference"
    return go.Figure(bar).update_layout(title=title)


def breakdown(recorded: Recorded) -> go.Figure:
    """plotly's `figures.breakdown`: the parts of each traced step."""
    return _stacked(figures.per_image_ms(recorded), figures.COLOURS, "ms per image, traced")


def idle(recorded: Recorded) -> go.Figure | None:
    """plotly's `figures.idle`: why the GPU runs no kernel."""
    parts = figures.idle_per_image_ms(recorded)
    return _stacked(parts, figures.CAUSE_COLOURS, "ms per image without a kernel") if parts else None


def memory(recorded: Recorded) -> go.Figure:
    """plotly's `figures.memory`: what was allocated over the traced steps, all steps on one time axis."""
    figure = go.Figure().update_layout(title="memory allocated over the traced steps, MB", xaxis_title="ms")
    for step, analysis in recorded.analyses.items():
        if analysis.memory:
            time, allocated = figures.memory_curve(analysis.memory[0])
            figure.add_scatter(x=time.tolist(), y=allocated.tolist(), name=step_label(step), line={"width": 1})
    return figure


def predicted(recorded: Recorded) -> go.Figure:
    """plotly's `figures.predicted`: what each step gained, and the predicted bound."""
    rows = recorded.predictions
    steps, gains = [step_label(row.step) for row in rows], [row.gain for row in rows]
    below, above = reach((gain.low, gain.ratio, gain.high) for gain in gains)
    figure = go.Figure().update_layout(title="times as fast as the step before; grey: no measurable difference")
    figure.add_scatter(
        x=steps,
        y=[gain.ratio for gain in gains],
        error_y={"array": above, "arrayminus": below},
        mode="markers",
        name="measured",
        marker_color=[colour_of(gain) for gain in gains],
        text=[str(gain) for gain in gains],
    )
    bounds = [row.predicted_gain for row in rows]
    marks = {"symbol": "line-ew-open", "size": 24, "color": figures.BOUND}
    figure.add_scatter(x=steps, y=bounds, mode="markers", name="predicted, at most", marker=marks)
    return figure


def ablation(recorded: Recorded) -> go.Figure | None:
    """plotly's `figures.ablation`: the effect of each optimisation alone and in the full ladder."""
    result = recorded.study("ablation")
    if not isinstance(result, Ablation):
        return None
    rows, noise = effects(result), control(result)
    figure = go.Figure().update_layout(title="times as fast, with its 95 % interval; grey: no measurable difference")
    names = [step_label(effect.optimisation) for effect in rows]
    for name, symbol, colour, heights, ratios in (
        ("control", "diamond", figures.BOUND, ["control"], [noise]),
        ("alone", "circle", SPEED, names, [effect.alone for effect in rows]),
        ("in the full ladder", "square", MEMORY, names, [effect.in_full for effect in rows]),
    ):
        drawn = [(height, ratio) for height, ratio in zip(heights, ratios, strict=True) if ratio]
        below, above = reach((ratio.low, ratio.ratio, ratio.high) for _, ratio in drawn)
        figure.add_scatter(
            x=[ratio.ratio for _, ratio in drawn],
            y=[height for height, _ in drawn],
            error_x={"array": above, "arrayminus": below},
            mode="markers",
            name=name,
            marker={
                "symbol": symbol, "size": 9, "color": [colour if ratio.resolved else GREY for _, ratio in drawn],
            },
        )  # fmt: skip
    figure.update_xaxes(type="log")
    return figure.update_yaxes(autorange="reversed")


FIGURES: dict[str, Callable[[Recorded], go.Figure | None]] = {
    figure.__name__: figure for figure in (ladder, breakdown, memory, idle, predicted, ablation)
}


def _stacked(parts: figures.Parts, colours: Mapping[str, str], title: str) -> go.Figure:
    steps = [step_label(step) for step in parts]
    figure = go.Figure().update_layout(barmode="stack", title=title)
    for name, colour in colours.items():
        values = [of_step[name] for of_step in parts.values()]
        if any(values):
            figure.add_bar(x=steps, y=values, name=name, marker_color=colour)
    return figure
