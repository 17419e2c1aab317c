"""The model compiled, as in step 08, and timed on one batch: in a process of its own, `python -m common.studies.limit.compiled`.

Compiling can take minutes, can be stopped only from outside, and can bring a process down.
"""

# TO BE FINISHED BY THE STUDIES HELPER
def floor(kind, speeds, step_ms, batch_size, counted, flops_roof):
    """The `Floor` of what `speeds_of` gives. counted: the `flops.OperatorCounter` of a step.

    MFU is the model's FLOPs over time and peak, after "PaLM" (Chowdhery et al. 2022, appendix B), with two differences:
    the FLOPs are counted, not estimated from the parameters, and the peak is the one measured here.
    """
    median = statistics.median(speeds)
    per_second = counted.flops * median / batch_size
    return Floor(
        kind=kind,
        samples_per_second=Throughput(median, list(speeds)),
        step_ms=step_time(step_ms),
        flops_per_second=per_second,
        mfu=per_second / flops_roof,
        bytes_per_second=counted.bytes * median / batch_size if kind != COMPILED else None,
    )


def compiled_windows(settings, limit_seconds, command=(sys.executable, "-m", "common.studies.one_batch")):
    """Measure the model compiled, in a process of its own: (images/s of each window, ms of each step, None).

    settings: what `_measure_compiled` takes. Where it cannot be, ([], [], why, in a line). limit_seconds: how long
    starting and compiling together may take; the process and all it started are ended then.
    """
    told = {}
    with isolated_process(command, settings, limit_seconds) as (process, timer, late):
        for line in process.stdout:
            if line.startswith('{"compiled'):
                timer.cancel()
            if line.startswith("{"):
                told.update(json.loads(line))
        code = process.wait()
    if "samples_per_second" in told:
        return told["samples_per_second"], told["step_ms"], None
    if late.is_set():
        return [], [], f"torch.compile was not done after {limit_seconds} s (--compile-limit sets how long to wait)"
    return [], [], told.get("error") or f"torch.compile failed: its process ended with code {code}"


def _measure_compiled(device, model, image_size, batch_size, precision, seed, quick):
    """What the process of `compiled_windows` does: prints a line of JSON once compiled, and one with all windows."""
    from common.model import classifier

    device = torch.device(device)
    if device.index is not None:
        torch.cuda.set_device(device)
    disable_tf32()
    torch.manual_seed(seed)
    try:
        batch = batch_on(device, batch_size, image_size)
        train_step = TrainStep(classifier(model, image_size), device, getattr(torch, precision), COMPILED)
        train_step(*train_step.laid_out(*batch)).item()
        print(json.dumps({"compiled": True}), flush=True)
        speeds, step_ms = speeds_of(windows_of(train_step, batch, device, QUICK if quick else FULL))
    except Exception as error:  # a compiler fails in any way
        print(json.dumps({"error": not_compiled(error)}), flush=True)
        return
    print(json.dumps({"samples_per_second": speeds, "step_ms": step_ms}), flush=True)


def not_compiled(error):
    """Why the compiled model could not be measured, in a line."""
    if is_out_of_memory(error):
        return "the compiled model runs out of memory at this batch size"
    if told := compile_failure(error):
        return told.removesuffix(", or skip this step")
    return f"torch.compile failed: {type(error).__name__}: {printable(error, 160)}"


if __name__ == "__main__":
    _measure_compiled(**json.loads(sys.argv[1]))
