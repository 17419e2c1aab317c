"""Would the tests notice a wrong number? Changes one place of the program at a time, and runs its tests.

    python -m tools.mutants --seed 46 --count 160 --out mutants.json    # about an hour on two cores
    python -m tools.mutants --only replay --count 20 --out replay.json  # one part alone

A mutant is one changed comparison, arithmetic, constant, condition or return. It is killed where a test fails, or where
they take ten times as long as without it. One that survives is a hole in the tests, or changes nothing; a person
says which. Tests of a part run until the first that fails, in a copy of what git tracks, as it is committed or staged.
"""

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from walkthrough.results.environment import ROOT, usable_cores

PARTS = {  # part: (its files, tests that should notice)
    "statistics": ("compare/statistics.py compare/rounds.py", "compare"),
    "steps": ("trace/steps.py trace/intervals.py", "trace explain"),
    "idle": ("trace/idle.py trace/timeline.py", "trace advice explain"),
    "replay": ("advice/replay.py advice/gains.py", "advice explain"),
    "findings": ("advice/*_costs.py advice/verdict.py", "advice explain"),
    "results": ("results/result.py results/folder.py results/privacy.py compare/ladder.py", "results compare records"),
    "fit": ("memory/fit.py memory/predict.py memory/allocator.py", "memory"),
    "tab": ("tensorboard/plugin.py tensorboard/answers.py tensorboard/log_folders.py", "tensorboard"),
}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
}  # fmt: skip
NAMES = {"any": "all", "all": "any", "min": "max", "max": "min"}
SLOWER, AT_LEAST_SECONDS = 10, 120
Mutant = namedtuple("Mutant", "part file line kind begin end new")  # begin, end: of what `new` replaces, in bytes


def mutants_of(part: str, file: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    source = file.read_bytes()
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    for node in ast.walk(ast.parse(source)):
        for kind, at, new in _changes(node):
            begin = starts[at.lineno - 1] + at.col_offset
            end = begin + len((ast.get_source_segment(source.decode(), at) or "").encode())
            text = new if isinstance(new, str) else f"({ast.unparse(ast.fix_missing_locations(new))})"
            yield Mutant(part, str(file.relative_to(ROOT)), at.lineno, kind, begin, end, text)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr | str]]:
    """(kind, the node that is replaced, what by)."""
    match node:
        case ast.Compare(ops=[op, *more]) if other := COMPARISONS.get(type(op)):
            yield "comparison", node, ast.Compare(node.left, [other(), *more], node.comparators)
        case ast.BinOp(left=left, op=op, right=right) if other := ARITHMETIC.get(type(op)):
            yield "arithmetic", node, ast.BinOp(left, other(), right)
        case ast.Constant(value=bool(value)):
            yield "constant", node, repr(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", node, repr(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "condition", test, ast.UnaryOp(ast.Not(), test)
        case ast.BoolOp(op=op, values=values):
            yield "condition", node, ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.comprehension(ifs=[test, *_]):
            yield "condition", test, "True"
        case ast.Call(func=ast.Name(id=name) as called) if name in NAMES:
            yield "condition", called, NAMES[name]
        case ast.Call(func=ast.Attribute(value=value, attr=name) as called) if name in NAMES:
            yield "condition", called, ast.Attribute(value, NAMES[name])
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", value, "None"


def run_tests(copy: Path, tests: str, seconds: float | None) -> tuple[bool, float]:
    """(whether all pass, within `seconds`; how long they took)."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--ignore-glob=*/test_browser_*"]
    command += ["-m", "not long and not thorough"]  # else most mutants would wait for the tour: scores are lower bounds
    command += [f"tests/{name}" for name in tests.split()]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    begin, passes = time.perf_counter(), False
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=seconds, check=False)
        passes = done.returncode == 0
    return passes, time.perf_counter() - begin


def outcome(mutant: Mutant, copies: "SimpleQueue[Path]", limits: dict[str, float]) -> dict:
    """The mutant, whether it was killed, and the lines before and after."""
    copy = copies.get()
    path = copy / mutant.file
    source = path.read_bytes()
    changed = source[: mutant.begin] + mutant.new.encode() + source[mutant.end :]
    try:
        path.write_bytes(changed)
        survives, seconds = run_tests(copy, PARTS[mutant.part][1], limits[mutant.part])
    finally:
        path.write_bytes(source)
        copies.put(copy)
    before, after = (text.splitlines()[mutant.line - 1].decode().strip() for text in (source, changed))
    print(f"{'SURVIVES' if survives else 'killed'} {mutant.file}:{mutant.line} {mutant.kind}: {after}", flush=True)
    return {**mutant._asdict(), "killed": not survives, "seconds": seconds, "was": before, "is": after}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants (default: %(default)s)")
    parser.add_argument("--count", type=int, default=160, help="mutants in all, as many of each part (%(default)s)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS), help="these parts alone")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of what became of each")
    args = parser.parse_args()
    chosen, count = list[Mutant](), -(-args.count // len(args.only))
    for part in args.only:
        files = [file for names in PARTS[part][0].split() for file in sorted((ROOT / "walkthrough").glob(names))]
        found = [mutant for file in files for mutant in mutants_of(part, file)]
        chosen += random.Random(f"{args.seed} {part}").sample(found, min(count, len(found)))
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(usable_cores()) as pool:
        for number in range(usable_cores()):
            copies.put(copy := Path(folder) / str(number))
            subprocess.run(["git", "checkout-index", "-a", f"--prefix={copy}/"], cwd=ROOT, check=True)
        unchanged = {part: run_tests(Path(folder) / "0", PARTS[part][1], None) for part in args.only}
        if failing := [part for part, (passes, _) in unchanged.items() if not passes]:
            sys.exit(f"mutants: without a mutant tests fail, of {', '.join(failing)}")
        limits = {part: max(AT_LEAST_SECONDS, SLOWER * seconds) for part, (_, seconds) in unchanged.items()}
        outcomes = list(pool.map(lambda mutant: outcome(mutant, copies, limits), chosen))
    for part in args.only:
        own = [result["killed"] for result in outcomes if result["part"] == part]
        print(f"{part}: {sum(own)} of {len(own)} killed")
    args.out.write_text(json.dumps({"seed": args.seed, "mutants": outcomes}, indent=1))


if __name__ == "__main__":
    main()
