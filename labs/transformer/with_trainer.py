"""The tricks of the numbered programs with Hugging Face's Trainer.

    python labs/transformer/with_trainer.py MODEL FOLDER OUTPUT

MODEL: of the hub, or a folder. FOLDER: with train.csv, columns text and label. OUTPUT: where the best epoch is saved,
for predict.py. Needs transformers and accelerate.
"""

from pathlib import Path
from typing import Any

from labs.transformer.data import from_files, tokenized
from labs.transformer.model import classifier
from walkthrough.results.errors import OneLineParser


def trained(model, folder, output, **changes):
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    texts = from_files(Path(folder))
    sets = tokenized(texts, model)
    rows: Any = {part: [{"input_ids": ids, "labels": label} for ids, label in of] for part, of in sets.items()}
    tokenizer = sets["train"].tokenizer
    arguments = {
        "num_train_epochs": 3, "learning_rate": 5e-5, "warmup_steps": 0.1,  # a share of all steps
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4,  # 32 texts per step
        "fp16": True,  # on a T4; "bf16" on newer GPUs
        "train_sampling_strategy": "group_by_length", "optim": "adamw_torch_fused",
        "dataloader_num_workers": 2, "dataloader_persistent_workers": True,
        "eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True,
    } | changes  # fmt: skip
    trainer = Trainer(
        classifier(model, tokenizer, texts.classes, attention="sdpa"),
        TrainingArguments(output, **arguments),
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=rows["train"], eval_dataset=rows["validation"], processing_class=tokenizer,
        compute_metrics=lambda of: {"accuracy": float((of.predictions.argmax(1) == of.label_ids).mean())},
    )  # fmt: skip
    trainer.train()
    trainer.save_model(output)
    return trainer.evaluate(rows["test"])


def main():
    parser = OneLineParser(description=__doc__)
    for name in ("model", "folder", "output"):
        parser.add_argument(name, metavar=name.upper())
    print(trained(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
