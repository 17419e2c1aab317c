"""The course's figures for a notebook: plotly's where it can run, the drawn ones where it cannot (GitHub, paper)."""

import plotly.graph_objects as go
from IPython.display import display

from common.course import figures
from common.ladder.compare import spread
from common.ladder.figures import GREY, MEMORY, SPEED, reach, step_label, svg_text
from common.studies.ablation.record import control, effects, noise_factor
from common.studies.sweep.figure import plotly_figure

PLOTLY = "application/vnd.plotly.v1+json"


def show(recorded, name):
    """Display one of `FIGURES` of a `Recorded` in a notebook; a line of text where its traces cannot tell."""
    drawn = figures.FIGURES[name](recorded)
    if drawn is None:
        print(f"{name}: the traces do not tell")
        return
    figure, told = drawn
    made = FIGURES[name](recorded).update_layout(template="plotly_white", margin={"l": 10, "r": 10, "t": 50, "b": 40})
    bundle = {PLOTLY: made.to_plotly_json(), "image/svg+xml": svg_text(figure), "text/plain": told}
    display(bundle, raw=True)


def ladder(recorded):
    """plotly's `figures.ladder`: images/s of each step, the windows on hover."""
    results = [row.result for row in recorded.ladder.rows]
    medians = [result.samples_per_second.median for result in results]
    low, high = zip(*(spread(result) for result in results), strict=True)
    below, above = reach(zip(low, medians, high, strict=True))
    windows = ["<br>".join(f"{speed:.1f}" for speed in result.samples_per_second.windows) for result in results]
    bar = go.Bar(
        x=[step_label(result.step) for result in results],
        y=medians,
        error_y={"array": above, "arrayminus": below},
        marker_color=SPEED,
        customdata=windows,
        hovertemplate="%{x}: %{y:.1f} images/s<br>windows:<br>%{customdata}<extra></extra>",
    )
    return go.Figure(bar).update_layout(title="images/s, with the range of the windows")


def breakdown(recorded):
    """plotly's `figures.breakdown`: what an image's share of a traced step is made of."""
    return _stacked(figures.per_image_ms(recorded), figures.COLOURS, "ms an image, traced")


def idle(recorded):
    """plotly's `figures.idle`: why the GPU runs no kernel."""
    return _stacked(figures.idle_per_image_ms(recorded), figures.CAUSE_COLOURS, "ms an image without a kernel")


def memory(recorded):
    """plotly's `figures.memory`: what was allocated over the traced steps, all steps on one time axis."""
    made = go.Figure().update_layout(title="memory allocated over the traced steps, MB", xaxis_title="ms")
    for step, summary in recorded.summaries.items():
        if summary.memory:
            time, allocated = figures.memory_curve(summary.memory[0])
            made.add_scatter(x=time.tolist(), y=allocated.tolist(), name=step_label(step), line={"width": 1})
    return made


def predicted(recorded):
    """plotly's `figures.predicted`: what each step gained, beside the most that was promised."""
    rows = recorded.predictions
    steps, gains = [step_label(row.step) for row in rows], [row.gain for row in rows]
    below, above = reach((gain.low, gain.ratio, gain.high) for gain in gains)
    made = go.Figure().update_layout(title="times as fast as the step before")
    made.add_scatter(
        x=steps,
        y=[gain.ratio for gain in gains],
        error_y={"array": above, "arrayminus": below},
        mode="markers",
        name="measured",
        marker_color=SPEED,
    )
    promised = [row.advice.predicted_gain if row.advice else None for row in rows]
    marks = {"symbol": "line-ew-open", "size": 24, "color": figures.PROMISE}
    made.add_scatter(x=steps, y=promised, mode="markers", name="predicted, at most", marker=marks)
    return made


def ablation(recorded):
    """plotly's `figures.ablation`: what each optimisation brings alone and in the full ladder."""
    found, noise = effects(recorded.ablation), control(recorded.ablation)
    made = go.Figure().update_layout(title="times as fast, with the range over the runs")
    for name, symbol, colour, ratios in (
        ("alone", "circle", SPEED, [effect.alone for effect in found]),
        ("in the full ladder", "square", MEMORY, [effect.in_full for effect in found]),
    ):
        drawn = [(effect, ratio) for effect, ratio in zip(found, ratios, strict=True) if ratio]
        below, above = reach((ratio.low, ratio.ratio, ratio.high) for _, ratio in drawn) or ([], [])
        made.add_scatter(
            x=[ratio.ratio for _, ratio in drawn],
            y=[step_label(effect.optimisation) for effect, _ in drawn],
            error_x={"array": above, "arrayminus": below},
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": 9, "color": colour},
        )
    if noise:
        made.add_vrect(1 / noise_factor(noise), noise_factor(noise), fillcolor=GREY, opacity=0.2, line_width=0)
    made.update_xaxes(type="log", title="grey: as far as the baseline from itself")
    return made.update_yaxes(autorange="reversed")


def sweep(recorded):
    """plotly's `figures.sweep`: images/s for each number of workers and batch size; cores and memory on hover."""
    return plotly_figure(recorded.sweep)


FIGURES = {made.__name__: made for made in (ladder, breakdown, memory, idle, predicted, ablation, sweep)}


def _stacked(parts, colours, title):
    steps = [step_label(step) for step in parts]
    made = go.Figure().update_layout(barmode="stack", title=title)
    for name, colour in colours.items():
        values = [each[name] for each in parts.values()]
        if any(values):
            made.add_bar(x=steps, y=values, name=name, marker_color=colour)
    return made
