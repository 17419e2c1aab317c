"""The data set that the programs train on: texts as token ids, by the tokenizer that goes with the model."""

from collections.abc import Sequence
from functools import cached_property

from common.options import StepOptions
from labs.shared.tokens import Tokens, hub_tokenizer, trained_tokenizer
from labs.transformer.batches import Item
from labs.transformer.model import SIZES, max_tokens
from labs.transformer.texts import Example, texts

from torch.utils.data import Dataset

QUICK_TOKENS = 128  # of a text at most, by --quick


def tokens_for(model: str, examples: Sequence[Example]) -> Tokens:
    """The `Tokens` that go with a model: trained on these texts for one of `SIZES`. Raises InputError."""
    if model not in SIZES:
        return Tokens(*hub_tokenizer(model, "transformer", ", ".join(SIZES)))
    return Tokens(trained_tokenizer((example.text for example in examples), "transformer"))


class Tokenized(Dataset):
    """Items are (token ids, label). A text is tokenized whenever it is loaded, as in most training programs.

    length: tokens of a text at most.
    """

    unit = "texts"

    def __init__(self, examples: Sequence[Example], tokens: Tokens, length: int, source: str = "docstrings") -> None:
        self.examples, self.tokens, self.length, self.source = examples, tokens, length, source

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Item:
        example = self.examples[index]
        return self.tokens([example.text], self.length)[0], example.label

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each text: all are tokenized once, in about a second per 10,000."""
        return [len(ids) for ids in self.tokens([example.text for example in self.examples], self.length)]


def training_set(options: StepOptions) -> tuple[Tokenized, tuple[str, ...]]:
    """What the programs train on, and the names of its classes. Raises InputError.

    Texts are cut at the model's most tokens; in a smoke run at `QUICK_TOKENS`.
    """
    every, length = texts(options), max_tokens(options.model)
    tokens = tokens_for(options.model, every.train)
    length = min(length, QUICK_TOKENS) if options.quick else length
    return Tokenized(every.train, tokens, length, every.source), every.classes
