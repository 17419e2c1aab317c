"""labs/transformer: its texts and their split, files of the user's own, tokens, batches and their order."""

import csv
import random
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from common.options import StepOptions
from labs.transformer import data as of_texts
from labs.transformer.batches import (
    Packing,
    Padding,
    UniformLengthBatches,
    packed_parts,
    padding_share,
    token_count,
)
from labs.transformer.data import Example, Tokenized, fewer, from_docstrings, part_of, texts, tokenizer_for
from labs.transformer.model import begin_with_word_vectors
from walkthrough.results.errors import InputError

WORDS = "array tensor graph file socket parser index buffer matrix stream schema cursor window kernel token record"


def options(data):
    return StepOptions(
        logdir=data, device="cpu", data=data, download=False, model="tiny", image_size=0,
        batch_size=8, workers=0, precision="fp32", seed=0, quick=True, stacks=False,
    )  # fmt: skip


# Docstrings


@pytest.fixture
def packages(tmp_path):
    """A folder of three packages: 30 files of three docstrings, 15 of three, and 2 of one."""
    folder, draw = tmp_path / "packages", random.Random(0)
    for package, files, functions in (("beta", 30, 3), ("alpha", 15, 3), ("rare", 2, 1)):
        (folder / package).mkdir(parents=True)
        for number in range(files):
            lines = []
            for function in range(functions):
                words = " ".join(draw.choices(WORDS.split(), k=draw.randint(4, 30)))
                lines.append(f'def function_{function}():\n    """{package} {number} {words}."""\n')
            (folder / package / f"module_{number}.py").write_text("\n".join(lines))
    return folder


def test_a_source_file_is_in_one_part_and_rare_packages_are_left_out(packages, tmp_path):
    split = from_docstrings(tmp_path / "kept", [packages])
    assert split.classes == ("alpha", "beta") and split.source == "docstrings"
    files = {}
    for part in ("train", "validation", "test"):
        for example in getattr(split, part):
            package, number = example.text.split()[:2]
            assert split.classes[example.label] == package
            files.setdefault((package, number), []).append(part)
    assert len(files) == 45
    assert all(len(parts) == 3 and len(set(parts)) == 1 for parts in files.values())
    assert {parts[0] for parts in files.values()} == {"train", "validation", "test"}


def test_what_was_collected_is_kept_until_other_packages_are_installed(packages, tmp_path, monkeypatch):
    first = from_docstrings(tmp_path / "kept", [packages])
    with monkeypatch.context() as patched:
        patched.setattr(of_texts.docstrings, "collect_texts", None)
        assert from_docstrings(tmp_path / "kept", [packages]) == first
    (packages / "new-1.0.dist-info").mkdir()
    monkeypatch.setattr(of_texts.docstrings, "collect_texts", lambda *_: [])
    with pytest.raises(InputError, match="install more packages"):
        from_docstrings(tmp_path / "kept", [packages])


def test_a_damaged_file_of_kept_docstrings_is_collected_anew(packages, tmp_path):
    first = from_docstrings(tmp_path / "kept", [packages])
    for content in ("", "{}", '{"schema": 1, "key": 3}', "[1, 2"):
        (tmp_path / "kept" / of_texts.KEPT).write_text(content)
        assert from_docstrings(tmp_path / "kept", [packages]) == first


def test_parts_are_70_10_and_20_percent_of_many_files():
    counts = Counter(part_of(f"package/module_{number}.py") for number in range(4000))
    assert counts["train"] / 4000 == pytest.approx(0.7, abs=0.03)
    assert counts["validation"] / 4000 == pytest.approx(0.1, abs=0.03)


# Files of the user's own


def test_files_of_texts_and_labels_are_read(tmp_path):
    rows = [('He said "yes",\nand\tleft.', "good"), ("Grüße", "bad")] * 40
    rows = [(f"{text} {number}", label) for number, (text, label) in enumerate(rows)]
    write(tmp_path / "train.csv", rows)
    write(tmp_path / "test.csv", rows[:2])
    split = texts(options(tmp_path))
    assert split.classes == ("bad", "good")
    assert [(one.text, split.classes[one.label]) for one in split.test] == rows[:2]
    assert split.validation  # set apart from train
    both = [*split.train, *split.validation]
    assert sorted((one.text, split.classes[one.label]) for one in both) == sorted(rows)
    assert split.source == tmp_path.name


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "train.csv is empty"),
        (b"text,label\n", "train.csv is empty"),
        (b"text\nno label\n", "has no column label"),
        (b"body,class\na,b\n", "has no column label and text"),
        (b"text,label\na,x\nb,\n", "row 2: no label"),
        (b"text,label\n,x\n", "row 1: no text"),
        (b"text,label\na,x\nb,x\n", "texts of 1 class"),
        (b"text,label\n\xff\xfe,x\n", "not UTF-8"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_with_its_place(tmp_path, content, words):
    (tmp_path / "train.csv").write_bytes(content)
    with pytest.raises(InputError) as error:
        texts(options(tmp_path))
    assert words in str(error.value) and "\n" not in str(error.value) and "train.csv" in str(error.value)


def test_a_label_that_no_training_text_has_is_refused(tmp_path):
    write(tmp_path / "train.csv", [("a", "x"), ("b", "y")])
    write(tmp_path / "validation.csv", [("c", "x")])
    write(tmp_path / "test.csv", [("c", "z\n")])
    with pytest.raises(InputError, match=r"the label 'z.*' is in no text of train\.csv") as error:
        texts(options(tmp_path))
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        texts(options(tmp_path / "none"))


def test_a_folder_without_texts_for_training_is_refused_instead_of_reading_docstrings(tmp_path):
    (tmp_path / "training.csv").write_text("text,label\na,x\n")
    with pytest.raises(InputError, match=r"has no train\.csv"):
        texts(options(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["training.csv"]


def test_too_few_texts_to_set_some_apart_is_one_line_that_names_what_is_missing(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,x\na,y\n")  # equal texts are in one part
    with pytest.raises(InputError, match=r"no text is left for .*: bring more texts, or "):
        texts(options(tmp_path))


def test_a_smoke_run_has_fewer_texts_of_every_class(tmp_path):
    rows = [f"text {number},{number % 2}" for number in range(200)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    whole = texts(options(tmp_path))
    smaller = fewer(whole, 10)
    assert [len(getattr(smaller, part)) for part in ("train", "validation", "test")] == [10, 10, 10]
    assert {one.label for one in smaller.train} == {0, 1} and set(smaller.train) < set(whole.train)
    assert fewer(whole, 10) == smaller and fewer(whole, 1000) == whole


# Tokens


def test_a_text_that_is_too_long_is_cut_and_begins_with_the_token_that_the_head_reads():
    tokens = tokenizer_for("tiny", (Example(WORDS, 0),) * 3)
    data = Tokenized([Example(WORDS * 20, 1), Example("array", 0)], tokens, length=32)
    ids, label = data[0]
    assert (len(ids), label) == (32, 1)
    first = tokens.cls_token_id
    assert ids[0] == first and data[1][0][0] == first and first not in ids[1:]
    assert data.lengths == [32, len(data[1][0])]
    assert tokens.pad_token_id not in ids and data.pad_id == tokens.pad_token_id == 0


# Batches


@pytest.fixture
def items():
    draw = random.Random(1)
    lengths = [min(120, 1 + int(draw.expovariate(0.04))) for _ in range(203)]
    return [([1, *(draw.randint(2, 50) for _ in range(length))], number % 7) for number, length in enumerate(lengths)]


def test_fixed_padding_fills_up_to_one_length_and_cuts(items):
    labels, ids = Padding(0, 64)(items[:9])
    assert ids.shape == (9, 64) and labels.tolist() == [label for _, label in items[:9]]
    for row, (sequence, _) in zip(ids.tolist(), items[:9], strict=True):
        assert row == (sequence + [0] * 200)[:64] or row == sequence[:64]


def test_dynamic_padding_fills_up_to_the_longest(items):
    labels, ids = Padding(0)(items[:9])
    assert ids.shape == (9, max(len(sequence) for sequence, _ in items[:9])) and len(labels) == 9
    assert (ids != 0).sum(1).tolist() == [len(sequence) for sequence, _ in items[:9]]


@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_packing_keeps_every_text_whole_with_its_label(items, count):
    labels, ids, positions, starts = Packing(0)(items[:count])
    longest = max(len(sequence) for sequence, _ in items[:count])
    assert longest <= ids.shape[1] < longest + 8 and ids.shape[1] % 8 == 0
    flat, places = ids.flatten(), positions.flatten()
    unpacked = []
    for label, start in zip(labels.tolist(), starts.tolist(), strict=True):
        end = start + 1
        while end % ids.shape[1] and places[end] == places[end - 1] + 1:
            end += 1
        assert places[start] == 0
        unpacked.append((flat[start:end].tolist(), label))
    assert sorted(unpacked) == sorted(items[:count])
    assert starts.tolist() == sorted(starts.tolist())
    assert (ids != 0).sum() == sum(len(sequence) for sequence, _ in items[:count])


def test_packed_parts_hold_unequal_numbers_of_texts_and_lose_none(items):
    whole, batch = Packing(0)(items[:60]), Packing(0, rows=2)(items[:60])
    parts = list(packed_parts(*batch))
    assert len(parts) == -(-len(whole[1]) // 2) > 2
    assert torch.equal(torch.cat([part[0] for part in parts]), whole[0])
    assert torch.equal(torch.cat([part[1] for part in parts]), whole[1])
    assert len({len(part[0]) for part in parts}) > 1
    assert max(len(part[1]) for part in parts) <= 2
    for labels, ids, positions, starts in parts:
        assert len(labels) == len(starts)
        assert positions.flatten()[starts].eq(0).all() and ids.flatten()[starts].eq(1).all()  # 1: the first token


def test_packing_leaves_less_to_fill_up_than_padding(items):
    def share(collate):
        return padding_share([collate(items[at : at + 40]) for at in range(0, 200, 40)], 0)

    assert share(Packing(0)) < 0.12 < share(Padding(0)) < share(Padding(0, 128))


def test_real_tokens_are_counted_and_what_fills_up_is_not(items):
    real = sum(len(sequence) for sequence, _ in items[:9])
    for collate in (Padding(0, 128), Padding(0), Packing(0), Packing(0, rows=1)):
        batch = collate(items[:9])
        assert int(token_count(0)(batch)) == real
        assert padding_share([batch], 0) == pytest.approx(1 - real / sum(ids.numel() for ids in batch[1::3]))
        assert len(batch[0]) == 9  # `run_step` counts samples by it


def test_uniform_length_batches_have_every_text_once_and_another_order_each_epoch(items):
    lengths = [len(ids) for ids, _ in items]
    sampler = UniformLengthBatches(lengths, 8, torch.Generator().manual_seed(0))
    epochs = [list(sampler) for _ in range(2)]
    assert all(sorted(epoch) == list(range(203)) for epoch in epochs)
    assert epochs[0] != epochs[1] and len(sampler) == 203
    again = UniformLengthBatches(lengths, 8, torch.Generator().manual_seed(0))
    assert list(again) == epochs[0]
    assert {frozenset(epochs[0][at : at + 8]) for at in range(0, 200, 8)} != {
        frozenset(epochs[1][at : at + 8]) for at in range(0, 200, 8)
    }


def test_uniform_length_batches_are_of_about_one_length_and_not_in_its_order(items):
    lengths = [len(ids) for ids, _ in items]
    sampler = UniformLengthBatches(lengths, 8, torch.Generator().manual_seed(0))
    order = list(sampler)
    batches = [order[at : at + 8] for at in range(0, len(order), 8)]
    assert [len(batch) for batch in batches] == [8] * 25 + [3]
    means = [sum(lengths[number] for number in batch) / 8 for batch in batches[:-1]]
    assert means != sorted(means) and means != sorted(means, reverse=True)
    loader = DataLoader(items, 8, sampler=sampler, drop_last=True, collate_fn=Padding(0))
    shuffled = DataLoader(items, 8, shuffle=True, drop_last=True, collate_fn=Padding(0))
    assert len(loader) == len(list(loader)) == 25 and loader.batch_size == 8
    assert padding_share(list(loader), 0) < 0.1 < padding_share(list(shuffled), 0)


def test_fewer_texts_than_a_batch_are_one_batch_that_is_not_full():
    assert sorted(UniformLengthBatches([5, 2, 9], 8)) == [0, 1, 2]


# From random weights


def test_word_vectors_of_the_training_texts_replace_random_ones_of_their_size():
    """Words that stand among the same others are near each other; made-up texts of two subjects."""
    draw = random.Random(0)
    subjects = ("array tensor matrix buffer".split(), "socket parser schema cursor".split())
    examples = [Example(" ".join(draw.choices(subjects[number % 2], k=12)), number % 2) for number in range(200)]
    data = Tokenized(examples, tokenizer_for("tiny", tuple(examples)), length=32)
    embedding = torch.nn.Embedding(len(data.tokenizer), 16, padding_idx=0)
    config = SimpleNamespace(initializer_range=0.05)
    model = SimpleNamespace(get_input_embeddings=lambda: embedding, config=config)
    begin_with_word_vectors(model, data)
    weight = embedding.weight.detach()
    array, tensor, socket = (
        weight[data.tokenizer.convert_tokens_to_ids(word)] for word in ("array", "tensor", "socket")
    )
    near, far = (torch.cosine_similarity(array, other, dim=0) for other in (tensor, socket))
    assert near > far + 0.3
    assert array.pow(2).mean().sqrt().item() == pytest.approx(0.05, rel=1e-3)
    assert not weight[0].any() and embedding.weight.requires_grad
