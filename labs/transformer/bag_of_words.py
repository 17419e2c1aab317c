"""What a transformer has to beat: the commonest class, and logistic regression on which words a text has."""

from collections import Counter
from typing import Any

from common.studies.extras import imported
from labs.transformer.texts import Texts

FEW = 1000  # training texts: of fewer, words that come once are kept
BAG, PAIRS, COMMONEST = "bag of words", "bag of words and pairs of words", "commonest class"


def bag_of_words(of: Texts, pairs: bool = False) -> dict[str, float]:
    """{name: share (0..1) of the test texts that it classifies right}, all from the training texts alone.

    The bag: TF-IDF of words and punctuation, those that come twice at least where there are many texts; scikit-learn's
    logistic regression, its regularisation chosen on the validation texts. pairs: another one, which has pairs of
    neighbouring words too, so that it knows some of their order. Raises InputError where scikit-learn is not installed.
    """
    imported("sklearn", "transformer", "a bag of words")
    labels = [one.label for one in of.test]
    commonest = Counter(one.label for one in of.train).most_common(1)[0][0]
    bags = {BAG: _accuracy(of, 1)} | ({PAIRS: _accuracy(of, 2)} if pairs else {})
    return {**bags, COMMONEST: labels.count(commonest) / len(labels)}


def _accuracy(of: Texts, most_words: int) -> float:
    """Of a bag of sequences of up to so many words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    twice = 2 if len(of.train) > FEW else 1
    vectorizer: Any = TfidfVectorizer(
        ngram_range=(1, most_words), min_df=twice, sublinear_tf=True, token_pattern=r"\w+|[^\w\s]+"
    )
    inputs = {"train": vectorizer.fit_transform([one.text for one in of.train])}
    inputs |= {part: vectorizer.transform([one.text for one in getattr(of, part)]) for part in ("validation", "test")}
    labels = {part: [one.label for one in getattr(of, part)] for part in ("train", "validation", "test")}
    models = [
        LogisticRegression(C=strength, max_iter=200).fit(inputs["train"], labels["train"]) for strength in (3, 30)
    ]
    best = max(models, key=lambda model: model.score(inputs["validation"], labels["validation"]))
    return float(best.score(inputs["test"], labels["test"]))
