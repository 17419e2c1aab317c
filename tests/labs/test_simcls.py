"""The lab about re-ranking: its loss, its data and their split, ROUGE, the model, ranking, training, its programs."""

import ast
import difflib
import itertools
import json
import math
import random
import sys
from types import SimpleNamespace

import pytest
import torch
from support import ROOT, assert_refused
from support.docstrings import made_up, write_module

from common.options import StepOptions
from labs.shared import docstrings
from labs.shared.words import word_vectors
from labs.simcls import documents, measure, published, rouge, tables, training
from labs.simcls.data import PLACES, Candidates, Collate, token_count, trained_tokens, training_set
from labs.simcls.documents import CANDIDATES, FOLDS, Corpus, Document, candidates_of, corpus, from_docstrings, split
from labs.simcls.loss import ranking_loss
from labs.simcls.model import SIZES, Encoder, re_ranker
from labs.simcls.packages import difference, over_packages, over_seeds, percent
from labs.simcls.training import METHODS, Plan, rising_then_falling, rules, shortened, top_ranked
from walkthrough.results import result as record
from walkthrough.results.errors import InputError

LAB = ROOT / "labs" / "simcls"
PROGRAMS = sorted(LAB.glob("[0-9][0-9]_*.py"))
NAMES = [path.stem for path in PROGRAMS]


@pytest.fixture(scope="module")
def texts():
    """40 documents of 7 packages of different sizes."""
    sizes = {"alpha": 14, "beta": 9, "gamma": 6, "delta": 4, "epsilon": 3, "zeta": 2, "eta": 2}
    written = [made_up(package, number) for package, size in sizes.items() for number in range(size)]
    whole = [documents._document(text.package, text.body, text.summary, text.sentences) for text in written]
    assert None not in whole
    return Corpus("docstrings", tuple(whole), 0)


@pytest.fixture(scope="module")
def scores(texts):
    return {document: rouge.rouge_of(document) for document in texts.documents}


@pytest.fixture(scope="module")
def tokens(texts):
    return trained_tokens([document.text for document in texts.documents])


# The loss


def slow_loss(scores, reference_scores, margin):
    """The paper's equation, term by term."""
    total = 0.0
    for of_document, reference in zip(scores.tolist(), reference_scores.tolist(), strict=True):
        for better in range(len(of_document)):
            total += max(0.0, of_document[better] - reference)
            for worse in range(better + 1, len(of_document)):
                total += max(0.0, of_document[worse] - of_document[better] + (worse - better) * margin)
    return total / len(scores)


@pytest.mark.parametrize(("batch", "candidates"), [(1, 1), (1, 2), (3, 5), (4, 16)])
@pytest.mark.parametrize("margin", [0.0, 0.01, 0.3])
def test_the_loss_is_the_papers_equation(batch, candidates, margin):
    generator = torch.Generator().manual_seed(batch * candidates)
    scores = torch.rand(batch, candidates, generator=generator, dtype=torch.float64) * 2 - 1
    references = torch.rand(batch, generator=generator, dtype=torch.float64) * 2 - 1
    assert ranking_loss(scores, references, margin).item() == pytest.approx(slow_loss(scores, references, margin))


def test_scores_in_order_and_far_enough_apart_cost_nothing_and_swapped_ones_do():
    ordered, reference = torch.tensor([[0.5, 0.4, 0.3]]), torch.tensor([0.6])
    assert ranking_loss(ordered, reference, margin=0.1).item() == pytest.approx(0, abs=1e-6)
    assert ranking_loss(ordered, reference, margin=0.2).item() == pytest.approx(0.1 + 0.1 + 0.2)  # 2 ranks: 0.4 wanted
    assert ranking_loss(ordered.flip(1), reference, margin=0.1).item() == pytest.approx(0.2 + 0.2 + 0.4)
    assert ranking_loss(ordered, torch.tensor([0.45]), margin=0.1).item() == pytest.approx(0.05)  # the gold term


def test_the_loss_moves_scores_towards_the_order():
    scores = torch.zeros(1, 4, requires_grad=True)
    ranking_loss(scores, torch.tensor([1.0])).backward()
    assert scores.grad.flatten().tolist() == sorted(scores.grad.flatten().tolist())  # the best one is pushed up most
    assert scores.grad[0, 0] < 0 < scores.grad[0, 3]


# Documents


def test_collected_texts_are_kept_and_collected_anew_for_other_packages(tmp_path, monkeypatch, capsys):
    folder, keep = tmp_path / "site", tmp_path / "keep"
    for package, number in itertools.product("abcdef", range(2)):
        write_module(folder / package / f"m{number}.py", made_up(package, number))
    first = from_docstrings(keep, [folder])
    assert "collecting" in capsys.readouterr().out
    assert from_docstrings(keep, [folder]) == first and "collecting" not in capsys.readouterr().out
    (folder / "new-1.0.dist-info").mkdir()
    assert from_docstrings(keep, [folder]) == first and "collecting" in capsys.readouterr().out
    (keep / "docstrings.json").write_text("{broken")
    assert from_docstrings(keep, [folder]) == first


def test_too_few_packages_are_refused_in_one_line(tmp_path):
    write_module(tmp_path / "site" / "one.py", made_up("one", 0))
    with pytest.raises(InputError, match="install more packages"):
        from_docstrings(tmp_path / "keep", [tmp_path / "site"])


# Candidates and the split


def test_candidates_differ_and_begin_with_the_first_sentence(texts):
    for document in texts.documents:
        assert len(set(document.candidates)) == len(document.candidates) == CANDIDATES
        assert document.text.startswith(document.candidates[0])
        assert all(candidate in document.text for candidate in document.candidates)


def test_a_document_too_short_for_so_many_candidates_is_dropped():
    assert candidates_of(["One two three.", "Four five six."]) is None


def test_runs_of_sentences_are_candidates_where_a_reference_has_several():
    sentences = [f"{word} " * 30 for word in "abcdefgh"]
    candidates = candidates_of([sentence.strip() for sentence in sentences], window=3)
    assert candidates[0].split() == ["a"] * 30 + ["b"] * 30 + ["c"] * 30
    assert len(set(candidates)) == CANDIDATES


def test_no_package_is_in_two_parts_and_each_is_tested_on_once(texts):
    tested = []
    for fold in range(FOLDS):
        parts = split(texts.documents, fold)
        groups = [{document.group for document in part} for part in vars(parts).values()]
        assert all(groups) and not any(a & b for a, b in itertools.combinations(groups, 2))
        assert sum(map(len, vars(parts).values())) == len(texts.documents)
        tested += parts.test
    assert sorted(map(hash, tested)) == sorted(map(hash, texts.documents))


def test_the_split_depends_on_the_documents_alone(texts):
    shuffled = random.Random(0).sample(texts.documents, len(texts.documents))
    assert {d.group for d in split(shuffled, 2).test} == {d.group for d in split(texts.documents, 2).test}
    assert {d.group for d in split(texts.documents, 0).test} == {d.group for d in split(texts.documents, FOLDS).test}


def test_a_data_set_keeps_its_own_splits(texts):
    named = [Document(name, "", "", ()) for name in ("train", "test", "validation", "train")]
    parts = split(named, 3)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (2, 1, 1)


def test_shortening_keeps_something_of_every_package(texts):
    some = shortened(texts.documents, 20)
    assert len(set(some)) == 20 and {text.group for text in some} == {text.group for text in texts.documents}


# ROUGE


def test_rouge_is_that_of_a_known_case():
    one, two, longest = rouge.rouge("The cat sat on the mat", "the cats sat")  # stemmed: the cat sat
    assert one == pytest.approx(2 * 1 * 0.5 / 1.5)
    assert two == pytest.approx(2 * 1 * (2 / 5) / (1 + 2 / 5))
    assert longest == pytest.approx(one)
    assert rouge.rouge("same words here", "same words here") == (1, 1, 1)
    assert rouge.rouge("same words here", "nothing alike") == (0, 0, 0)


def test_candidates_are_ordered_by_mean_rouge_and_equal_ones_as_they_stand():
    assert rouge.best_first([(0.1, 0, 0.1), (0.5, 0.2, 0.5), (0.1, 0, 0.1), (0.9, 0.9, 0.9)]) == [3, 1, 0, 2]


def test_kept_rouge_is_what_is_computed_and_not_used_for_other_documents(texts, scores, tmp_path, capsys):
    few = Corpus("docstrings", texts.documents[:3], 0)
    assert rouge.kept_rouge(tmp_path, few) == {text: [tuple(row) for row in scores[text]] for text in few.documents}
    assert "once" in capsys.readouterr().out
    again = rouge.kept_rouge(tmp_path, few)
    assert capsys.readouterr().out == ""
    assert [[tuple(row) for row in again[text]] for text in few.documents] == [scores[text] for text in few.documents]
    rouge.kept_rouge(tmp_path, Corpus("docstrings", texts.documents[:2], 0))
    assert "once" in capsys.readouterr().out


# Batches


def test_a_tokenizer_is_the_same_each_time(texts, tokens):
    words = [document.text for document in texts.documents]
    again = trained_tokens(words)
    assert json.loads(again.tokenizer.to_str()) == json.loads(tokens.tokenizer.to_str())
    assert tokens.pad_id == 0 and tokens(["Reads array"], 9)[0][0] == 1


def test_an_item_has_its_candidates_in_the_order_of_rouge(texts, tokens, scores):
    for kept in (None, [scores[document] for document in texts.documents]):
        items = Candidates(texts.documents, tokens, (40, 12), scores=kept)
        document, reference, candidates = items[5]
        text = texts.documents[5]
        order = rouge.best_first(scores[text])
        assert [ids[1:] for ids in candidates] == [ids[1:] for ids in tokens([text.candidates[n] for n in order], 12)]
        assert [ids[0] for ids in candidates] == [tokens.places[text.places[number]] for number in order]
        assert (document, reference) == (tokens([text.text], 40)[0], tokens([text.reference], 12)[0])
    unordered = Candidates(texts.documents, tokens, (40, 12), ordered=False)
    assert unordered[5][2] == tokens.candidates(texts.documents[5], range(CANDIDATES), 12)


def test_a_candidate_begins_with_the_token_of_its_place_and_nothing_else_does(tokens, monkeypatch):
    one, two = "Reads an array of many tokens.", "Writes it to a file."
    document = Document("mine", f"{one} {two}", "Reads [PLACE1] [0]", (one, two, "Reads an array", "Writes it"))
    assert document.places == [0, 1, 0, 1]
    assert [ids[0] for ids in tokens.candidates(document, range(4), 9)] == [tokens.places[n] for n in (0, 1, 0, 1)]
    assert tokens([one], 9)[0][0] not in tokens.places and len(set(tokens.places)) == len(PLACES)
    many = " ".join(f"{word} x." for word in "abcdefghijkl")
    last = Document("mine", many, "", tuple(f"{word} x." for word in "abcdefghijkl"))
    assert [ids[0] for ids in tokens.candidates(last, [6, 7, 11], 9)] == [tokens.places[n] for n in (6, 7, 7)]
    monkeypatch.setattr(tokens, "places", [])  # as of a tokenizer of the hub
    assert tokens.candidates(document, [1], 9) == tokens([two], 9)


def test_a_batch_is_as_long_as_its_longest_sequence_and_its_tokens_are_counted():
    items = [([1, 5], [1, 2, 3], [[1], [1, 4, 4, 4]]), ([1, 5, 6], [1], [[1, 9], [1]])]
    documents, references, candidates = Collate(0)(items)
    assert documents.tolist() == [[1, 5, 0], [1, 5, 6]] and references.tolist() == [[1, 2, 3], [1, 0, 0]]
    assert candidates.tolist() == [[[1, 0, 0, 0], [1, 4, 4, 4]], [[1, 9, 0, 0], [1, 0, 0, 0]]]
    assert token_count(0)((documents, references, candidates)).item() == 5 + 4 + 8


# Words


def test_vectors_of_words_in_like_company_are_near_each_other():
    draw = random.Random(0)
    company = {3: range(10, 15), 4: range(10, 15), 5: range(20, 25)}  # 3 and 4 never stand together
    texts = [[word, *draw.sample(company[word], 2)] for word in (3, 4, 5) for _ in range(100)]
    vectors = word_vectors([*texts, [7], []], vocabulary=30, width=4)
    assert vectors.shape == (30, 4) and vectors.isfinite().all()
    assert vectors[3].norm() == pytest.approx(2)
    near = torch.nn.functional.cosine_similarity(vectors[3:4], vectors[4:6])
    assert near[0] > 0.9 and near[1] < 0.5
    assert vectors[7].norm() > 0  # a random one: it has no neighbours
    again = word_vectors([*texts, [7], []], vocabulary=30, width=4)
    assert torch.equal(vectors[3:6], again[3:6])


def test_training_keeps_word_vectors_as_they_are(texts, tokens):
    torch.manual_seed(0)
    model = re_ranker("small", tokens.vocabulary, tokens.pad_id)
    training.keep_word_vectors(model.encoder, tokens, texts.documents)
    weight = model.encoder.tokens.weight
    assert not weight.requires_grad and weight[tokens.pad_id].abs().sum() == 0
    written, read = (tokens([word], 3)[0][1] for word in ("array", "matrix"))
    assert weight[written].norm() == pytest.approx(8, rel=1e-3) and weight[read].norm() == pytest.approx(8, rel=1e-3)


# The model


def batch_of(texts, tokens, count=4):
    size = SIZES["small"]
    items = Candidates(texts.documents, tokens, size.lengths, ordered=False)
    return Collate(tokens.pad_id)([items[number] for number in range(count)])


def test_scores_are_cosines_and_do_not_hang_on_how_far_a_batch_is_filled_up(texts, tokens):
    torch.manual_seed(0)
    model = re_ranker("small", tokens.vocabulary, tokens.pad_id).eval()
    batch = batch_of(texts, tokens)
    scores, references = model(*batch)
    assert scores.shape == (4, CANDIDATES) and references.shape == (4,) and scores.abs().max() <= 1 + 1e-6
    longer = [batch[0], *(torch.nn.functional.pad(part, (0, 3), value=tokens.pad_id) for part in batch[1:])]
    alone = model(*(part[:1] for part in longer))
    torch.testing.assert_close(alone[0], scores[:1], atol=1e-5, rtol=0)
    torch.testing.assert_close(model(batch[0], batch[1], longer[2])[1], references, atol=1e-5, rtol=0)
    same = model(batch[0], batch[0][:, :32], batch[0][:, None, :32].expand(-1, 2, -1))[0]
    torch.testing.assert_close(same[:, 0], same[:, 1])


def test_a_document_is_nearest_to_itself(tokens):
    model = re_ranker("small", tokens.vocabulary, tokens.pad_id).eval()
    ids = torch.tensor([[1, 7, 9, 11]])
    scores, reference = model(ids, ids, torch.tensor([[[1, 30, 31, 32], [1, 7, 9, 11]]]))
    assert reference.item() == pytest.approx(1, abs=1e-5) and scores[0, 1].item() == pytest.approx(1, abs=1e-5)
    assert scores[0, 0] < scores[0, 1]


def test_checkpointing_gives_the_same_loss_and_gradients_with_dropout(texts, tokens):
    batch, results = batch_of(texts, tokens), []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = re_ranker("small", tokens.vocabulary, tokens.pad_id).train()
        model.encoder.checkpointed = checkpointed
        loss = ranking_loss(*model(*batch))
        loss.backward()
        results.append((loss.item(), [parameter.grad for parameter in model.parameters()]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-6)


def test_scores_are_float32_under_autocast(texts, tokens):
    model = re_ranker("small", tokens.vocabulary, tokens.pad_id).eval()
    with torch.autocast("cpu", torch.bfloat16):
        scores, references = model(*batch_of(texts, tokens, count=2))
    assert scores.dtype == references.dtype == torch.float32


def test_base_has_the_shape_of_roberta_base():
    with torch.device("meta"):
        encoder = Encoder(SIZES["base"], vocabulary=50265, pad_id=1)
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    assert parameters == pytest.approx(124.6e6, rel=0.01)  # roberta-base: 124.6 million, its pooler included


@pytest.mark.parametrize(("modules", "words"), [(["transformers"], ["needs transformers", "pip install"])])
def test_an_encoder_of_the_hub_without_its_package_is_refused(monkeypatch, modules, words):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError) as refused:
        re_ranker("roberta-base", 10, 1)
    assert all(word in str(refused.value) for word in words)


def test_an_encoder_of_the_hub_without_network_is_refused(monkeypatch):
    def fetch(name):
        raise OSError(f"We couldn't connect to 'https://huggingface.co' to load {name}")

    fake = SimpleNamespace(AutoModel=SimpleNamespace(from_pretrained=fetch))
    monkeypatch.setitem(sys.modules, "transformers", fake)
    with pytest.raises(InputError, match=r"roberta-base could not be fetched .*: use small or medium or base"):
        re_ranker("roberta-base", 10, 1)


# CNN/DailyMail


class FakeSplits(dict):
    """What `datasets.load_dataset` returns, as far as this lab uses it."""

    def save_to_disk(self, folder):
        record.Path(folder).mkdir(parents=True)
        record.Path(folder, "rows").write_text(json.dumps({name: list(rows) for name, rows in self.items()}))


class FakeRows(list):
    def select(self, numbers):
        return FakeRows(self[number] for number in numbers)


def fake_datasets(failure=None):
    article = " ".join(
        f"Sentence {number} has so many words that truncations of it differ from it." for number in range(9)
    )
    row = {"article": article, "highlights": "Sentence 3 has many words .\nSentence 4 too ."}

    def load_dataset(name, version, cache_dir):
        if failure:
            raise failure
        return FakeSplits({name: FakeRows([row, row]) for name in ("train", "validation", "test")})

    def load_from_disk(folder):
        rows = json.loads(record.Path(folder, "rows").read_text())
        return {name: FakeRows(values) for name, values in rows.items()}

    return SimpleNamespace(load_dataset=load_dataset, load_from_disk=load_from_disk)


def test_articles_are_fetched_once_and_keep_their_splits(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets())
    texts = corpus(tmp_path, download=True)
    assert texts.source == "cnn_dailymail" and len(texts.documents) == 6
    assert texts.documents[0].candidates[0].count("Sentence") == 3
    assert texts.documents[0].reference == "Sentence 3 has many words . Sentence 4 too ."
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(failure=OSError("fetched again")))
    assert corpus(tmp_path, download=True) == corpus(tmp_path) == texts


def test_a_download_that_fails_leaves_nothing_and_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets(failure=ConnectionError("no network")))
    with pytest.raises(InputError, match=r"could not be downloaded .*no network.*without --download"):
        corpus(tmp_path, download=True)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_download_and_a_missing_package_are_one_line(monkeypatch, tmp_path):
    (tmp_path / "cnn_dailymail").mkdir()
    monkeypatch.setitem(sys.modules, "datasets", fake_datasets())
    with pytest.raises(InputError, match=r"is broken .*--download"):
        corpus(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="needs datasets, which is not installed: pip install datasets"):
        corpus(tmp_path)


# Training and what it is compared with


def test_rules_choose_as_they_say(texts, scores):
    test, train = texts.documents[:4], texts.documents[4:20]
    numbers = rules(test, train, texts.documents[20:], scores)
    for place, text in enumerate(test):
        of_text = [rouge.mean(row) for row in scores[text]]
        assert of_text[numbers["oracle"][place]] == max(of_text)
        assert of_text[numbers["worst"][place]] == min(of_text)
        assert numbers["first"][place] == 0
        length = len(text.candidates[numbers["nearest length"][place]].split())
        assert length == min((len(one.split()) for one in text.candidates), key=lambda words: abs(words - 8))


def test_a_random_candidate_is_the_mean_of_all(texts, scores):
    text = texts.documents[0]
    expected = [sum(column) / CANDIDATES for column in zip(*scores[text], strict=True)]
    numbers = {name: [0] for name in METHODS if name != "random"}
    assert training.rouge_by_package(["mine"], [text], scores, numbers)["mine"]["random"] == pytest.approx(expected)


def test_rouge_by_package_is_the_sum_over_its_documents(texts, scores):
    some = texts.documents[:3]
    numbers = {name: [2, 0, 1] for name in METHODS if name != "random"}
    sums = training.rouge_by_package(["a", "b", "a"], some, scores, numbers)
    assert sums["b"]["first"] == tuple(scores[some[1]][0])
    assert sums["a"]["first"] == pytest.approx(
        [x + y for x, y in zip(scores[some[0]][2], scores[some[2]][1], strict=True)]
    )


def test_ranking_looks_at_neither_rouge_nor_reference(texts, tokens, monkeypatch):
    torch.manual_seed(0)
    model = re_ranker("small", tokens.vocabulary, tokens.pad_id)
    monkeypatch.setattr(rouge, "rouge", None)
    some, lengths, cpu = texts.documents[:5], SIZES["small"].lengths, torch.device("cpu")
    numbers = top_ranked(model, some, tokens, lengths, cpu)
    with_other = [Document(text.group, text.text, "other words", text.candidates) for text in some]
    assert top_ranked(model, with_other, tokens, lengths, cpu) == numbers
    turned = [Document(text.group, text.text, text.reference, text.candidates[::-1]) for text in some]
    mirrored = top_ranked(model, turned, tokens, lengths, cpu)
    assert [CANDIDATES - 1 - number for number in mirrored] == numbers  # whatever stands first is not preferred


def test_the_learning_rate_rises_and_falls_to_zero():
    factor = rising_then_falling(100)
    factors = [factor(step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1) and max(factors) == 1 and factors.index(1) == 9 and factors[100] == 0


@pytest.fixture(scope="module")
def one_fold(texts, scores):
    options = SimpleNamespace(model="small", seed=0, device="cpu", precision="fp32")
    return training.train(texts, scores, options, fold=1, plan=Plan(epochs=6, batch_size=4, lr=2e-3))


def test_training_lowers_the_loss_and_chooses_by_validation(one_fold):
    assert one_fold.losses[-1] < 0.7 * one_fold.losses[0]
    assert len(one_fold.validation) == 7
    assert one_fold.validation[one_fold.chosen] == max(one_fold.validation[1:])
    assert all(set(sums) == set(METHODS) for sums in one_fold.test.values())
    assert sum(one_fold.counts.values()) == one_fold.documents["test"]
    for sums in one_fold.test.values():
        low, high = rouge.mean(sums["worst"]), rouge.mean(sums["oracle"])
        assert all(low - 1e-9 <= rouge.mean(values) <= high + 1e-9 for values in sums.values())


def test_too_few_documents_are_refused(texts, scores):
    options = SimpleNamespace(model="small", seed=0, device="cpu", precision="fp32")
    with pytest.raises(InputError, match="too few"):
        training.train(texts, scores, options, fold=0, plan=Plan(epochs=1, batch_size=64, lr=1e-3))


# The study's tables


def fold(number, re_ranked, first=0.2, seed=0):
    """A run on two packages: of three documents, and of one; re_ranked: the mean ROUGE of each document."""
    counts = {f"large{number}": 3, f"small{number}": 1}
    methods = {method: 0.1 for method in METHODS} | {"oracle": 0.5, "re-ranked": re_ranked, "first": first}
    test = {
        package: {method: (count * value,) * 3 for method, value in methods.items()}
        for package, count in counts.items()
    }
    parts = {"train": 3, "validation": 2, "test": 2}
    return {
        "fold": number, "seed": seed, "documents": parts, "packages": parts, "losses": [2.0, 1.0],
        "validation": [0.1, 0.2, 0.3], "validation_first": 0.2, "chosen": 2, "test": test, "counts": counts,
        "source": "docstrings", "dropped": 1,
    }  # fmt: skip


def test_a_mean_over_packages_is_that_of_the_documents():
    runs = [fold(0, 0.3), fold(1, 0.5)]
    runs[0]["test"]["large0"]["re-ranked"] = (1.2, 1.2, 1.2)  # 3 documents of 0.4
    assert over_packages(runs, percent("re-ranked")).mean == pytest.approx(100 * (1.2 + 0.3 + 1.5 + 0.5) / 8)
    assert over_packages(runs, difference("re-ranked", "first")).mean == pytest.approx(100 * (3.5 / 8 - 0.2))
    share = over_packages(runs, difference("re-ranked", "random"), difference("oracle", "random"))
    assert share.mean == pytest.approx((3.5 / 8 - 0.1) / 0.4)


def test_its_interval_is_over_packages_not_documents_and_not_seeds():
    runs = [fold(number, 0.25 + number / 20) for number in range(3)]
    once = over_packages(runs, percent("re-ranked"))
    assert once.count == 6
    # by hand: of 12 documents in pairs of packages of 3 and of 1, the sums' residuals over the mean size of 2
    residuals = [weight * (value - once.mean) / 2 for value in (25, 30, 35) for weight in (3, 1)]
    error = math.sqrt(sum(one**2 for one in residuals) / 5 / 6)
    assert once.high - once.mean == pytest.approx(2.5706 * error, rel=1e-4)
    again = over_packages([*runs, *(run | {"seed": 1} for run in runs)], percent("re-ranked"))
    assert (again.mean, again.low, again.high) == pytest.approx((once.mean, once.low, once.high))


def test_an_interval_over_seeds_is_of_the_seeds_means():
    runs = [fold(number, 0.3 + seed / 100, seed=seed) for seed in range(3) for number in range(2)]
    over = over_seeds(runs, difference("re-ranked", "first"))
    assert (over.mean, over.count) == (pytest.approx(11), 3)
    assert over.high - over.mean == pytest.approx(4.3027 * 1 / math.sqrt(3), rel=1e-4)


def test_claims_hold_only_where_the_interval_says_so():
    better = {claim.id: claim for claim in tables.ranking_claims([fold(n, 0.3 + n / 100) for n in range(3)])}
    assert better["beats_first"].holds and better["beats_first"].value == pytest.approx(11)
    assert better["apart_from_first"].holds
    unclear = {claim.id: claim for claim in tables.ranking_claims([fold(n, 0.2 + (-1) ** n / 50) for n in range(3)])}
    assert unclear["beats_first"].holds is None and unclear["apart_from_first"].holds is False
    worse = {claim.id: claim for claim in tables.ranking_claims([fold(n, 0.15) for n in range(3)])}
    assert worse["beats_first"].holds is False and worse["beats_random"].holds
    one = {claim.id: claim for claim in tables.ranking_claims([fold(0, 0.9)])}
    assert one["beats_first_over_seeds"].holds is None  # of one seed nothing is known about seeds


def test_own_intervals_apart_are_said_beside_the_paired_ones():
    def folds_with(lead):  # which is the same everywhere, while packages differ
        return [fold(n, at + lead, first=at) for n in range(4) for at in [0.2 + (-1) ** n / 25]]

    clear, unclear = folds_with(0.2), folds_with(0.02)
    for folds, apart in ((clear, True), (unclear, False)):
        rows = {row["against"]: row for row in tables.paired_rows(folds)}
        assert rows["first"]["points of ROUGE more, over packages"].low > 0
        assert rows["first"]["own interval above the rule's"] is apart
        claim = next(claim for claim in tables.ranking_claims(folds) if claim.id == "apart_from_first")
        assert claim.holds is apart and "apart" in claim.text
        mine, theirs = (over_packages(folds, percent(name)) for name in ("re-ranked", "first"))
        assert claim.value == pytest.approx(mine.low - theirs.high)
    assert tables.points_between([of_one_article()], "first") is None


def of_one_article():
    """A run on one article of CNN/DailyMail."""
    article = fold(0, 0.3) | {"source": "cnn_dailymail", "packages": {"train": 1, "validation": 1, "test": 1}}
    return article | {"test": {"0": article["test"]["small0"]}, "counts": {"0": 1}}


@pytest.mark.parametrize("model", ["small", "medium", "base", "roberta-base"])
def test_notes_name_another_encoder_only_where_the_ranking_has_one(model):
    said = " ".join(tables.notes([fold(2, 0.3)], {}, model))
    assert ("trained with the encoder small, everything else is measured with medium" in said) == (model == "medium")
    assert "CPU" not in said and "in fold 2" in said


def test_articles_are_not_called_packages():
    folds = [of_one_article()]
    headers = [header for rows in (tables.paired_rows(folds), tables.fold_rows(folds)) for header in rows[0]]
    texts = [claim.text for claim in tables.ranking_claims(folds)]
    notes = tables.notes(folds, {}, "base")
    assert not any("package" in text for text in [*headers, *texts, *notes])
    assert tables.fold_rows(folds)[0]["test documents"] == "2" and "same articles" in notes[1]
    packages = [fold(0, 0.3)]
    assert tables.fold_rows(packages)[0]["test documents (packages)"] == "2 (2)"
    assert "2 packages tested" in tables.notes(packages, {}, "base")[1]


def test_programs_are_shown_by_all_rounds():
    def run(speed, peak):
        speeds = {"median": speed, "windows": [speed] * 5}
        return {
            "samples_per_second": speeds, "tokens_per_second": {"median": 10 * speed}, "step_ms": {"median": 1 / speed},
            "peak_memory_bytes": {"allocated": peak}, "workers": 2, "precision": "float32",
        }  # fmt: skip

    runs = {name: [run(speed * times, 5e6 + speed) for speed in (10, 50, 20)] for name, times in (("a", 1), ("b", 2))}
    one, two = tables.program_rows(runs)
    assert (one["documents/s"], one["tokens/s"], one["step ms"]) == (20, 200, 1 / 20)
    assert one["peak MB"] == pytest.approx(5.00005) and one["times the baseline"] is None
    assert two["documents/s"] == 40 and two["times the one before"].ratio == pytest.approx(2)


def test_rows_are_percent_with_the_published_figures_beside_them():
    rows = {row["candidate chosen"]: row for row in tables.ranking_rows([fold(n, 0.3) for n in range(3)])}
    assert rows["re-ranked"]["ROUGE-1"].mean == pytest.approx(30)
    assert rows["re-ranked"]["published, CNN/DailyMail"] == "46.67 / 22.15 / 43.54"
    assert rows["nearest length"]["published, CNN/DailyMail"] is None
    assert rows["re-ranked"]["of the way from random to oracle"].mean == pytest.approx(0.5)
    assert published.share_of_gap("oracle") == 1 and published.share_of_gap("random") == 0


def test_curves_have_a_line_for_the_first_sentence_over_all_epochs():
    rows = tables.curve_rows([fold(n, 0.3) for n in range(3)])
    assert [(row["variant"], row["epoch"]) for row in rows] == list(itertools.product(("re-ranked", "first"), range(3)))
    assert [row["validation ROUGE"].mean for row in rows] == pytest.approx([10, 20, 30, 20, 20, 20])
    assert rows[0]["training loss"] is None and rows[2]["training loss"].mean == pytest.approx(1)


def test_memory_claims_compare_bytes_with_tokens():
    def step(tokens, size):
        return {"tokens": tokens, "sequences": 1, "bytes": size, "step_ms": 1.0}

    claims = {
        claim.id: claim
        for claim in tables.memory_claims({1: (step(10, 100), None), 16: (step(40, 390), step(40, 100))})
    }
    assert claims["memory_by_tokens"].value == pytest.approx(0.975) and claims["memory_by_tokens"].holds
    assert "within 10%" in claims["memory_by_tokens"].text
    assert claims["checkpointing_memory"].value == pytest.approx(100 / 390) and claims["checkpointing_memory"].holds
    rows = tables.memory_rows({1: (None, step(10, 100))})  # what does not fit is left open
    assert rows[0]["MB"] is rows[0]["of it"] is None and rows[0]["tokens per step"] == 10


def test_more_candidates_need_more_memory_and_checkpointing_less(kept_texts, tmp_path):
    options = StepOptions(
        logdir=tmp_path, device="cpu", data=kept_texts, download=False, model="medium", image_size=0, batch_size=8,
        workers=0, precision="fp32", seed=0, quick=True, stacks=False,
    )  # fmt: skip
    few, many, less = (
        measure.memory(options, candidates, checkpointed)["bytes"]
        for candidates, checkpointed in ((2, False), (8, False), (8, True))
    )
    assert many > 1.5 * few and less < 0.6 * many


# The programs


def code_lines(path):
    """The lines of a program's code: no docstring, no blank lines."""
    text = path.read_text()
    return [line for line in text.splitlines()[ast.parse(text).body[0].end_lineno :] if line.strip()]


@pytest.mark.parametrize(("before", "after"), list(itertools.pairwise(PROGRAMS)), ids=NAMES[1:])
def test_consecutive_programs_differ_in_at_most_15_lines(before, after):
    difference = list(difflib.ndiff(code_lines(before), code_lines(after)))
    assert 0 < max(sum(line.startswith(sign) for line in difference) for sign in ("+ ", "- ")) <= 15


@pytest.mark.parametrize("path", PROGRAMS, ids=NAMES)
def test_a_program_opens_with_idea_change_look_for_and_caution(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring.startswith(f"SimCLS {path.stem[:2]}: ")
    for part in ("\nIdea ", "\nChange ", "\nLook for ", "\nCaution "):
        assert docstring.count(part) == 1
    assert len(code_lines(path)) <= 80 and max(map(len, path.read_text().splitlines())) <= 120


@pytest.fixture(scope="module")
def kept_texts(tmp_path_factory):
    """A folder for --data that holds collected docstrings, so that no program collects them."""
    data = tmp_path_factory.mktemp("data")
    written = [made_up(package, number) for package in "abcdefg" for number in range(10)]
    key = f"{docstrings.installed(docstrings.package_folders())} {documents._code()}"
    kept = [{"package": text.package, "summary": text.summary, "sentences": text.sentences} for text in written]
    record.write_json(data / "docstrings.json", {"schema": documents.SCHEMA, "key": key, "docstrings": kept})
    return data


@pytest.mark.parametrize("name", [NAMES[0], NAMES[-1]])
def test_a_program_counts_documents_and_tokens(name, kept_texts, tmp_path, run_here):
    words = ("--device", "cpu", "--quick", "--data", kept_texts, "--logdir", tmp_path)
    finished = run_here(LAB / f"{name}.py", *words, *(["--workers", "1"] if name != NAMES[0] else []))
    assert finished.returncode == 0, finished.stderr
    assert "documents/s" in finished.stdout and "text, batch 8" in finished.stdout
    result = record.read_result(tmp_path / name / record.FILE)
    assert (result.image_size, result.batch_size, result.model, result.data) == (0, 8, "medium", "docstrings")
    assert result.tokens_per_second.median > 100 * result.samples_per_second.median
    losses = finished.stdout.splitlines()[-1].split()
    assert math.isfinite(float(losses[1])) and math.isfinite(float(losses[6]))


def test_bad_input_is_one_line(kept_texts, tmp_path, run_here):
    program, words = LAB / f"{NAMES[0]}.py", ("--device", "cpu", "--quick", "--logdir", tmp_path)
    assert_refused(run_here(program, *words, "--data", tmp_path / "nothing"), "--data", "is no folder")
    too_large = run_here(program, *words, "--data", kept_texts, "--batch-size", "900")
    assert_refused(too_large, "larger than the data", "documents")


def test_the_study_refuses_a_missing_package_before_it_measures(kept_texts, tmp_path, run_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    words = ("--device", "cpu", "--quick", "--data", kept_texts, "--logdir", tmp_path / "logs")
    finished = run_here(LAB / "study.py", *words)
    assert_refused(finished, "rouge-score", "pip install -r labs/simcls/requirements.txt")


def test_a_program_misses_its_packages_before_it_collects_texts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(InputError, match="needs rouge-score, which is not installed"):
        training_set(tmp_path / "data", "small", 0)
    assert not (tmp_path / "data").exists()


def test_numbers_that_are_equal_are_named_once():
    assert (tables.among([54, 54]), tables.among([3, 5, 4])) == ("54", "3 to 5")
