"""Train a re-ranker on one fold, choose its epoch by the validation packages, and evaluate it on the test packages."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from common.device import autocast_dtype
from common.options import StepOptions
from labs.shared.words import word_vectors
from labs.simcls import rouge
from labs.simcls.data import Candidates, Collate, PlacedTokens, tokens_for
from labs.simcls.documents import CANDIDATES, Corpus, Document, corpus, split
from labs.simcls.loss import ranking_loss
from labs.simcls.model import SIZES, Encoder, ReRanker, re_ranker, size_of
from labs.simcls.rouge import Scores, kept_rouge, mean
from walkthrough.results.errors import InputError

import torch
from torch.utils.data import DataLoader

METHODS = ("worst", "random", "first", "best place", "nearest length", "re-ranked", "oracle")
OF_TEST = 64  # documents per batch where nothing is kept for backward
MOST_TOKENS = 500  # of a document, that word vectors are made from
WARMUP = 0.1  # of all steps: the learning rate rises, then falls to 0


@dataclass(frozen=True)
class Plan:
    """epochs, batch_size (documents), lr: of AdamW, its highest; most_documents: of the training part, None for all."""

    epochs: int
    batch_size: int
    lr: float
    most_documents: int | None = None


FULL = Plan(epochs=8, batch_size=16, lr=1e-3)
QUICK = Plan(epochs=4, batch_size=16, lr=1e-3)
FINE_TUNING_LR = 2e-5  # of an encoder that was trained before
BASE_LR = 1e-4  # of a large one that was not


@dataclass(frozen=True)
class Trained:
    """What training on a fold gave.

    documents, packages: {"train", "validation", "test": how many}. losses: mean of each epoch. validation: the mean
    ROUGE of the candidate that the model ranks first, before the first epoch and after each; validation_first: that of
    the first sentence. chosen: the epoch whose weights were tested, the best of them. test: {package: {method:
    (ROUGE-1, ROUGE-2, ROUGE-L)}}, sums over its test documents, of which `counts` says how many there are. An article
    is in no package, and represents itself.
    """

    fold: int
    seed: int
    documents: dict[str, int]
    packages: dict[str, int]
    losses: list[float]
    validation: list[float]
    validation_first: float
    chosen: int
    test: dict[str, dict[str, tuple[float, ...]]]
    counts: dict[str, int]
    source: str = ""
    dropped: int = 0
    notes: list[str] = field(default_factory=list)


def plan_for(options: StepOptions) -> Plan:
    """The `Plan` of a run with these options."""
    plan = QUICK if options.quick else FULL
    lr = plan.lr if options.model == "small" else BASE_LR if options.model in SIZES else FINE_TUNING_LR
    return Plan(plan.epochs, plan.batch_size, lr, plan.most_documents)


def ranking_model(model: str) -> str:
    """The encoder that ranks in a study with this model: "small" in place of "medium", see `model.SIZES`."""
    return "small" if model == "medium" else model


def trained(options: StepOptions, fold: int, seed: int = 0) -> Trained:
    """Train and test on one fold, with the encoder `ranking_model`. Raises InputError for what cannot be had.

    seed: added to that of the options.
    """
    options = replace(options, model=ranking_model(options.model), seed=options.seed + seed)
    texts = corpus(options.data, options.download)
    return train(texts, kept_rouge(options.data, texts), options, fold, plan_for(options))


def train(texts: Corpus, scores: dict[Document, Scores], options: StepOptions, fold: int, plan: Plan) -> Trained:
    """See `trained`. scores: the ROUGE of each document's candidates."""
    parts = split(texts.documents, fold)
    device = torch.device(options.device)
    torch.manual_seed(options.seed * 1000 + fold)
    generator = torch.Generator().manual_seed(options.seed * 1000 + fold)
    documents = shortened(parts.train, plan.most_documents)
    if len(documents) < plan.batch_size or not parts.validation or not parts.test:
        raise InputError(f"{len(documents)} documents to train on in fold {fold}: too few; install more packages")
    tokens = tokens_for(options.model, documents)
    model = re_ranker(options.model, tokens.vocabulary, tokens.pad_id)
    if options.model == "small" and isinstance(model.encoder, Encoder):
        keep_word_vectors(model.encoder, tokens, documents)
    model.to(device)
    lengths = size_of(options.model).lengths
    train_set = Candidates(documents, tokens, lengths, texts.source, [scores[text] for text in documents])
    loader = DataLoader(
        train_set, plan.batch_size, shuffle=True, drop_last=True, collate_fn=Collate(tokens.pad_id), generator=generator
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rising_then_falling(plan.epochs * len(loader)))
    dtype = autocast_dtype(device, options.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

    def chosen_candidates(of: Sequence[Document]) -> list[int]:
        return top_ranked(model, of, tokens, lengths, device, dtype)

    validation = [mean_rouge(parts.validation, scores, chosen_candidates(parts.validation))]
    losses, best = [], (-1.0, 0, {})
    for epoch in range(1, plan.epochs + 1):
        model.train()
        of_steps = []
        for batch in loader:
            ids = [part.to(device) for part in batch]
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                loss = ranking_loss(*model(*ids))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            of_steps.append(loss.detach())
        losses.append(torch.stack(of_steps).mean().item())
        validation.append(mean_rouge(parts.validation, scores, chosen_candidates(parts.validation)))
        print(f"  fold {fold}, epoch {epoch}: loss {losses[-1]:.3f}, validation ROUGE {validation[-1]:.4f}", flush=True)
        if validation[-1] > best[0]:
            best = validation[-1], epoch, {name: value.detach().clone() for name, value in model.state_dict().items()}
    model.load_state_dict(best[2])
    numbers = {"re-ranked": chosen_candidates(parts.test), **rules(parts.test, documents, parts.validation, scores)}
    units = [text.group if texts.source == "docstrings" else str(number) for number, text in enumerate(parts.test)]
    return Trained(
        fold=fold,
        seed=options.seed,
        documents={"train": len(documents), "validation": len(parts.validation), "test": len(parts.test)},
        packages={name: len({text.group for text in part}) for name, part in vars(parts).items()},
        losses=losses,
        validation=validation,
        validation_first=mean_rouge(parts.validation, scores, [0] * len(parts.validation)),
        chosen=best[1],
        test=rouge_by_package(units, parts.test, scores, numbers),
        counts=dict(Counter(units)),
        source=texts.source,
        dropped=texts.dropped,
    )


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


def rising_then_falling(steps: int) -> Callable[[int], float]:
    """The factor of the learning rate by step: up over `WARMUP` of all steps, then down to 0, both linearly."""
    top = max(1, round(WARMUP * steps))
    return lambda step: min((step + 1) / top, max(0.0, (steps - step) / max(1, steps - top)))


def shortened(documents: Sequence[Document], most: int | None) -> list[Document]:
    """At most so many of the documents, evenly over their order, so over their packages."""
    if most is None or len(documents) <= most:
        return list(documents)
    return [documents[number * len(documents) // most] for number in range(most)]


@torch.no_grad()
def top_ranked(
    model: ReRanker,
    documents: Sequence[Document],
    tokens: PlacedTokens,
    lengths: tuple[int, int],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> list[int]:
    """The number of the candidate that the model scores highest, of each document. It sees no ROUGE, no reference."""
    test_set = Candidates(documents, tokens, lengths, ordered=False)
    model.eval()
    numbers = []
    for of_documents, references, candidates in DataLoader(test_set, OF_TEST, collate_fn=Collate(tokens.pad_id)):
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            scores, _ = model(of_documents.to(device), references.to(device), candidates.to(device))
        numbers += scores.argmax(dim=1).tolist()
    return numbers


def rules(
    test: Sequence[Document],
    train: Sequence[Document],
    validation: Sequence[Document],
    scores: dict[Document, Scores],
) -> dict[str, list[int]]:
    """{method: the number of the candidate that it chooses, of each test document}: what needs no model.

    first: what comes first. best place: the candidate whose number is the best one on the validation documents.
    nearest length: the one whose number of words is nearest to the mean of the training documents' references; ROUGE's
    F measure rewards that. oracle, worst: of the highest and of the lowest ROUGE.
    """
    places = [sum(mean(scores[text][place]) for text in validation) for place in range(CANDIDATES)]
    words = sum(len(text.reference.split()) for text in train) / len(train)

    def nearest(text: Document) -> int:
        return min(range(CANDIDATES), key=lambda number: abs(len(text.candidates[number].split()) - words))

    orders = [rouge.best_first(scores[text]) for text in test]
    return {
        "first": [0] * len(test),
        "best place": [places.index(max(places))] * len(test),
        "nearest length": [nearest(text) for text in test],
        "oracle": [order[0] for order in orders],
        "worst": [order[-1] for order in orders],
    }


def rouge_by_package(
    packages: Sequence[str],
    documents: Sequence[Document],
    scores: dict[Document, Scores],
    numbers: dict[str, list[int]],
) -> dict[str, dict[str, tuple[float, ...]]]:
    """{package: {method: (ROUGE-1, ROUGE-2, ROUGE-L)}}, sums over its documents; "random" is the mean of candidates.

    packages: of each document. numbers: {method: of the candidate that it chooses, of each document}.
    """
    rows: dict[str, dict[str, list[Sequence[float]]]] = {}
    for at, (package, text) in enumerate(zip(packages, documents, strict=True)):
        of_package = rows.setdefault(package, {name: [] for name in METHODS})
        random = [fmean(kind) for kind in zip(*scores[text], strict=True)]
        for name in METHODS:
            of_package[name].append(random if name == "random" else scores[text][numbers[name][at]])
    return {
        package: {name: tuple(map(sum, zip(*chosen, strict=True))) for name, chosen in of_package.items()}
        for package, of_package in rows.items()
    }


def mean_rouge(documents: Sequence[Document], scores: dict[Document, Scores], numbers: Sequence[int]) -> float:
    """The mean ROUGE of the candidates of these numbers, over the documents."""
    return sum(mean(scores[text][number]) for text, number in zip(documents, numbers, strict=True)) / len(documents)
