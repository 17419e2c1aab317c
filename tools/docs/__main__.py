"""`python -m tools.docs`: write the docs' tables and figures; with `--check`, only list those out of date."""

import sys

from tools.docs.pages import main

if __name__ == "__main__":
    main(sys.argv[1:])
