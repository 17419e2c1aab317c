"""How kernels' names are shown: shortened in the same way in every text and on every page."""

import re

from walkthrough.results.errors import printable

_COMMON = ("at::native::", "(anonymous namespace)::")
_GENERIC = re.compile(r"(\w*(?:elementwise_|reduce_|multi_tensor_apply_)kernel\w*)<")  # ATen's, for any function
# The function: the last of these names; the others wrap it.
_FUNCTION = re.compile(r"\b(?:\w*[Ff]unctor\w*|\w+_kernel(?:_cuda\w*|_impl\w*)?|\w+KernelImpl|\w+Ops)\b(?:<[^<>]*>)?")
_WRAPPER = re.compile(r"gpu_kernel|[AB]UnaryFunctor|BinaryFunctor|\w*opmath|\w*(elementwise_|reduce_|apply_)kernel")


def short_name(name: str, width: int) -> str:
    """A kernel's name on one line without common prefixes, its middle left out if it is longer than `width`.

    What one of ATen's kernels for any function computes, which is in the middle, stays.
    """
    line = printable(name).removeprefix("void ")
    for prefix in _COMMON:
        line = line.replace(prefix, "")
    if len(line) <= width:
        return line
    keep = (width - 1) // 2
    begins = [begin for begin in _with_function(line) if len(begin) < width]
    begin = begins[0] if begins else line[: width - 1 - keep]
    return f"{begin}…{line[len(line) - (width - 1 - len(begin)) :]}"


def _with_function(line: str) -> list[str]:
    """ "elementwise_kernel<…MulFunctor<float>", and without the type; [] where the name has no function to show."""
    generic = _GENERIC.match(line)
    functions = _FUNCTION.findall(line, generic.end()) if generic else []
    functions = [name for name in functions if not _WRAPPER.match(name)]
    if not generic or not functions:
        return []
    begin = f"{generic[1]}<…{functions[-1]}"
    return [begin, f"{generic[1]}<…{functions[-1].split('<')[0]}"]
