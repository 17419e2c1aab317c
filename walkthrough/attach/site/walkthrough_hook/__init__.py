"""Runs inside the program that `walkthrough trace` or `walkthrough time` started, in the program's own Python.

Imports the standard library and the program's torch only. Whatever fails here leaves the program as it is: the reason
goes into this process's report, which the command reads when the program has ended.
"""
