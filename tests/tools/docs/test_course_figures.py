"""The course's figures: for each record those that it has the data for, and numbers that can be computed by hand."""

import pytest
from support import CPU_RECORD

from tools.docs import figures, recorded
from walkthrough.compare.figures import svg_text

pytestmark = pytest.mark.xdist_group("course")
OF_STUDIES = {"roofline": "limit", "ablation": "ablation", "sweep": "sweep"}


def test_each_record_has_the_figures_that_it_has_the_data_for(generated):
    for shown in recorded.records():
        stems = {path.stem for path in generated if path.suffix == ".svg" and path.parent.name == shown.folder.name}
        of_gpu = {"idle"} if shown.device_type == "cuda" else set()
        of_studies = {name for name, study in OF_STUDIES.items() if shown.study(study)}
        assert stems == {"ladder", "breakdown", "memory", "predicted"} | of_gpu | of_studies


def test_figures_follow_the_readers_theme_and_hold_no_date_or_path(generated):
    drawn = {path: text for path, text in generated.items() if path.suffix == ".svg"}
    assert drawn
    for path, text in drawn.items():
        assert "prefers-color-scheme:dark" in text, path
        assert "currentColor" in text
        assert "dc:date" not in text
        assert len(text) < 250_000


def test_every_figure_is_the_same_text_each_time_and_has_alternative_text(course, gpu_course):
    for name, draw in figures.FIGURES.items():
        shown = (course if name in OF_STUDIES else gpu_course).shown
        figure, text = draw(shown)
        assert svg_text(figure) == svg_text(draw(shown)[0]), name
        assert len(text) > 40


def test_the_parts_of_an_image_add_up_to_its_share_of_the_step(course):
    [cpu] = [shown for shown in course.records if shown.folder.name == CPU_RECORD]
    parts = figures.per_image_ms(cpu)
    for step, analysis in cpu.analyses.items():
        batch_size = cpu.row(step).result.batch_size
        assert sum(parts[step].values()) == pytest.approx(analysis.steps.mean_us / 1e3 / batch_size)


def test_the_specimens_parts_are_known(gpu_course):
    # of 1000 us per step with 32 images, its GPU computes 400 us and waits 300 us for the loader
    assert figures.per_image_ms(gpu_course.shown)["00_baseline"]["kernel"] == pytest.approx(0.4 / 32)
    assert figures.idle_per_image_ms(gpu_course.shown)["00_baseline"]["dataloader"] == pytest.approx(0.3 / 32)
