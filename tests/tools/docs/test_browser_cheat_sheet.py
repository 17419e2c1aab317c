"""The cheat sheet in a browser: it prints on one page."""

import re
import subprocess

import pytest

from tools.docs.screenshots import CHROMIUM

A4_POINTS = (595, 842)


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: apt install chromium, then make test-browser")
def test_the_cheat_sheet_prints_on_one_page_of_a4(site, tmp_path):
    printed = tmp_path / "cheat_sheet.pdf"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--no-pdf-header-footer"]
    page = (site / "cheat_sheet.html").as_uri()
    subprocess.run(
        [CHROMIUM, *options, f"--print-to-pdf={printed}", page], capture_output=True, timeout=120, check=True
    )
    content = printed.read_bytes()
    assert re.findall(rb"/Count (\d+)", content) == [b"1"]
    (box,) = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content)
    assert sorted(round(float(side)) for side in box) == pytest.approx(A4_POINTS, abs=2)
