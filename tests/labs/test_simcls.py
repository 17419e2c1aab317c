"""The lab about re-ranking: its loss, its data and their split, ROUGE, the model, ranking, training, its programs."""

import itertools
import json
import math
import random
import sys
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, assert_refused
from support.docstrings import made_up
from support.labs import assert_same_training, killed_in_epoch

from common import program as programs
from labs.shared.training import Training, epochs_in
from labs.simcls import documents, rank, study, train
from labs.simcls.data import Candidates, Collate, tokens_for
from labs.simcls.documents import CANDIDATES, FOLDS, Corpus, Document, best_first, corpus, kept_rouge, rouge, split
from labs.simcls.model import SIZES, Encoder, ranking_loss, re_ranker
from labs.simcls.study import difference, over_packages, over_seeds, percent
from labs.simcls.train import METHODS, Settings, scores_of
from walkthrough.compare.study import Measurements, read
from walkthrough.results.errors import InputError

LAB = ROOT / "labs" / "simcls"
PROGRAMS = sorted(LAB.glob("[0-9][0-9]_*.py"))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def texts():
    """40 documents of 7 packages of different sizes."""
    sizes = {"alpha": 14, "beta": 9, "gamma": 6, "delta": 4, "epsilon": 3, "zeta": 2, "eta": 2}
    written = [made_up(package, number) for package, size in sizes.items() for number in range(size)]
    whole = [documents.with_candidates(text.package, text.body, text.summary, text.sentences) for text in written]
    assert None not in whole
    return Corpus("docstrings", tuple(whole), 0)


@pytest.fixture(scope="module")
def scores(texts):
    return {document: documents.rouge_of(document) for document in texts.documents}


@pytest.fixture(scope="module")
def tokens(texts):
    return tokens_for("small", texts.documents)


def slow_loss(scores, reference_scores, margin):
    """The paper's equation, term by term."""
    total = 0.0
    for of_document, reference in zip(scores.tolist(), reference_scores.tolist(), strict=True):
        for better in range(len(of_document)):
            total += max(0.0, of_document[better] - reference)
            for worse in range(better + 1, len(of_document)):
                total += max(0.0, of_document[worse] - of_document[better] + (worse - better) * margin)
    return total / len(scores)


@given(st.integers(1, 4), st.integers(1, 16), st.floats(0, 0.5), st.integers(0, 9))
def test_the_loss_is_the_papers_equation(batch, candidates, margin, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(batch, candidates, generator=generator, dtype=torch.float64) * 2 - 1
    references = torch.rand(batch, generator=generator, dtype=torch.float64) * 2 - 1
    assert ranking_loss(scores, references, margin).item() == pytest.approx(slow_loss(scores, references, margin))


def test_candidates_differ_and_begin_with_the_first_sentence_or_run_of_sentences(texts):
    for document in texts.documents:
        assert len(set(document.candidates)) == len(document.candidates) == CANDIDATES
        assert document.text.startswith(document.candidates[0])
    assert documents.candidates_of(["One two three.", "Four five six."]) is None  # too short for so many
    candidates = documents.candidates_of([" ".join([word] * 30) for word in "abcdefgh"], window=3)
    assert candidates[0].split() == ["a"] * 30 + ["b"] * 30 + ["c"] * 30


def test_no_package_is_in_two_parts_and_each_is_tested_on_once_whatever_the_order(texts):
    shuffled, tested = random.Random(0).sample(texts.documents, len(texts.documents)), []
    for fold in range(FOLDS):
        parts = split(texts.documents, fold)
        groups = [{document.group for document in part} for part in parts.values()]
        assert all(groups) and not any(a & b for a, b in itertools.combinations(groups, 2))
        assert sum(map(len, parts.values())) == len(texts.documents)
        assert {*split(shuffled, fold)["test"]} == {*parts["test"]}
        tested += parts["test"]
    assert sorted(map(hash, tested)) == sorted(map(hash, texts.documents))


def test_rouge_is_that_of_a_known_case_and_orders_candidates():
    one, two, longest = rouge("The cat sat on the mat", "the cats sat")  # stemmed: the cat sat
    assert (one, two, longest) == pytest.approx((2 * 1 * 0.5 / 1.5, 2 * 1 * (2 / 5) / (1 + 2 / 5), one))
    assert rouge("same words here", "nothing alike") == (0, 0, 0)
    whole, turned = "one two three .\nfour five six .", "four five six .\none two three ."
    assert rouge(whole, turned)[2] == 1  # ROUGE-L is over the sentences of a summary
    assert rouge(whole.replace("\n", " "), turned.replace("\n", " "))[2] == pytest.approx(0.5)
    scores = np.array([(0.1, 0, 0.1), (0.5, 0.2, 0.5), (0.1, 0, 0.1), (0.9, 0.9, 0.9)])
    assert best_first(scores) == [3, 1, 0, 2]  # equal ones as they stand


def test_kept_rouge_is_what_is_computed_and_not_used_for_other_documents(texts, scores, tmp_path, capsys):
    for few, computed in ((texts.documents[:3], True), (texts.documents[:3], False), (texts.documents[2:5], True)):
        kept = kept_rouge(tmp_path, Corpus("docstrings", few, 0))
        assert bool(capsys.readouterr().out) == computed
        assert all((kept[text] == scores[text]).all() for text in few)


def test_an_item_has_its_candidates_in_the_order_of_rouge(texts, tokens, scores):
    text = texts.documents[5]
    order = best_first(scores[text])
    for kept in (None, [scores[document] for document in texts.documents]):
        document, reference, candidates = Candidates(texts.documents, tokens, (40, 12), scores=kept)[5]
        assert [ids[1:] for ids in candidates] == [ids[1:] for ids in tokens([text.candidates[n] for n in order], 12)]
        assert [ids[0] for ids in candidates] == [tokens.places[text.places[number]] for number in order]
        assert (document, reference) == (tokens([text.text], 40)[0], tokens([text.reference], 12)[0])


def test_scores_are_cosines_and_do_not_hang_on_how_far_a_batch_is_filled_up(texts, tokens):
    torch.manual_seed(0)
    model = re_ranker("small", tokens.vocabulary, tokens.pad_id).eval()
    batch = Collate(tokens.pad_id)(list(Candidates(texts.documents[:4], tokens, SIZES["small"].lengths, ordered=False)))
    scores, references = model(*batch)
    assert scores.shape == (4, CANDIDATES) and references.shape == (4,) and scores.abs().max() <= 1 + 1e-6
    longer = [batch[0], *(torch.nn.functional.pad(part, (0, 3), value=tokens.pad_id) for part in batch[1:])]
    alone = model(*(part[:1] for part in longer))
    torch.testing.assert_close(alone[0], scores[:1], atol=1e-5, rtol=0)
    torch.testing.assert_close(model(batch[0], batch[1], longer[2])[1], references, atol=1e-5, rtol=0)


def test_base_has_the_shape_of_roberta_base():
    with torch.device("meta"):
        encoder = Encoder(SIZES["base"], vocabulary=50265, pad_id=1)
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    assert parameters == pytest.approx(124.6e6, rel=0.01)  # roberta-base: 124.6 million, its pooler included


# JSON lines: CNN/DailyMail as the hub has it, and candidates of a generator

ARTICLE = (  # with the marks of the real data: a dateline, quotes, numbers
    "LONDON, England (Reuters) -- Reader number {0} gains access to a reported £20 million ($41.1 million) fortune. "
    "He insists the money won't cast a spell on him. \"I don't plan to be one of those people,\" he told someone. "
    "At 18, reader {0} will be able to gamble. Details are under wraps. His agent had no comment on his plans."
)
HIGHLIGHTS = "Reader {0} gets £20M fortune as he turns 18 Monday .\nHe says he has no plans to fritter his cash away ."


def lines_file(path, count, candidates=None):
    """A file of JSON lines as `datasets` writes CNN/DailyMail. candidates: a function of the number."""
    rows = []
    for number in range(count):
        row = {"article": ARTICLE.format(number), "highlights": HIGHLIGHTS.format(number), "id": f"{number:040x}"}
        rows.append(json.dumps(row | ({"candidates": candidates(number)} if candidates else {})) + "\n")
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(rows))
    return path


def generated(number):
    """Four candidates, of which one is nearly the reference; its place differs from article to article."""
    good = f"Reader {number} gets a fortune as he turns 18. He has no plans to fritter his cash away."
    others = [f"Nothing of {word} was said to anybody." for word in ("casinos", "publicists", "birthdays")]
    return [*others[: number % 4], good, *others[number % 4 :]]


def test_cnn_dailymail_keeps_its_splits_its_sentences_are_lines_and_a_bad_one_is_named(tmp_path):
    for name, count in (("train", 6), ("validation", 2), ("test", 3)):
        lines_file(tmp_path / "cnn_dailymail" / f"{name}.jsonl", count)
    texts = corpus(tmp_path)
    assert (texts.source, texts.is_split) == ("cnn_dailymail", True)
    assert all([*map(len, split(texts.documents, fold).values())] == [6, 2, 3] for fold in range(FOLDS))
    one = texts.documents[0]
    assert one.reference.splitlines() == HIGHLIGHTS.format(0).splitlines()
    assert one.text.splitlines()[2].startswith("\"I don't plan") and len(one.text.splitlines()) == 6
    assert one.candidates[0].splitlines() == one.text.splitlines()[:3]
    path = lines_file(tmp_path / "own.jsonl", 2, candidates=lambda number: generated(number)[2 * number :])
    with pytest.raises(InputError, match="line 2: 2 candidates, not 4"):
        corpus(path)


# Training and what it is compared with


def test_methods_choose_as_they_say_and_are_summed_by_package(texts, scores):
    test = texts.documents[:3]
    of = train.rouge_by_package(test, ["a", "b", "a"], scores, [2, 0, 1], usual_words=8)
    assert of["a"]["re-ranked"] == pytest.approx(scores[test[0]][2] + scores[test[2]][1])
    assert of["b"]["random"] == pytest.approx(scores[test[1]].mean(0))
    assert of["b"]["first"] == pytest.approx(scores[test[1]][0])
    means = scores[test[1]].mean(1)
    assert np.mean(of["b"]["oracle"]) == pytest.approx(means.max())
    assert np.mean(of["b"]["worst"]) == pytest.approx(means.min())
    off = [abs(len(one.split()) - 8) for one in test[1].candidates]
    assert of["b"]["nearest length"] == pytest.approx(scores[test[1]][off.index(min(off))])


def scored(model, some, tokens, batch_size=64):
    unordered = Candidates(some, tokens, SIZES["small"].lengths, ordered=False)
    return scores_of(model, unordered, CPU, torch.float32, batch_size)


def test_scores_look_at_neither_reference_nor_order(texts, tokens):
    torch.manual_seed(0)
    model = re_ranker("small", tokens.vocabulary, tokens.pad_id)
    some = texts.documents[:5]
    expected = scored(model, some, tokens)
    with_other = [Document(text.group, text.text, "other words", text.candidates) for text in some]
    assert scored(model, with_other, tokens) == expected
    reversed_ = [Document(text.group, text.text, text.reference, text.candidates[::-1]) for text in some]
    mirrored = torch.tensor(scored(model, reversed_, tokens, batch_size=2)).flip(1)
    torch.testing.assert_close(mirrored, torch.tensor(expected), atol=1e-5, rtol=0)


def settings(**more):
    """Of a training of seconds."""
    values = dict(
        model="small", data="x", fold=1, documents=None, epochs=2, batch_size=4, accumulate=1, lr=2e-3,
        checkpointed=False, precision="fp32", seed=0,
    )  # fmt: skip
    return Settings(**(values | more))


def test_a_training_that_was_killed_ends_as_an_uninterrupted_one(texts, scores, tmp_path):
    start = partial(train.train, texts, scores, settings(accumulate=2), CPU, 1)  # a worker, from epoch to epoch
    whole = start(tmp_path / "whole")
    with killed_in_epoch(2), pytest.raises(KeyboardInterrupt):
        start(tmp_path / "cut")
    assert start(tmp_path / "cut") == whole
    rows = epochs_in(tmp_path / "whole")
    assert rows[1]["loss"] < rows[0]["loss"]
    assert rows[whole.chosen - 1] == max(rows, key=lambda row: row["validation_rouge"])
    assert sum(whole.counts.values()) == whole.documents["test"]
    assert_same_training(tmp_path / "whole", tmp_path / "cut")


def test_accumulated_batches_are_a_larger_one(texts, scores, monkeypatch):
    monkeypatch.setattr("labs.simcls.model.DROPOUT", 0.0)
    weights = []
    for batch_size, accumulate in ((8, 1), (4, 2)):
        with monkeypatch.context() as patch:
            patch.setattr(Training, "load_best", lambda self: weights.append(self.parts["model"]) or {"epoch": 1})
            of = settings(batch_size=batch_size, accumulate=accumulate, epochs=1, checkpointed=accumulate > 1)
            train.train(texts, scores, of, CPU)
    for (name, one), other in zip(weights[0].named_parameters(), weights[1].parameters(), strict=True):
        if name.endswith("weight"):  # the gradient of some biases is zero but for rounding, which AdamW makes a step of
            torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-3)


def test_own_candidates_are_trained_on_and_ranked_by_two_commands(tmp_path, run_here):
    own = lines_file(tmp_path / "bart.jsonl", 40, candidates=generated)
    words = ("--device", "cpu", "--workers", "0", "--epochs", "1", "--batch-size", "4", "--accumulate", "2")
    kept = tmp_path / "kept"
    run_here(LAB / "train.py", "--candidates", own, "--logdir", kept, *words)
    tested = json.loads((kept / train.TEST).read_text())
    assert tested["rouge"]["worst"] <= tested["rouge"]["re-ranked"] <= tested["rouge"]["oracle"]
    mine = lines_file(tmp_path / "mine.jsonl", 3, candidates=lambda number: generated(number)[: 4 - number])
    ranked = run_here(LAB / "rank.py", kept, mine, "--device", "cpu")
    rows = [json.loads(line) for line in ranked.stdout.splitlines()]
    model, tokens, _ = rank.loaded(kept, CPU)
    for at, (row, (name, document)) in enumerate(zip(rows, rank.documents_in(mine), strict=True)):
        expected = scored(model, [document], tokens)[0]
        assert row["scores"] == pytest.approx(expected, abs=1e-5) and len(expected) == 4 - at
        assert row["best"] == expected.index(max(expected)) and row["id"] == name == f"{at:040x}"
    assert_refused(run_here(LAB / "rank.py", tmp_path, mine, "--device", "cpu"), "cannot read", "ranker.json")


# The study's tables


def fold(number, re_ranked, first=0.2, seed=0):
    """A run on two packages: of three documents, and of one; re_ranked: the mean ROUGE of each document."""
    counts = {f"large{number}": 3, f"small{number}": 1}
    methods = {method: 0.1 for method in METHODS} | {"oracle": 0.5, "re-ranked": re_ranked, "first": first}
    test = {
        package: {method: (count * value,) * 3 for method, value in methods.items()}
        for package, count in counts.items()
    }
    return {"seed": seed, "test": test, "counts": counts}


def test_a_mean_over_packages_is_that_of_the_documents():
    runs = [fold(0, 0.3), fold(1, 0.5)]
    runs[0]["test"]["large0"]["re-ranked"] = (1.2,) * 3  # 3 documents of 0.4
    assert over_packages(runs, percent("re-ranked")).mean == pytest.approx(100 * (1.2 + 0.3 + 1.5 + 0.5) / 8)
    assert over_packages(runs, difference("re-ranked", "first")).mean == pytest.approx(100 * (3.5 / 8 - 0.2))
    share = over_packages(runs, difference("re-ranked", "random"), difference("oracle", "random"))
    assert share.mean == pytest.approx((3.5 / 8 - 0.1) / 0.4)
    row = next(row for row in study.ranking_rows(runs) if row["candidate chosen"] == "re-ranked")
    assert (row["ROUGE-1"].mean, row["of the way from random to oracle"].mean) == pytest.approx((43.75, share.mean))


def test_its_interval_is_over_packages_not_documents_and_not_seeds_or_over_seeds_alone():
    runs = [fold(number, 0.25 + number / 20) for number in range(3)]
    once = over_packages(runs, percent("re-ranked"))
    assert once.count == 6
    # by hand: of 12 documents in pairs of packages of 3 and of 1, the sums' residuals over the mean size of 2
    residuals = [weight * (value - once.mean) / 2 for value in (25, 30, 35) for weight in (3, 1)]
    error = math.sqrt(sum(one**2 for one in residuals) / 5 / 6)
    assert once.high - once.mean == pytest.approx(2.5706 * error, rel=1e-4)
    again = over_packages([*runs, *(run | {"seed": 1} for run in runs)], percent("re-ranked"))
    assert (again.mean, again.high) == pytest.approx((once.mean, once.high))
    runs = [fold(number, 0.3 + seed / 100, seed=seed) for seed in range(3) for number in range(2)]
    over = over_seeds(runs, difference("re-ranked", "first"))
    assert (over.mean, over.count) == (pytest.approx(11), 3)
    assert over.high - over.mean == pytest.approx(4.3027 * 1 / math.sqrt(3), rel=1e-4)


@pytest.fixture(scope="module")
def kept_texts(tmp_path_factory):
    """A folder for --data that holds collected docstrings, so that no program collects them."""
    data = tmp_path_factory.mktemp("data")
    written = [made_up(package, number) for package in "abcdefg" for number in range(10)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents.docstrings, "collect", lambda folders: written)
        documents.from_docstrings(data, documents.docstrings.package_folders())
    return data


def test_a_whole_study_fills_every_table_and_decides_its_claims(kept_texts, tmp_path, monkeypatch, run_here):
    def measure(self, what, **of):
        if what == "trained":
            return fold(of["fold"], 0.3, seed=of["seed"])
        if what == "speed":
            return {"windows": [100.0 + study.PROGRAMS.index(of["name"])] * 3, "bytes": 5e6, "precision": "float32"}
        count = of["candidates"]
        return {"candidates": count, "tokens per step": 10 * count, "MB": 8 * count, "of it": 0.4}

    monkeypatch.setattr(Measurements, "measure", measure)
    words = ("--device", "cpu", "--quick", "--data", kept_texts, "--logdir", tmp_path)
    assert run_here(LAB / "study.py", *words).returncode == 0
    result = read(tmp_path / "labs" / "simcls" / "study.json")
    assert {row["program"]: row["peak MB"] for row in result.tables["programs"]} == dict.fromkeys(study.PROGRAMS, 5)
    assert [row["MB"] for row in result.tables["candidates"]] == [8 * count for count in study.CANDIDATES[True]]
    expected = {"memory_by_tokens": True, "checkpointing_memory": True, "published_gain": None}
    assert expected.items() <= {claim.id: claim.holds for claim in result.claims}.items()
    assert result.notes[0].startswith("docstrings: 70 documents, and 0 left out")


def test_every_program_trains_as_the_first_and_counts_its_tokens(kept_texts, tmp_path):
    words = ["--device", "cpu", "--quick", "--model", "small", "--precision", "fp32", "--workers", "0"]
    losses = []
    for file in PROGRAMS:
        one = programs.captured(file, [*words, "--data", str(kept_texts), "--logdir", str(tmp_path)])
        torch.manual_seed(0)
        batch = next(iter(one.loader))
        losses.append([one.train_step(*batch).item() for _ in range(2)])
        assert one.count_tokens(batch) == sum(int((part != one.loader.dataset.tokens.pad_id).sum()) for part in batch)
    assert all(of == pytest.approx(losses[0], rel=1e-4) for of in losses)


def test_a_missing_package_is_one_line(kept_texts, tmp_path, run_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    words = ("--device", "cpu", "--quick", "--logdir", tmp_path)
    refused = run_here(LAB / "study.py", *words, "--data", kept_texts)
    assert_refused(refused, "rouge-score", "pip install -r labs/simcls/requirements.txt")
