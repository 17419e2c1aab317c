"""Train a re-ranker to the end, keep the weights of its best epoch, and test them against rules that need no model.

    python labs/simcls/train.py
    python labs/simcls/train.py --model roberta-base --candidates bart.jsonl

It writes `epochs.csv`, TensorBoard scalars, `checkpoint.pt`, the best epoch's weights with what `rank.py` needs besides
them, and at the end `test.json`, into --logdir. The same command goes on after a kill, at the epoch after the last
whole one. Lines of FILE are as in documents.py: the candidates that one's own generator wrote for each document.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from common.device import device_name, disable_tf32
from common.options import StepOptions, Workload, add_step_options, resolved
from labs.shared.text import word_vectors
from labs.shared.training import DTYPES, Training, folder_of, logdir_text, precision_of, rising_then_falling
from labs.simcls.data import Candidates, Collate, PlacedTokens, check_extras, tokens_for
from labs.simcls.documents import Corpus, Document, Scores, corpus, kept_rouge, split
from labs.simcls.model import DEFAULTS, SIZES, Encoder, HubEncoder, ReRanker, ranking_loss, re_ranker, size_of
from walkthrough.results.errors import InputError, OneLineParser, folder, real_number, whole_number
from walkthrough.results.result import check_writable, write_json, write_whole

import numpy as np
import torch
from torch.utils.data import DataLoader, RandomSampler

FOLDER = DEFAULTS.logdir / "train"
METHODS = ("worst", "random", "first", "nearest length", "re-ranked", "oracle")
RANKER, TOKENIZER, TEST = "ranker.json", "tokenizer.json", "test.json"
STEP_DOCUMENTS = 16  # of an optimizer step, unless the command line says
MOST_TOKENS = 500  # of a document, that word vectors are made from
QUICK = 500  # documents, with --quick; a small encoder takes four times as many
TOLD = 50  # batches, after which the time of an epoch is said
WARMUP = 0.1  # of all steps: the learning rate rises, then falls to 0


@dataclass(frozen=True)
class Settings:
    """What determines a training's result.

    data: a digest of the documents. documents: of the training part, at most; None for all. batch_size: documents that
    are in memory at a time, each with its candidates and its reference; accumulate: such batches of an optimizer step.
    lr: AdamW's highest. checkpointed: whether layers are computed again in the backward pass.
    """

    model: str
    data: str
    fold: int
    documents: int | None
    epochs: int
    batch_size: int
    accumulate: int
    lr: float
    checkpointed: bool
    precision: str
    seed: int


@dataclass(frozen=True)
class Trained:
    """What training on a fold gave.

    documents: {"train", "validation", "test": how many}. chosen: the epoch whose weights were tested, the best of them.
    test: {package: {method: [ROUGE-1, ROUGE-2, ROUGE-L]}}, sums over its test documents, of which `counts` says how
    many there are. An article is in no package, and represents itself.
    """

    seed: int
    documents: dict[str, int]
    chosen: int
    test: dict[str, dict[str, list[float]]]
    counts: dict[str, int]


def settings_for(options: StepOptions, texts: Corpus, fold: int = 0) -> Settings:
    """The `Settings` of these options; epochs and lr by the model: one that was trained before needs fewer, lower."""
    own, small = options.model in SIZES, options.model == "small"
    return Settings(
        model=options.model, data=texts.digest, fold=fold,
        documents=(4 * QUICK if small else QUICK) if options.quick else None,
        epochs=(4 if small else 2) if options.quick else 8 if small else 5,
        batch_size=options.batch_size, accumulate=max(1, STEP_DOCUMENTS // options.batch_size),
        lr=1e-3 if small else 1e-4 if own else 2e-5, checkpointed=False,
        precision=precision_of(options.device, options.precision), seed=options.seed,
    )  # fmt: skip


def train(
    texts: Corpus, scores: dict[Document, Scores], settings: Settings, device: torch.device,
    workers: int = 0, keep: Path | None = None,
) -> Trained:  # fmt: skip
    """Train on one fold, choose the epoch by its validation part, and test. scores: the ROUGE of each document.

    keep: the folder of the `Training`, and of what `rank.py` needs; None writes nothing. Raises InputError.
    """
    parts = split(texts.documents, settings.fold)
    every = parts["train"]
    most = min(len(every), settings.documents or len(every))
    documents = [every[number * len(every) // most] for number in range(most)]  # some of every package
    if len(documents) < settings.batch_size * settings.accumulate or not parts["validation"] or not parts["test"]:
        raise InputError(f"{len(documents)} documents to train on in fold {settings.fold}: too few for a step")
    torch.manual_seed(settings.seed)
    tokens, lengths = tokens_for(settings.model, documents), size_of(settings.model).lengths
    model = re_ranker(settings.model, tokens.vocabulary, tokens.pad_id)
    if settings.model == "small" and isinstance(model.encoder, Encoder):
        keep_word_vectors(model.encoder, tokens, documents)
    model.encoder.checkpointed = settings.checkpointed
    model.to(device)
    order, dtype = torch.Generator(), DTYPES[settings.precision]
    train_set = Candidates(documents, tokens, lengths, texts.source, [scores[text] for text in documents])
    loader = DataLoader(
        train_set, settings.batch_size, sampler=RandomSampler(train_set, generator=order), drop_last=True,
        collate_fn=Collate(tokens.pad_id), num_workers=workers, persistent_workers=workers > 0,
        generator=torch.Generator(),  # apart: it is drawn from once where workers stay, which is not once per epoch
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.01)
    schedule = rising_then_falling(optimizer, settings.epochs * (len(loader) // settings.accumulate), WARMUP)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    stateful = {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    run = Training(keep, settings, stateful, [order], "validation_rouge", device)

    def chosen_candidates(of: Sequence[Document]) -> list[int]:
        unordered = Candidates(of, tokens, lengths, ordered=False)
        scored = scores_of(model, unordered, device, dtype, 4 * settings.batch_size)
        return [max(range(len(row)), key=row.__getitem__) for row in scored]

    for _ in run.epochs(settings.epochs):
        if keep and not run.rows:
            keep_for_ranking(keep, settings.model, model, tokens)
        model.train()
        losses = []
        for number, batch in enumerate(loader, 1):
            ids = [part.to(device, non_blocking=True) for part in batch]
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = ranking_loss(*model(*ids))
            scaler.scale(loss / settings.accumulate).backward()
            losses.append(loss.detach())
            if number % settings.accumulate == 0:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
            if number == TOLD and keep and not run.rows:
                minutes = run.seconds() / TOLD * len(loader) / 60
                print(f"after {TOLD} batches: {minutes:.0f} minutes per epoch, and validation", flush=True)
        optimizer.zero_grad()  # of batches that are too few for another step
        seconds = run.seconds()
        chosen = zip(parts["validation"], chosen_candidates(parts["validation"]), strict=True)
        rouge = float(np.mean([scores[text][candidate] for text, candidate in chosen]))
        speed = len(losses) * settings.batch_size / seconds
        run.done(
            loss=torch.stack(losses).mean().item(), validation_rouge=rouge, documents_per_second=speed, seconds=seconds
        )

    best = run.load_best()
    usual_words = sum(len(text.reference.split()) for text in documents) / len(documents)
    units = [str(at) if texts.is_split else text.group for at, text in enumerate(parts["test"])]
    return Trained(
        seed=settings.seed,
        documents={name: len(part) for name, part in (parts | {"train": documents}).items()},
        chosen=int(best["epoch"]),
        test=rouge_by_package(parts["test"], units, scores, chosen_candidates(parts["test"]), usual_words),
        counts=dict(Counter(units)),
    )


def keep_for_ranking(keep: Path, name: str, model: ReRanker, tokens: PlacedTokens) -> None:
    """Write what `rank.py` needs besides the weights: the encoder's name or configuration, and the tokenizer."""
    check_writable(keep)
    if isinstance(model.encoder, HubEncoder):
        model.encoder.model.config.save_pretrained(keep)  # config.json
    write_json(keep / RANKER, {"model": name, "pad": tokens.tokenizer.id_to_token(tokens.pad_id)})
    write_whole(keep / TOKENIZER, tokens.tokenizer.to_str())


def keep_word_vectors(encoder: Encoder, tokens: PlacedTokens, documents: Sequence[Document]) -> None:
    """Give an own encoder the `word_vectors` of these documents, and leave them as they are: nothing trains them.

    A few thousand documents say which sentences resemble summaries, not what each word means: where all words' vectors
    are trained on the order of candidates, they are learned by heart.
    """
    embedding = encoder.tokens
    texts = tokens([f"{text.reference} {text.text}" for text in documents], MOST_TOKENS)
    vectors = word_vectors([ids[1:] for ids in texts], *embedding.weight.shape)
    with torch.no_grad():
        embedding.weight.copy_(vectors)
        embedding.weight[tokens.pad_id] = 0
    embedding.weight.requires_grad_(False)


@torch.no_grad()
def scores_of(
    model: ReRanker, of: Candidates, device: torch.device, dtype: torch.dtype, batch_size: int
) -> list[list[float]]:
    """The model's score of each candidate of each document; it sees no ROUGE and no reference.

    of: unordered, equally many of each document. batch_size: documents; nothing is kept for backward.
    """
    model.eval()
    scored = []
    for documents, references, candidates in DataLoader(of, batch_size, collate_fn=Collate(of.tokens.pad_id)):
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            scores, _ = model(documents.to(device), references.to(device), candidates.to(device))
        scored += scores.tolist()
    return scored


def rouge_by_package(
    test: Sequence[Document], packages: Sequence[str], scores: dict[Document, Scores],
    ranked: Sequence[int], usual_words: float,
) -> dict[str, dict[str, list[float]]]:  # fmt: skip
    """{package: {method: [ROUGE-1, ROUGE-2, ROUGE-L]}}, sums over its test documents, of what each method chooses.

    packages: of each document. ranked: the number of the candidate that the model chooses. random: the mean of all.
    nearest length: the candidate whose number of words is nearest to `usual_words`, the mean of the training
    documents' references; ROUGE's F measure rewards that. oracle, worst: of the highest and of the lowest ROUGE.
    """
    rouge = np.stack([scores[text] for text in test])  # [documents, candidates, kinds]
    words = np.array([[len(candidate.split()) for candidate in text.candidates] for text in test])
    numbers = {
        "worst": rouge.mean(2).argmin(1),
        "first": 0,
        "nearest length": abs(words - usual_words).argmin(1),
        "re-ranked": ranked,
        "oracle": rouge.mean(2).argmax(1),
    }
    chosen = {name: rouge[np.arange(len(test)), number] for name, number in numbers.items()} | {"random": rouge.mean(1)}
    of, known = np.array(packages), dict.fromkeys(packages)
    return {package: {name: chosen[name][of == package].sum(0).tolist() for name in METHODS} for package in known}


def add_candidates(parser: argparse.ArgumentParser) -> None:
    """Add --candidates, another name of --data for a file."""
    text = "JSON lines with the candidates that a generator wrote, see documents.py: in place of --data"
    parser.add_argument("--candidates", dest="data", type=folder, metavar="FILE", help=text, default=argparse.SUPPRESS)


def options(words: Sequence[str] | None = None) -> tuple[StepOptions, argparse.Namespace]:
    """The command line: (what every program takes, all of it), with this lab's defaults by the device."""
    parser = OneLineParser(description=__doc__)
    defaults = replace(DEFAULTS, cpu=Workload("small", STEP_DOCUMENTS))
    texts = {
        "--logdir": logdir_text(FOLDER),
        "--batch-size": f"documents at a time (default: 8 on a GPU, {STEP_DOCUMENTS} on a CPU)",
        "--seed": "of weights and shuffling (default: %(default)s)",
        "--quick": f"fewer epochs, and {QUICK} documents; of docstrings {4 * QUICK}",
    }
    without = (*DEFAULTS.without, "--stacks")
    add_step_options(parser, FOLDER, batch_size=None, without=without, texts=texts, defaults=defaults)
    add_candidates(parser)
    count = whole_number(1, 10**7)
    parser.add_argument("--epochs", type=count, metavar="N", help="in all (default: 8 of small, 5 of others)")
    parser.add_argument(
        "--documents", type=count, metavar="N", help="to train on, and of other splits, at most (default: all)"
    )
    parser.add_argument(
        "--accumulate", type=count, metavar="N", help="batches of an optimizer step (default: those of 16 documents)"
    )
    parser.add_argument("--lr", type=real_number(0), help="AdamW's highest (default: by the model)")
    parser.add_argument("--checkpoint", action="store_true", help="compute layers again in the backward pass")
    args = parser.parse_args(words)
    args.logdir = folder_of(args.logdir, FOLDER, args.quick)
    return resolved(args, defaults=defaults), args


def main() -> None:
    steps, args = options()
    disable_tf32()
    check_extras(steps.model)
    check_writable(steps.logdir)
    texts = corpus(steps.data, args.documents or (QUICK if steps.quick else None))
    asked = {name: getattr(args, name) for name in ("epochs", "documents", "accumulate", "lr")}
    settings = replace(
        settings_for(steps, texts), checkpointed=args.checkpoint,
        **{name: value for name, value in asked.items() if value is not None},
    )  # fmt: skip
    print(
        f"train: {steps.model} on {texts.source}, {len(texts.documents)} documents with "
        f"{len(texts.documents[0].candidates)} candidates each, {settings.batch_size} x {settings.accumulate} of them "
        f"per step, {settings.precision}, on {device_name(steps.device)}",
        flush=True,
    )
    scores = kept_rouge(steps.data, texts)
    of_run = train(texts, scores, settings, torch.device(steps.device), steps.workers, steps.logdir)
    count = of_run.documents["test"]
    sums = {name: np.sum([of_package[name] for of_package in of_run.test.values()], axis=0) for name in METHODS}
    rouge = {name: (100 * values / count).tolist() for name, values in sums.items()}
    write_json(steps.logdir / TEST, {"settings": asdict(settings), "documents": of_run.documents, "rouge": rouge})
    print(f"test, {count} documents, epoch {of_run.chosen}: ROUGE-1, -2, -L of the candidate that is chosen")
    for name, values in rouge.items():
        print(f"{name:>16} {' '.join(f'{value:6.2f}' for value in values)}")
    print(f"written to {steps.logdir}; rank your own with: python labs/simcls/rank.py {steps.logdir} FILE")


if __name__ == "__main__":
    main()
