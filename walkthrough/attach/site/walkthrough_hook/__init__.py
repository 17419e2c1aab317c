"""Attaches to torch, as soon as the program that `walkthrough trace` or `time` started imports it.

Runs in the program's own Python, with the standard library and the program's torch only. Whatever fails here leaves the
program as it is: the reason goes into this process's report, which the command reads when the program has ended.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .tasks import Report, Timing, Tracing
from .watch import CHECKPOINT, EVALUATION, Watch


class Attached:
    """The watch of this process; a forked process begins its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.inside: set[tuple[int, int]] = set()  # (thread, optimizer): whose step runs
        self.in_backward: Callable[[], bool] = lambda: False
        self.inherits = False  # whether this process, or one above it, was forked while it was measured
        self.start()

    def start(self) -> None:
        report = Report(self.settings)
        task = Timing(self.settings, report) if self.settings["mode"] == "time" else Tracing(self.settings, report)
        self.watch = Watch(self.settings["warmup"], task, report)
        self.has_exit_hook = False

    def in_child(self) -> None:
        self.inherits = self.inherits or self.watch.task.running
        self.start()
        self.watch.task.done = self.inherits  # the profiler of the parent process is not this one's

    def stepped(self, optimizer: Any) -> None:
        self.hook_exit()
        if not self.in_backward():  # an optimizer may step in a hook of the backward pass: no profiler starts there
            self.guarded(self.watch.stepped, optimizer)

    def backward(self) -> None:
        self.hook_exit()
        in_step = any(thread == threading.get_ident() for thread, _ in self.inside)
        self.guarded(self.watch.backward, in_step)

    def hook_exit(self) -> None:
        if not self.has_exit_hook:
            self.has_exit_hook = True
            atexit.register(self.end)
            if "multiprocessing.util" in sys.modules:  # forked processes end without atexit
                sys.modules["multiprocessing.util"].Finalize(None, self.end, exitpriority=100)

    def guarded(self, call: Callable[..., object], *args: Any) -> None:
        """Call something of ours. Its exceptions end our task, not the program; SystemExit is meant to."""
        try:
            call(*args)
        except Exception as error:
            self.watch.task.done = True
            state = "done" if self.watch.report.state == "done" else "failed"
            self.watch.report.update(state=state, reason=f"{type(error).__name__}: {error}")
            self.watch.task.abandon()

    def end(self) -> None:
        """The program ends."""
        task = self.watch.task
        if not task.done:
            self.guarded(task.end, self.watch)


def install(settings: dict[str, Any]) -> None:
    """Attach to torch once it is imported, unless the command has ended."""
    attached = Attached(settings)
    if attached.watch.report.is_orphan():
        return
    attached.watch.report.update()
    os.register_at_fork(after_in_child=attached.in_child)
    after = {
        "torch": lambda module: attached.guarded(_attach_to_torch, module, attached),
        "torch.utils.data.dataloader": lambda module: attached.guarded(_attach_to_loaders, module, attached),
    }
    sys.meta_path.insert(0, _AfterImport(after))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module once that is imported; {name of the module: function}."""

    def __init__(self, then: Mapping[str, Callable[[Any], object]]) -> None:
        self.then = dict(then)
        self.looking: set[str] = set()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        then = self.then.get(fullname)
        if then is None or fullname in self.looking:
            return None
        self.looking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)  # by the finders after this one
        finally:
            self.looking.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        plain = spec.loader.exec_module

        def exec_module(module: Any) -> None:  # not before: others only ask whether torch is there
            self.then.pop(fullname, None)
            plain(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _attach_to_torch(torch: Any, attached: Attached) -> None:
    attached.watch.report.update(state="torch", torch=str(torch.__version__))
    compiling = torch.compiler.is_compiling if hasattr(torch, "compiler") else lambda: False
    task_id = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    attached.in_backward = lambda: task_id() != -1
    _attach_to_optimizers(torch, attached, compiling)

    def backward(*args: Any, **kwargs: Any) -> Any:
        result = plain_backward(*args, **kwargs)
        if not compiling() and not attached.in_backward():  # one inside another: reentrant checkpointing
            attached.backward()
        return result

    plain_backward = torch.autograd.backward
    torch.autograd.backward = functools.wraps(plain_backward)(backward)

    def happens(what: str) -> Callable[..., None]:
        return lambda *_: None if compiling() else attached.guarded(attached.watch.happens, what)

    def begins(profiler: Any, *_: Any) -> None:
        attached.guarded(attached.watch.task.foreign_profiler, attached.watch, profiler)

    def ends(profiler: Any, *_: Any) -> None:
        attached.guarded(attached.watch.task.foreign_profiler_ends, profiler)

    _before(torch.nn.Module, "eval", happens(EVALUATION))
    for module in (torch, torch.serialization):
        _before(module, "save", happens(CHECKPOINT))
    for profiler_class in {torch.profiler.profile, *torch.profiler.profile.__bases__}:  # with a schedule, or without
        if profiler_class is not object:
            _before(profiler_class, "start", begins)
            _before(profiler_class, "stop", ends)
    _before(torch.autograd.profiler.profile, "__enter__", begins)
    _before(torch.autograd.profiler.profile, "__exit__", ends)


def _attach_to_optimizers(torch: Any, attached: Attached, compiling: Callable[[], bool]) -> None:
    optimizer_class = torch.optim.Optimizer
    name = next(
        name for name in ("_patch_step_function", "_hook_for_profile") if name in vars(optimizer_class)
    )  # called when an optimizer is constructed; the latter until torch 1.13
    plain = getattr(optimizer_class, name)

    def patch_step_function(self: Any) -> None:
        plain(self)
        attached.guarded(constructed, self)

    def constructed(optimizer: Any) -> None:
        attached.watch.constructed(optimizer)
        if not getattr(type(optimizer).step, "walkthrough", False):
            type(optimizer).step = _marking(type(optimizer).step, attached, compiling)

    setattr(optimizer_class, name, functools.wraps(plain)(patch_step_function))
    scaler_class = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
    plain_step = scaler_class.step

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        count = attached.watch.steps_of(optimizer)
        result = plain_step(self, optimizer, *args, **kwargs)
        if count == attached.watch.steps_of(optimizer) > 0 and self.is_enabled():  # skipped: infinite gradients
            attached.watch.skipped += 1
            attached.stepped(optimizer)
        return result

    scaler_class.step = functools.wraps(plain_step)(step)


def _marking(step: Callable[..., Any], attached: Attached, compiling: Callable[[], bool]) -> Callable[..., Any]:
    """An optimizer's `step` that marks the end of a training step.

    Around the whole method, so that nothing of ours is inside the profiler's mark of the optimizer. Without
    `__wrapped__`, by which torch.compile would remove it.
    """

    plain = getattr(step, "__wrapped__", step)  # without the profiler's mark: what torch.compile would put in its place

    def marking(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return plain(self, *args, **kwargs)
        key = (threading.get_ident(), id(self))
        if key in attached.inside:  # a subclass's step calls its base class's
            return step(self, *args, **kwargs)
        attached.inside.add(key)
        try:
            result = step(self, *args, **kwargs)
        finally:
            attached.inside.discard(key)
        attached.stepped(self)
        return result

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(marking, name, getattr(step, name, None))
    marking.__dict__.update(vars(step))
    marking.__dict__.pop("__wrapped__", None)
    marking.__signature__ = inspect.signature(step)  # type: ignore[attr-defined]
    marking.walkthrough = marking.hooked = True  # type: ignore[attr-defined]
    return marking


def _attach_to_loaders(module: Any, attached: Attached) -> None:
    """See what DataLoaders yield, by the attribute in which their iterators count batches.

    It is set when an iteration begins and after each batch. So no function of ours is around one of DataLoader's, and
    none is in a traceback through it, or where a warning's `stacklevel` points.
    """
    name = "_num_yielded"

    def counted(iterator: Any, count: int) -> None:
        vars(iterator)[name] = count
        attached.guarded(seen, iterator, count, sys._getframe(1).f_locals)

    def seen(iterator: Any, count: int, names: Mapping[str, Any]) -> None:
        if count:  # in `__next__`
            attached.watch.batch(getattr(iterator, "_walkthrough_loader", None), names.get("data"), iterator)
        elif not names.get("first_iter"):  # in `__init__`, or `_reset`, which the former may call as well
            # the loader itself may be gone by the first batch
            iterator._walkthrough_loader = attached.watch.began(names["loader"], iterator)

    module._BaseDataLoaderIter._num_yielded = property(lambda iterator: vars(iterator)[name], counted)


def _before(owner: Any, name: str, call: Callable[..., object]) -> None:
    """Call something before a function or method."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def first(*args: Any, **kwargs: Any) -> Any:
        call(*args)
        return plain(*args, **kwargs)

    setattr(owner, name, first)
