"""Classify texts with a model that train.py saved, or any folder or hub model that transformers classifies with.

python labs/transformer/predict.py logs/labs/transformer/train/model "Return an array of zeros." "Open a socket."
python labs/transformer/predict.py FOLDER < texts.txt      # a text per line
"""

import sys
from collections.abc import Sequence

from common.device import checked_device
from labs.transformer.data import tokenizer_for
from labs.transformer.model import from_hub
from walkthrough.results.errors import InputError, OneLineParser, printable

import torch

BATCH = 64  # texts


@torch.no_grad()
def predicted(model: str, texts: Sequence[str], device: str = "cpu") -> list[tuple[str, float]]:
    """(Name of the class, its probability) of each text. Raises InputError for a model that cannot be loaded."""
    tokenizer = tokenizer_for(model, ())
    classifier, report = from_hub("AutoModelForSequenceClassification", model, output_loading_info=True)
    if report["missing_keys"]:
        raise InputError(f"{model} has no trained head, or not all of its weights: train it first, with train.py")
    classifier.to(device)
    results: list[tuple[str, float]] = []
    for at in range(0, len(texts), BATCH):
        batch = tokenizer(list(texts[at : at + BATCH]), truncation=True, padding=True, return_tensors="pt").to(device)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        best = classifier(**inputs).logits.float().softmax(1).max(1)
        names = [classifier.config.id2label[label] for label in best.indices.tolist()]
        results += zip(names, best.values.tolist(), strict=True)
    return results


def main() -> None:
    parser = OneLineParser(description=__doc__)
    parser.add_argument("model", help="a folder that save_pretrained wrote, or a classifier of the Hugging Face hub")
    parser.add_argument("texts", nargs="*", help="(default: the lines of the standard input)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the GPU if there is one)")
    args = parser.parse_args()
    texts = args.texts or [line.strip() for line in sys.stdin if line.strip()]
    for text, (label, share) in zip(texts, predicted(args.model, texts, checked_device(args.device)), strict=True):
        print(f"{label}\t{share:.1%}\t{printable(text, 80)}")


if __name__ == "__main__":
    main()
