"""A child that reads nothing: `python tests/board/waiting_child.py FOLDER [NICE]`.

It adds the path that each question names to FOLDER/asked[NICE], a line, and answers once FOLDER/go[NICE] exists.
"""

import json
import sys
import time
from pathlib import Path


def main(folder, nice=""):
    for line in sys.stdin:
        question = json.loads(line)
        path = question["path"] if isinstance(question, dict) else question[-1]
        with (Path(folder) / f"asked{nice}").open("a") as asked:
            asked.write(f"{path}\n")
        while not (Path(folder) / f"go{nice}").exists():
            time.sleep(0.01)
        print("{}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
