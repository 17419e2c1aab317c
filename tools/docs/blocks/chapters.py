"""The block of docs/index.md: every chapter, its question, and what its step gained."""

from itertools import pairwise

from tools.docs.recorded import Course
from walkthrough.compare import markdown
from walkthrough.compare.markdown import escaped
from walkthrough.compare.published import DEVICE, PUBLISHED

CHAPTERS = {  # {chapter: (its title here, the question)}
    "00_measuring": ("Measuring", "How fast is it, and how do I know?"),
    "01_tensor_cores": ("Tensor Cores", "Are we using the fastest arithmetic units of the GPU?"),
    "02_gpu_memory": ("GPU memory", "What uses the memory, and what does a bigger batch gain?"),
    "03_host_to_device_copy": ("Host-to-device copy", "How many bytes must be copied to the GPU?"),
    "04_loading": ("Loading", "Which process prepares the next batch, and when?"),
    "05_pinned_memory": ("Pinned memory", "Does the CPU have to wait for a copy?"),
    "06_prefetch_stream": ("Prefetch on a stream", "Can a copy overlap with kernels?"),
    "07_small_images": ("Small images", "Who enlarges the images, the loader or the device?"),
    "08_on_device_data": ("Data on the device", "Are loader and copy needed at all?"),
    "09_channels_last": ("Channels last", "Which memory format suits convolutions?"),
    "10_no_hidden_syncs": ("No hidden synchronisation", "Where does the CPU wait for the GPU without need?"),
    "11_fused_optimizer": ("Fused optimizer", "How often does an update read the weights?"),
    "12_cudnn_benchmark": ("cuDNN's choice", "Which algorithm computes a convolution fastest?"),
    "13_compile": ("Compile", "Can small kernels be fused automatically?"),
    "14_compile_loss": ("Compile the loss", "What is left around the model?"),
    "15_cuda_graphs": ("CUDA graphs", "Must the CPU launch every kernel, every time?"),
    "16_data_parallel": ("Data parallel", "How do several processes train one model?"),
    "17_the_limit": ("The limit", "How fast could this model train here, and how much is left?"),
    "18_which_steps_matter": ("Which steps matter", "What does each optimisation gain, alone and with the others?"),
}


def chapters(course: Course) -> str:
    """Every chapter with its question and the gain of its step over the step before, as recorded and as published."""
    base = course.shown.ladder.baseline
    gains = {row.result.step[:2]: str(row.gain) if row.gain else row.needs for row in course.shown.ladder.rows[1:]}
    steps = list(PUBLISHED)
    speeds = {step: row.images_per_second for step, row in PUBLISHED.items()}
    published = {step[:2]: f"{speeds[step] / speeds[before]:.2f}x" for before, step in pairwise(steps)}
    rows = [
        [
            f"[{file[:2]} {title}]({course.to_docs}{file}.md)",
            question,
            gains.get(file[:2], ""),
            published.get(file[:2], ""),
        ]
        for file, (title, question) in CHAPTERS.items()
    ]
    table = markdown.table(
        ["chapter", "the question", f">gain here, {escaped(base.device)}", f">published, {DEVICE}"], rows
    )
    return (
        f"{table}\n\n*Gain over the step before. Here: {escaped(base.model)} at {base.image_size} px, 95 % interval of "
        f"{course.shown.run_count} runs; `~`: no measurable difference. Published: MobileNetV2 at "
        "224 px, one run, no spread, from traced steps.*"
    )


BLOCKS = (chapters,)
