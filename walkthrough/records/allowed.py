"""What the traces and results of a record may hold. `record` keeps nothing else, and `--check` refuses anything else.

Of a trace, the keys that the tool, torch-tb-profiler or the Trace view read. Every value is a number, a shape, or a
text of the form that belongs there: an operator, a kernel, a step, a thread. An event's name of another form becomes
`GONE`. Of a result, the words of this project (see `privacy.foreign_words`), and in fields such as the device's name,
texts of their form.

A form is no proof. What passes: a secret in letters that is written as a kernel ("open_sesame"), an operator of torch
("aten::open_sesame"), a device ("AMD Sesame") or a system ("Linux-6.1-sesame-x86_64"), a checksum that is none, a
number that means something, a sentence of the project's own words. What looks like a random key does not.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from walkthrough.results import privacy
from walkthrough.results.errors import printable

GONE = "…"  # in the place of an event's name that is not allowed
_SHOWN = 60  # characters of what is refused

# Parts of words: digits, capitals, lower case. Names that people gave have long ones, keys short ones.
_PART = re.compile(r"(?:\d+[xd])*\d+[xd]?|[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LONG = re.compile(r"[A-Za-z0-9]{16,}")
_KEY = re.compile(
    r"(?:^|[^A-Za-z0-9])(?:A[KS]IA[A-Z0-9]{12}|AIza|eyJ|(?:gh[a-z]|github_pat|glpat|hf|npm|[sp]k|xox.)_\w{16})"
)
_HASHED = re.compile("## ?Call CompiledFxGraph f[a-z2-7]{51} ?##")
_MANGLED = re.compile(r"_Z[NL]?K?\d+[A-Za-z]\w*")  # a C++ name as compilers write it: lengths among letters


class Kind(NamedTuple):
    """What a value may be. name: for people, "a number"."""

    name: str
    allows: Callable[[Any], bool]


def looks_random(text: str) -> bool:
    """Whether a word of a name looks like a key, a password or a hash."""
    if _MANGLED.fullmatch(text) or _HASHED.fullmatch(text):
        return False
    return bool(_KEY.search(text)) or any(len(word) < 2.5 * len(_PART.findall(word)) for word in _LONG.findall(text))


def _text(name: str, *patterns: str, most: int = 200) -> Kind:
    """A text of at most so many characters that one of the patterns matches as a whole."""
    pattern = re.compile("|".join(f"(?:{part})" for part in patterns))

    @lru_cache(20_000)
    def fits(text: str) -> bool:
        return len(text) <= most and bool(pattern.fullmatch(text)) and not looks_random(text)

    return Kind(name, lambda value: isinstance(value, str) and fits(value))


def _list(kind: Kind) -> Kind:
    """A list of values of this kind, or of such lists, or of lists of these."""

    def allows(value: Any, depth: int = 3) -> bool:
        items = (allows(item, depth - 1) if isinstance(item, list) else kind.allows(item) for item in value)
        return depth > 0 and all(items)

    return Kind(f"a list of {kind.name}", lambda value: isinstance(value, list) and allows(value))


# C++ and Triton: words, and spaces only where C++ has them; `::` not behind a part of an IPv6 address.
_SPACE = r"(?:(?<=,)|(?<=\bvoid)|(?<=\bunsigned)|(?<=\blong)|(?<=\banonymous)|(?<=::type)) | (?=>|const\b|volatile\b)"
_SIGN = r"[<>(){}*&,!~]|(?<!\b[0-9a-f]{4})::(?=[A-Za-z_(~{])|#(?=\d)|(?<!\w)-(?=\d)|(?<=auto):(?=\d)"
_CPP = rf"(?:\w|{_SIGN}|{_SPACE})+"
_NAME = r"[A-Za-z_]\w{0,99}"
_LIBRARY = "aten|prims?|_?c10d(?:_functional(?:_autograd)?)?|torch(?:vision|audio|ao)?|quantized|mkl|mkldnn|onednn"
_LIBRARY += "|inductor|profiler|symm_mem|fsdp|rngprims|debugprims|xnnpack|nccl|higher_order|fbgemm"
_OPERATORS = (  # of a library, of autograd, of a compiled graph, and torch's own marks
    rf"(?:{_LIBRARY})::{_NAME}(?:\.\w{{1,40}})?",
    rf"(?:autograd::engine::evaluate_function: )?(?:{_NAME}Backward\d*|torch::(?:autograd|jit)::{_CPP})",
    r"torch(?:::|\.)distributed(?:::|\.)(?:ddp\.)?reducer::\w{1,40}",
    r"(?:graph_\d+_)?(?:cpp|triton)_\w+",
    "detach_?|record_param_comms|CompiledFunction|Pregraph bytecode|TorchDynamo Cache Lookup|_grad_sum_to_size",
    "AOTDispatcher Runtime Wrapper Prologue|<(?:forward|backward) op>",
)
_MARKS = (  # a step, an optimizer, a loader, a collective, a compiled region
    r"ProfilerStep[#*]\d{0,9}",
    r"Optimizer\.(step|zero_grad)#\w{1,40}\.\1",
    r"enumerate\(Data(?:Loader|Pipe)\)#\w{1,60}\.__next__",
    r"(?:nccl|gloo|mpi|ucc|xccl|hccl):\w{1,40}",
    rf"{_HASHED.pattern}|Torch-Compiled Region: \d{{1,9}}/\d{{1,9}}(?:_\d{{1,9}})?",
    r"(?:Distributed|FullySharded)?DataParallel\.\w{1,40}|CUDAGraphNode\.\w{1,40}(?: \(dynamo_timed\))?",
)

NUMBER = Kind("a number", lambda value: value is None or isinstance(value, int | float))
OPERATOR = _text("an operator", *_OPERATORS, *_MARKS, most=1000)
MARK = _text("a step or a mark", *_MARKS)
KERNEL = _text("a kernel", rf"(?=.*[_(<]|.*::|MIOpen|SubTensorOp){_CPP}(?:\.kd| \[clone \.kd\])?", most=10_000)
COPY = _text(
    "a copy",
    r"Mem(?:cpy|set)(?: [HDPA]to[HDPA])? \([A-Z][a-z]{2,8}(?: -> [A-Z][a-z]{2,8})?\)",
    "Copy(?:Host|Device)To(?:Host|Device)|FillBuffer",
)
CALL = _text("a call of the runtime", r"(?:cuda|cu|hip|xpu|ur|ze)[A-Z]\w{0,79}|INVALID")
LINK = _text("a link", "ac2g|fwdbwd|forward_backward|async(?:_gpu|_cpu_to_gpu)?|launch|cudaLaunchKernel")
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
    **dict.fromkeys(("ac2g", "fwdbwd", "forward_backward", "async", "async_gpu", "async_cpu_to_gpu"), LINK),
    **dict.fromkeys(("cpu_instant_event", "trace", "overhead", "cuda_sync"), PROFILER),
}

_TYPE = (
    r"(?:c10::)?(?:B?Float\d{0,2}(?:_\w{2,8})?|Half|Double|Long|Int|Short|Char|Byte|Bool|Complex\w{0,12})",
    "(?:unsigned |signed )?(?:char|short|int|long|long long|long int|short int)|float|double|bool|",
    "(?:Scalar|Tensor|Generic|OptionalTensor)(?:List)?|Device|Generator|Layout|MemoryFormat|Number|None|String",
)
_VALUE = r"(?:-?(?:\d{1,20}(?:\.\d{0,20})?(?:e[+-]\d{1,3})?|inf)|nan|True|False|None|)"
_TRACE = r"[0-9]{2}_[a-z0-9_]{1,60}\.[0-9]{1,20}\.pt\.trace\.json"
# A device: a maker or a kind among words that have a capital or a digit, as makers write them, and few others.
_MAKER = r"NVIDIA|AMD|Intel|Apple|A[Rr][Mm]|Tesla|Quadro|Xeon|EPYC|Neoverse|Cortex|Ampere|QEMU|KVM|Radeon|GPU|CPU"
_WORD = (
    r"\(?(?:[A-Z][A-Za-z0-9]{0,15}(?:-[A-Z0-9][A-Za-z0-9]{0,11}){0,3}(?:\((?:R|TM|tm)\))?|\((?:R|TM|tm)\)|i\d-\w{3,7}"
    r"|v\d|\d{1,5}(?:\.\d{1,2})?[A-Za-z+]{0,4}|\d{1,3}-Core|\dg\.\d{1,3}gb|@|w/|with|no|version|processor|unknown)\)?"
)
DEVICE = _text("a device", rf"(?=.*\b(?:{_MAKER})(?![a-z])){_WORD}(?:,? {_WORD}){{0,11}}|")
DEVICES = {"name": DEVICE} | dict.fromkeys(
    "id, totalGlobalMem, computeMajor, computeMinor, warpSize, numSms, maxThreadsPerBlock, "
    "maxThreadsPerMultiprocessor, regsPerBlock, regsPerMultiprocessor, sharedMemPerBlock, sharedMemPerBlockOptin, "
    "sharedMemPerMultiprocessor, maxSharedMemoryPerMultiProcessor".split(", "),
    NUMBER,
)
ARGUMENTS = {
    **dict.fromkeys(
        "External id, external id, correlation, device, context, stream, queued, bytes, memory bandwidth (GB/s), "
        "blocks per SM, warps per SM, est. achieved occupancy %, registers per thread, shared memory, Addr, Bytes, "
        "Total Allocated, Total Reserved, Device Type, Device Id, Ev Idx, Record function id, Sequence number, "
        "Fwd thread id, finished, Python id, Python parent id, Python module id, Op count, sort_index, In msg nelems, "
        "Out msg nelems, Group size, Src Rank, Dst Rank, num_warps, num_stages, cbid".split(", "),
        NUMBER,
    ),
    **dict.fromkeys(("Input Dims", "Input dims", "Input Strides", "grid", "block"), _list(NUMBER)),
    "Input type": _list(_text("a type", *_TYPE)),
    "Concrete Inputs": _list(_text("a value", rf"{_VALUE}|\[{_VALUE}(?:, {_VALUE})*\]", most=1000)),
    "dtype": _text("a type", *_TYPE),
    "Collective name": _text("a collective", "_?[a-z]{3,12}(?:_[a-z]{1,12}){0,4}_?"),
    **dict.fromkeys(
        ("In split size", "Out split size", "Process Group Ranks"),
        _text("a list of numbers", r"\[(?:\d{1,9}(?:, \d{1,9})*)?(?:, \.\.\.)?\]", most=10_000),
    ),
    "Process Group Name": _text("a group", r"\d{1,9}"),
    "Process Group Description": _text("a group", "default_pg|undefined"),
    "kernel_backend": _text("a backend", "triton|cpp|cuda|cutlass|pallas|halide"),
    "kernel_kwargs": _text(
        "options of Triton", r"(?:(?:[XYZR]\d?_?BLOCK|num_stages|num_warps|waves_per_eu)=\d{1,9}(?:,(?!$)|$))+"
    ),
    "name": _text(
        "a thread",
        r"(?:thread \d{1,9} \()?(?:python[\d.]{0,6}|pt_[a-z]{2,12}(?:_[a-z]{2,8}|_\d{1,3}){0,2})\)?",
        r"stream \d{1,9} ?|Device \d{1,3}",
    ),
    "labels": _text("a device", r"CPU|GPU \d{1,3}|"),
    "scope": _text("a scope", "user_scope|function|backward_function"),
}
_ROW = _text("a row", r"Spans|Traces|(?:Trace )?PyTorch Profiler|stream \d{1,9}|\d{1,7}|")
EVENT = {
    "ph": _text("a phase", "[XisfM]"),
    "cat": Kind("a category", lambda value: isinstance(value, str) and value.lower() in NAMES),
    **dict.fromkeys(("ts", "dur", "id"), NUMBER),
    **dict.fromkeys(("pid", "tid"), Kind(_ROW.name, lambda value: NUMBER.allows(value) or _ROW.allows(value))),
    "bp": _text("an e", "e"),
    "s": _text("a letter", "[tgp]"),
    "args": ARGUMENTS,
}
TRACE = {
    **dict.fromkeys(("schemaVersion", "baseTimeNanoseconds", "hip_runtime_version"), NUMBER),
    **dict.fromkeys(("record_shapes", "profile_memory"), NUMBER),
    "displayTimeUnit": _text("a unit", "ms|ns"),
    "deviceProperties": [DEVICES],
    "distributedInfo": {"rank": NUMBER, "world_size": NUMBER, "backend": _text("a library", "nccl|gloo|mpi|ucc|xccl")},
    "trace_id": Kind("an id", lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9A-F]{32}", value))),
    "traceName": _text("a trace's name", _TRACE),
    "traceEvents": [EVENT],
}

_MODEL = "tiny_convmixer|(?:wide_)?(?:alexnet|convnext|densenet|efficientnet|googlenet|inception|maxvit|mnasnet"
_MODEL += "|mobilenet|regnet|resnet|resnext|shufflenet|squeezenet|swin|vgg|vit)"
_MODEL = rf"(?:{_MODEL}(?:_?[a-z]{{0,6}}\d{{0,3}}){{0,4}})"
_OPTION = "--[a-z]{1,12}(?:-[a-z]{1,12})?"
_ARCHITECTURES = ("x86_64", "aarch64", "arm64", "arm")
FIELDS = {  # of results, record.json and studies; all others hold words of this project, or numbers
    "device": DEVICE,
    "cpu": Kind("a processor", lambda value: value in _ARCHITECTURES or DEVICE.allows(value)),
    "model": _text("a model", _MODEL),
    "words": _text("an option of a step", _OPTION, rf"(?:{_OPTION}=)?(?:\d{{1,10}}|auto|fp32|bf16|fp16|{_MODEL})"),
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
        r"(?:Linux|macOS|Windows)-\d{1,5}(?:[-+._][A-Za-z0-9]{1,16}){0,12}\+?-(?:x86_64|aarch64|arm64|AMD64|ppc64le)"
        r"(?:-(?:i386-|arm-)?64bit(?:-Mach-O)?|-with-(?:glibc|libc|musl)[\d.]{0,6})?",
        r"Windows-\d\d-[\d.]{1,16}-SP\d",
    ),
    "git": _text("a commit", "[0-9a-f]{12,16}"),
    "code": Kind("a checksum", lambda value: bool(re.fullmatch("[0-9a-f]{64}", value))),
    "started": _text("a time", r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d"),
    "trace": _text("a trace's name", rf"{_TRACE}\.gz"),
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
            yield f"{_shown(value)} as {field!r}, which is not {kind.name}"
        elif not kind and (foreign := privacy.foreign_words(value)):
            yield f"words that no text of this version has: {_shown(' '.join(foreign))}"
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in FIELDS and privacy.foreign_words(key):
                yield f"the key {_shown(key)}"
            yield from wrong_texts(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from wrong_texts(item, field)


def kept(trace: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(What a record keeps of a trace's JSON, a line for each key and text that it does not keep)."""
    gone: dict[str, None] = {}
    result = _kept(trace, TRACE, gone)
    if "traceEvents" in result:  # one of a category that is not kept would be shown as something else
        events = result["traceEvents"]
        result["traceEvents"] = [e for e in events if "ph" in e and (e["ph"] in "iM" or "cat" in e)]
    return result, list(gone)


def _kept(fields: dict[str, Any], kinds: dict[str, Any], gone: dict[str, None]) -> dict[str, Any]:
    result = {}
    for key, value in fields.items():
        kind = kinds.get(key)
        if kinds is EVENT and key == "name":
            result[key] = _name(fields, gone)
        elif kind is None:
            gone[f"the key {_shown(key)}"] = None
        elif isinstance(kind, Kind):
            if kind.allows(value):
                result[key] = value
            else:
                gone[f"{_shown(value)} as {key!r}, which is not {kind.name}"] = None
        elif isinstance(kind, dict) and isinstance(value, dict):
            result[key] = _kept(value, kind, gone)
        elif isinstance(kind, list) and isinstance(value, list) and all(isinstance(item, dict) for item in value):
            result[key] = [_kept(item, kind[0], gone) for item in value]
        else:
            what = "an object" if isinstance(kind, dict) else "a list of objects"
            gone[f"{_shown(value)} as {key!r}, which is not {what}"] = None
    return result


def _name(event: dict[str, Any], gone: dict[str, None]) -> str:
    """An event's name, or `GONE`."""
    name, category = event["name"], event.get("cat")
    kind = METADATA if event.get("ph") == "M" else NAMES.get(str(category).lower(), PROFILER)
    if name == GONE or kind.allows(name):
        return name
    gone[f"a name that is not {kind.name}: {_shown(name)}"] = None
    return GONE


def _shown(value: Any) -> str:
    return repr(printable(value, _SHOWN)) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
