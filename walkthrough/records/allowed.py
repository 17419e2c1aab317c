"""What the traces and results of a record may hold. `record` keeps nothing else, and `--check` refuses anything else.

Of a trace, the keys that the tool, torch-tb-profiler or the Trace view read; every value is a number, a shape, or a
text that has the form of what stands there: an operator, a kernel, a step, a thread. A text that is none becomes `GONE`.
Of a result, the words of this project (see `privacy.foreign_words`), and what a field of that name has: a version, say.

A form is no proof. A secret of letters that somebody calls a kernel ("my_kernel"), or an operator of a known library
("aten::open_sesame"), passes; so does a number that means something. Words that look random, as keys do, never pass.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from walkthrough.results import privacy
from walkthrough.results.errors import printable

GONE = "…"  # in the place of an event's name that is not allowed
_SHOWN = 60  # characters of what is refused

# Parts of words: digits, capitals, lower case. Names that people gave have long ones, keys short ones.
_PART = re.compile(r"(?:\d+[xd])*\d+[xd]?|[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LONG = re.compile(r"[A-Za-z0-9]{16,}")
_KEY = re.compile(r"(?:^|[^A-Za-z0-9])(?:A[KS]IA[A-Z0-9]{12}|AIza|eyJ|(?:gh[a-z]|github_pat|glpat|hf|npm|[sp]k|xox.)_\w{16})")
_HASHED = re.compile("## ?Call CompiledFxGraph f[a-z2-7]{51} ?##")
_MANGLED = re.compile(r"_Z[NL]?K?\d+[A-Za-z]\w*")  # a C++ name as compilers write it: lengths among letters


def looks_random(text: str) -> bool:
    """Whether a word of a name looks like a key, a password or a hash."""
    if _MANGLED.fullmatch(text) or _HASHED.fullmatch(text):
        return False
    return bool(_KEY.search(text)) or any(len(word) < 2.5 * len(_PART.findall(word)) for word in _LONG.findall(text))


class Kind:
    """What a value may be. name: for people, "a number"."""

    def __init__(self, name: str, allows: Callable[[Any], bool]) -> None:
        self.name, self.allows = name, allows


def _text(name: str, *patterns: str, length: int = 200) -> Kind:
    """A text that one of the patterns matches as a whole, of at most so many characters."""
    pattern = re.compile("|".join(f"(?:{part})" for part in patterns))

    @lru_cache(20_000)
    def fits(text: str) -> bool:
        return len(text) <= length and bool(pattern.fullmatch(text)) and not looks_random(text)

    return Kind(name, lambda value: isinstance(value, str) and fits(value))


def _list(kind: Kind) -> Kind:
    """A list of values of this kind, or of such lists."""

    def allows(value: Any) -> bool:
        return all(map(allows, value)) if isinstance(value, list) else kind.allows(value)

    return Kind(kind.name, lambda value: isinstance(value, list) and allows(value))


# C++ and Triton: words, and spaces only where C++ has them; `::` not behind a part of an IPv6 address.
_SPACE = r"(?:(?<=,)|(?<=\bvoid)|(?<=\bunsigned)|(?<=\blong)|(?<=\banonymous)|(?<=::type)) | (?=>|const\b|volatile\b)"
_CPP = rf"(?:\w|(?<!\b[0-9a-f]{{4}})::(?=[A-Za-z_(~{{])|[<>(){{}}*&,!~]|#(?=\d)|(?<!\w)-(?=\d)|(?<=auto):(?=\d)|{_SPACE})+"
_KERNELS = (rf"(?=.*[_(<]|.*::|MIOpen|SubTensorOp){_CPP}(?:\.kd| \[clone \.kd\])?",)

# An operator: a known library's, an autograd function, or one of torch's own marks.
_LIBRARY = "aten|prims?|c10d(?:_functional)?|_c10d_functional(?:_autograd)?|torch(?:vision|audio|ao)?|quantized|mkldnn|onednn"
_LIBRARY += "|inductor|profiler|symm_mem|fsdp|rngprims|xnnpack|mkl|nccl|higher_order|debugprims|fbgemm|torchao"
_NAME = r"[A-Za-z_]\w{0,99}"
_OPERATORS = (
    rf"(?:{_LIBRARY})::{_NAME}(?:\.\w{{1,40}})?",
    rf"(?:autograd::engine::evaluate_function: )?(?:{_NAME}Backward\d*|torch::(?:autograd|jit)::{_CPP})",
    r"torch(?:::|\.)distributed(?:::|\.)(?:ddp\.)?reducer::\w{1,40}",
    r"(?:graph_\d+_)?(?:cpp|triton)_\w+",
    "detach_?|record_param_comms|CompiledFunction|Pregraph bytecode|TorchDynamo Cache Lookup|_grad_sum_to_size",
    "AOTDispatcher Runtime Wrapper Prologue|<(?:forward|backward) op>",
)
# A mark: a step, an optimizer, a loader, a collective, a compiled region.
_MARKS = (
    r"ProfilerStep[#*]\d{0,9}",
    r"Optimizer\.(step|zero_grad)#\w{1,40}\.\1",
    r"enumerate\(Data(?:Loader|Pipe)\)#\w{1,60}\.__next__",
    r"(?:nccl|gloo|mpi|ucc|xccl|hccl):\w{1,40}",
    rf"{_HASHED.pattern}|Torch-Compiled Region: \d{{1,9}}/\d{{1,9}}(?:_\d{{1,9}})?",
    r"(?:Distributed|FullySharded)?DataParallel\.\w{1,40}|CUDAGraphNode\.\w{1,40}(?: \(dynamo_timed\))?",
)
NUMBER = Kind("a number", lambda value: value is None or isinstance(value, int | float))
SHAPE = _list(NUMBER)
OPERATOR = _text("an operator", *_OPERATORS, *_MARKS, length=1000)
MARK = _text("a step or a mark", *_MARKS)
KERNEL = _text("a kernel", *_KERNELS, length=10_000)
COPY = _text("a copy", r"Mem(?:cpy|set)(?: [HDPA]to[HDPA])? \([A-Z][a-z]{2,8}(?: -> [A-Z][a-z]{2,8})?\)|Copy\w{1,40}|FillBuffer")
CALL = _text("a call of the runtime", r"(?:cuda|cu|hip|hsa|xpu|ur|ze)[A-Z]\w{0,79}|INVALID")
FUNCTION = _text(
    "a Python function of torch",
    r"torch/[\w/]{1,120}\.py\(\d{1,6}\): [\w<>.]{1,80}|nn\.Module: [A-Za-z_]\w{0,60}_\d{1,6}",
    r"<built-in (?:function|method) \w{1,60}(?: of [\w.]{1,40} object at 0x[0-9a-f]{1,16})?>",
)
LINK = _text("a link", r"ac2g|fwdbwd|forward_backward|async(?:_gpu|_cpu_to_gpu)?|launch|cudaLaunchKernel")
PROFILER = _text(
    "a mark of the profiler",
    r"PyTorch Profiler \(0\)|Iteration Start: PyTorch Profiler|Record Window End|\[memory\]",
    "(?:Context|Event|Stream) Sync(?:hronize)?|Stream Wait Event",
    "Activity Buffer Request|Buffer Flush|Lazy Function Loading|Command Buffer Full|Instrumentation|Resource",
)
METADATA = _text("metadata", "(?:process|thread)_(?:name|sort_index)|process_labels")
NAMES = {  # of events, by category
    **dict.fromkeys(("cpu_op", "operator", "python"), OPERATOR),
    **dict.fromkeys(("user_annotation", "gpu_user_annotation"), MARK),
    **dict.fromkeys(("runtime", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime"), CALL),
    "kernel": KERNEL,
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), COPY),
    "python_function": FUNCTION,
    **dict.fromkeys(("ac2g", "fwdbwd", "forward_backward", "async", "async_gpu", "async_cpu_to_gpu"), LINK),
    **dict.fromkeys(("cpu_instant_event", "trace", "overhead", "cuda_sync"), PROFILER),
}

_TYPE = (
    r"(?:c10::)?(?:B?Float\d*(?:_\w{2,8})?|Half|Double|Long|Int|Short|Char|Byte|Bool|Complex\w{0,12})"
    "|(?:unsigned |signed )?(?:char|short|int|long|long long|long int|short int)|float|double|bool|"
    "|(?:Scalar|Tensor|Generic|OptionalTensor)(?:List)?|Device|Generator|Layout|MemoryFormat|Number|None|String"
)
_VALUE = r"-?(?:\d{1,20}\.?\d{0,20}(?:e[+-]\d{1,3})?|inf)|nan|True|False|None|"
_VALUES = rf"(?:{_VALUE})|\[(?:(?:{_VALUE})(?:, )?)*\]"
_LIST = r"\[(?:\d{1,9}(?:, )?)*\.{0,3}\]"

# A device: a maker or a kind among words that have a capital or a digit, as makers write them, and few others.
_MAKER = r"NVIDIA|AMD|Intel|Apple|A[Rr][Mm]|Tesla|Quadro|Xeon|EPYC|Neoverse|Cortex|Ampere|QEMU|KVM|Radeon|GPU|CPU"
_PART_OF_DEVICE = (
    r"[A-Z][A-Za-z0-9]{0,15}(?:-[A-Z0-9][A-Za-z0-9]{0,11}){0,3}(?:\((?:R|TM|tm)\))?|\((?:R|TM|tm)\)"
    r"|i\d-\d{3,6}[A-Z0-9]{0,3}|v\d|\d{1,5}(?:\.\d{1,2})?[A-Za-z+]{0,4}|\d{1,3}-Core|\dg\.\d{1,3}gb|@|w/|with|no"
    r"|[Vv]ersion|[Pp]rocessor|unknown"
)
DEVICE = {
    "name": _text(
        "a device", rf"(?=.*\b(?:{_MAKER})(?![a-z]))\(?(?:{_PART_OF_DEVICE})\)?(?:,? \(?(?:{_PART_OF_DEVICE})\)?){{0,11}}|"
    ),
    **dict.fromkeys(("id", "totalGlobalMem", "computeMajor", "computeMinor", "warpSize", "numSms"), NUMBER),
    **dict.fromkeys(("maxThreadsPerBlock", "maxThreadsPerMultiprocessor", "regsPerBlock", "sharedMemPerBlock"), NUMBER),
    **dict.fromkeys(("regsPerMultiprocessor", "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor"), NUMBER),
    "maxSharedMemoryPerMultiProcessor": NUMBER,
}
ARGUMENTS = {
    **dict.fromkeys(("External id", "external id", "correlation", "device", "context", "stream", "queued"), NUMBER),
    **dict.fromkeys(("bytes", "memory bandwidth (GB/s)", "blocks per SM", "warps per SM"), NUMBER),
    **dict.fromkeys(("est. achieved occupancy %", "registers per thread", "shared memory", "num_warps"), NUMBER),
    **dict.fromkeys(("Addr", "Bytes", "Total Allocated", "Total Reserved", "Device Type", "Device Id"), NUMBER),
    **dict.fromkeys(("Ev Idx", "Record function id", "Sequence number", "Fwd thread id", "finished"), NUMBER),
    **dict.fromkeys(("Python id", "Python parent id", "Python module id", "Op count", "sort_index"), NUMBER),
    **dict.fromkeys(("In msg nelems", "Out msg nelems", "Group size", "Src Rank", "Dst Rank", "num_stages"), NUMBER),
    **dict.fromkeys(("Input Dims", "Input dims", "Input Strides", "grid", "block"), SHAPE),
    "Input type": _list(_text("a type", _TYPE)),
    "Concrete Inputs": _list(_text("a value", _VALUES, length=1000)),
    "dtype": _text("a type", _TYPE),
    "Collective name": _text("a collective", r"_?[a-z]{3,12}(?:_[a-z]{1,12}){0,4}_?"),
    **dict.fromkeys(("In split size", "Out split size", "Process Group Ranks"), _text("a list", _LIST, length=10_000)),
    "Process Group Name": _text("a group", r"\d{1,9}"),
    "Process Group Description": _text("a group", r"default_pg|undefined"),
    "kernel_backend": _text("a backend", "triton|cpp|cuda|cutlass|pallas|halide"),
    "kernel_kwargs": _text("options of Triton", r"(?:,?(?:[XYZR]\d?_?BLOCK|num_\w{1,12}|waves_per_eu|matrix_\w{1,20})=\d{1,9})+"),
    "name": _text("a thread", r"Device \d{1,3}|(?:thread \d{1,9} \()?(?:python[\d.]{0,6}|pt_[a-z]{2,12}(?:_[a-z]{2,8}|_\d{1,3}){0,2})\)?|stream \d{1,9} ?"),
    "labels": _text("a device", r"CPU|GPU \d{1,3}|"),
    "scope": _text("a scope", "user_scope|function|backward_function"),
}
_TRACE_NAME = r"[0-9]{2}_[a-z0-9_]{1,60}\.[0-9]{1,20}\.pt\.trace\.json"
_ROW = _text("a row", r"Spans|Traces|(?:Trace )?PyTorch Profiler|stream \d{1,9}|\d{1,7}|")
ROW = Kind(_ROW.name, lambda value: NUMBER.allows(value) or _ROW.allows(value))
EVENT = {
    "ph": _text("a phase", "[XisfM]"),
    "cat": Kind("a category", lambda value: isinstance(value, str) and value.lower() in NAMES),
    **dict.fromkeys(("ts", "dur", "id"), NUMBER),
    **dict.fromkeys(("pid", "tid"), ROW),
    "bp": _text("e", "e"),
    "s": _text("a letter", "[tgp]"),
    "args": ARGUMENTS,
}
TRACE = {
    **dict.fromkeys(("schemaVersion", "baseTimeNanoseconds", "hip_runtime_version", "record_shapes"), NUMBER),
    "profile_memory": NUMBER,
    "displayTimeUnit": _text("a unit", "ms|ns"),
    "deviceProperties": [DEVICE],
    "distributedInfo": {"rank": NUMBER, "world_size": NUMBER, "backend": _text("a library", "nccl|gloo|mpi|ucc|xccl")},
    "trace_id": Kind("an id", lambda value: isinstance(value, str) and re.fullmatch("[0-9A-F]{32}", value) is not None),
    "traceName": _text("a trace's name", _TRACE_NAME),
    "traceEvents": [EVENT],
}

FIELDS = {  # of results, record.json and studies; all others hold words of this project, or numbers
    "device": DEVICE["name"],
    "cpu": Kind("a processor", lambda value: value in ("x86_64", "aarch64", "arm64", "arm") or DEVICE["name"].allows(value)),
    "model": _text(
        "a model",
        "tiny_convmixer|(?:wide_)?(?:alexnet|convnext|densenet|efficientnet|googlenet|inception|maxvit|mnasnet|mobilenet"
        r"|regnet|resnet|resnext|shufflenet|squeezenet|swin|vgg|vit)(?:_?[a-z]{0,6}\d{0,3}){0,4}",
    ),
    "torch": _text(
        "a version",
        r"\d{1,2}\.\d{1,2}\.\d{1,2}(?:a0|rc\d{1,2}|\.(?:dev|post)\d{1,8})?"
        r"(?:\+(?:[a-z]{2,16}[\d.]{0,6}|(?:git)?[0-9a-f]{7,12}(?:\.nv\d\d\.\d\d)?))?",
    ),
    "cuda": _text("a version", r"\d{1,2}\.\d{1,2}"),
    "driver": _text("a version", r"\d{3}\.\d{1,3}(?:\.\d{1,3})?"),
    "python": _text("a version", r"\d\.\d{1,2}\.\d{1,2}(?:(?:a|b|rc)\d{1,2})?\+?"),
    "platform": _text(
        "a system",
        r"(?:Linux|macOS|Windows)-\d{1,5}(?:\.\d{1,6}){0,3}(?:[-+._]?(?:[A-Za-z]{1,12}\d{0,5}|\d{1,6})){0,8}\+?"
        r"-(?:x86_64|aarch64|arm64|AMD64|ppc64le|riscv64)(?:-(?:i386-|arm-)?64bit(?:-Mach-O)?|-with-(?:glibc|libc|musl)[\d.]{0,6})?",
        r"Windows-\d\d-[\d.]{1,16}-SP\d",
    ),
    "git": _text("a commit", "[0-9a-f]{12,16}"),
    "code": Kind("a checksum", lambda value: re.fullmatch("[0-9a-f]{64}", value) is not None),
    "started": _text("a time", r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"),
    "trace": _text("a trace's name", rf"{_TRACE_NAME}\.gz"),
}


def texts(value: Any) -> Iterator[str]:
    """The texts in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from texts(item)


def wrong_texts(value: Any, field: str = "") -> Iterator[str]:
    """A line for each key and text in the JSON of a result or study that a record may not hold. field: its name."""
    if isinstance(value, str):
        kind = FIELDS.get(field)
        if kind and not kind.allows(value):
            yield f"{printable(value, _SHOWN)!r} as {field!r}, which is not {kind.name}"
        elif not kind and (foreign := privacy.foreign_words(value)):
            yield f"words that no text of this project has: {printable(' '.join(foreign), _SHOWN)!r}"
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in FIELDS and privacy.foreign_words(key):
                yield f"the key {printable(key, _SHOWN)!r}"
            yield from wrong_texts(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from wrong_texts(item, field)


def kept(trace: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(What a record keeps of a trace's JSON, a line for each key and text that it does not keep)."""
    gone: dict[str, None] = {}
    return _kept(trace, TRACE, gone), list(gone)


def _kept(fields: dict[str, Any], kinds: dict[str, Any], gone: dict[str, None]) -> dict[str, Any]:
    result = {}
    for key, value in fields.items():
        kind = kinds.get(key)
        if kinds is EVENT and key == "name":
            result[key] = _name(fields, gone)
        elif kind is None:
            gone[f"the key {printable(key, _SHOWN)!r}"] = None
        elif isinstance(kind, dict) and isinstance(value, dict):
            result[key] = _kept(value, kind, gone)
        elif isinstance(kind, list) and isinstance(value, list) and all(isinstance(item, dict) for item in value):
            items = [_kept(item, kind[0], gone) for item in value]
            result[key] = [item for item in items if kind != [EVENT] or _is_event(item)]
        elif isinstance(kind, Kind) and kind.allows(value):
            result[key] = value
        else:
            what = kind.name if isinstance(kind, Kind) else "an object" if isinstance(kind, dict) else "a list of objects"
            gone[f"{printable(value, _SHOWN)!r} as {key!r}, which is not {what}"] = None
    return result


def _name(event: dict[str, Any], gone: dict[str, None]) -> str:
    """An event's name, or `GONE`."""
    name, category = event.get("name"), event.get("cat")
    kind = METADATA if event.get("ph") == "M" else NAMES.get(str(category).lower(), PROFILER)
    if name == GONE or kind.allows(name):
        return name
    gone[f"a name that is not {kind.name}: {printable(name, _SHOWN)!r}"] = None
    return GONE


def _is_event(kept: dict[str, Any]) -> bool:
    """False for one of a category that is not kept: it would be shown as something else."""
    return "ph" in kept and (kept["ph"] in "iM" or "cat" in kept)
