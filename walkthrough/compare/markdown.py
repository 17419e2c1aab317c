"""Names that pages still import from here; they are in `table` and `ladder`."""

from walkthrough.compare.ladder import page_table as ladder_table  # noqa: F401
from walkthrough.compare.table import code as code
from walkthrough.compare.table import escaped as escaped
from walkthrough.compare.table import markdown_table as table  # noqa: F401
