"""What runs inside of a program can be imported as it is there."""

import sys

from support import ROOT

sys.path.insert(0, str(ROOT / "walkthrough" / "attach" / "site"))
