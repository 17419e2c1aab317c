"""`python -m walkthrough COMMAND`: see `walkthrough.cli`."""

from walkthrough.cli import main

main()
