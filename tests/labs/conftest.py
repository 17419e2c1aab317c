"""What tests of several files of a lab share."""

import pytest

from labs.scale import drawing, jpegs


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """A folder of 96 training pictures of 4 classes, small ones, and 19 for validation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "SIDES", (70, 130))
        patch.setattr(drawing, "LARGE_SIDE", 200)
        patch.setattr(jpegs, "usable_cores", lambda: 1)
        return jpegs.drawn_folder(tmp_path_factory.mktemp("jpegs") / "drawn", images=96, classes=4)
