"""labs/transformer: its texts and their split, files of the user's own, tokens, batches and their order."""

import csv
import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.labs import lab_options
from torch.utils.data import DataLoader

from labs.transformer.batches import Packing, Padding, UniformLengthBatches, packed_parts, padding_share, token_count
from labs.transformer.data import Example, Tokenized, from_docstrings, part_of, texts, tokenizer_for
from walkthrough.results.errors import InputError

WORDS = "array tensor graph file socket parser index buffer matrix stream schema cursor window kernel token record"


def options(data):
    return lab_options(data, model="tiny")


@pytest.fixture
def packages(tmp_path):
    """A folder of three packages, of 30, 15 and 2 files with three docstrings each."""
    draw = random.Random(0)
    for package, files in (("beta", 30), ("alpha", 15), ("rare", 2)):
        (tmp_path / "packages" / package).mkdir(parents=True)
        for number in range(files):
            texts = [f"{package} {number} {' '.join(draw.choices(WORDS.split(), k=20))}." for _ in range(3)]
            module = tmp_path / "packages" / package / f"module_{number}.py"
            module.write_text("\n".join(f'def function_{at}():\n    """{text}"""\n' for at, text in enumerate(texts)))
    return tmp_path / "packages"


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
    counts = Counter(part_of(f"package/module_{number}.py") for number in range(4000))
    assert [counts[part] / 4000 for part in ("train", "validation")] == pytest.approx([0.7, 0.1], abs=0.03)


def write(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def test_files_of_texts_and_labels_are_read(tmp_path):
    rows = [('He said "yes",\nand\tleft.', "good"), ("Grüße", "bad")] * 40
    rows = [(f"{text} {number}", label) for number, (text, label) in enumerate(rows)]
    write(tmp_path / "train.csv", rows)
    write(tmp_path / "test.csv", rows[:2])
    split = texts(options(tmp_path))
    assert (split.classes, split.source) == (("bad", "good"), tmp_path.name)
    assert [(one.text, split.classes[one.label]) for one in split.test] == rows[:2]
    assert split.validation  # set apart from train
    both = [(one.text, split.classes[one.label]) for one in (*split.train, *split.validation)]
    assert sorted(both) == sorted(rows)


def test_what_cannot_be_used_is_refused_with_its_place(tmp_path):
    write(tmp_path / "train.csv", [("a", "x"), ("b", "")])
    with pytest.raises(InputError, match="row 2: no label"):
        texts(options(tmp_path))


def test_a_text_that_is_too_long_is_cut_and_begins_with_the_token_that_the_head_reads():
    tokens = tokenizer_for("tiny", (Example(WORDS, 0),) * 3)
    data = Tokenized([Example(WORDS * 20, 1), Example("array", 0)], tokens, length=32)
    ids, label = data[0]
    assert (len(ids), label) == (32, 1)
    first = tokens.cls_token_id
    assert ids[0] == first and data[1][0][0] == first and first not in ids[1:]
    assert data.lengths == [32, len(data[1][0])]
    assert tokens.pad_token_id not in ids


def sequences(lengths):
    """(Token ids, label) of texts of so many tokens after the first."""
    draw = random.Random(1)
    return [([1, *(draw.randint(2, 50) for _ in range(of))], number % 7) for number, of in enumerate(lengths)]


@pytest.fixture
def items():
    draw = random.Random(1)
    return sequences([min(120, 1 + int(draw.expovariate(0.04))) for _ in range(203)])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40), st.sampled_from([None, 1, 2]))
def test_packing_keeps_every_text_whole_with_its_label_also_in_parts(lengths, rows):
    items, batch = sequences(lengths), Packing(0, rows=rows)(sequences(lengths))
    longest, width, unpacked = max(lengths) + 1, batch[1].shape[1], []
    assert longest <= width < longest + 8 and width % 8 == 0
    for labels, ids, positions, starts in packed_parts(*batch) if rows else [batch]:
        assert len(labels) == len(starts) and (not rows or len(ids) <= rows)
        flat, places = ids.flatten().tolist(), positions.flatten().tolist()
        for label, start in zip(labels.tolist(), starts.tolist(), strict=True):
            end = start + 1
            while end % width and places[end] == places[end - 1] + 1:
                end += 1
            assert places[start] == 0
            unpacked.append((flat[start:end], label))
    assert sorted(unpacked) == sorted(items)
    assert int(token_count(0)(batch)) == sum(lengths) + len(lengths)


def test_uniform_length_batches_have_every_text_once_and_another_order_each_epoch(items):
    lengths = [len(ids) for ids, _ in items]
    one, same = (UniformLengthBatches(lengths, 8, torch.Generator().manual_seed(0)) for _ in range(2))
    epochs = [list(one) for _ in range(2)]
    assert list(same) == epochs[0] and len(one) == 203
    assert all(sorted(epoch) == list(range(203)) for epoch in epochs)
    batches = [[epoch[at : at + 8] for at in range(0, 203, 8)] for epoch in epochs]
    assert {*map(frozenset, batches[0])} != {*map(frozenset, batches[1])}
    loader = DataLoader(items, 8, sampler=one, drop_last=True, collate_fn=Padding(0))
    assert padding_share(list(loader), 0) < 0.1 < padding_share([Padding(0)(items)], 0)
