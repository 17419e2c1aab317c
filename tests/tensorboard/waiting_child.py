"""A child that reads nothing: `python waiting_child.py FOLDER NICE`.

It adds the path that each job names to FOLDER/asked<NICE>, a line, and answers once FOLDER/go<NICE> exists.
"""

import json
import sys
import time
from pathlib import Path


def main(folder, nice):
    for line in sys.stdin:
        with (Path(folder) / f"asked{nice}").open("a") as asked:
            asked.write(f"{json.loads(line)['path']}\n")
        while not (Path(folder) / f"go{nice}").exists():
            time.sleep(0.01)
        print("{}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
