"""What a transformer has to beat: the commonest class, and logistic regression on which words a text has."""

from collections import Counter
from typing import Any

from labs.shared.extras import imported
from labs.transformer.texts import Texts
from walkthrough.results.errors import InputError

FEW = 1000  # training texts: of fewer, words that come once are kept
WORDS, PUNCTUATED, COMMONEST = "bag of words", "bag of words and punctuation", "commonest class"
TOKENS = {WORDS: r"\w+", PUNCTUATED: r"\w+|[^\w\s]+"}


def bags_of_words(of: Texts) -> dict[str, float]:
    """{name: share (0..1) of the test texts that it classifies right}, all from the training texts alone.

    A bag: TF-IDF of what `TOKENS` finds, if it comes twice at least where there are many texts; scikit-learn's logistic
    regression, its regularisation chosen on the validation texts. Raises InputError where that is not installed, and
    for texts without words.
    """
    imported("sklearn", "transformer", "a bag of words")
    labels = [one.label for one in of.test]
    commonest = Counter(one.label for one in of.train).most_common(1)[0][0]
    bags = {name: _accuracy(of, pattern) for name, pattern in TOKENS.items()}
    return {**bags, COMMONEST: labels.count(commonest) / len(labels)}


def _accuracy(of: Texts, pattern: str) -> float:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    twice = 2 if len(of.train) > FEW else 1
    vectorizer: Any = TfidfVectorizer(min_df=twice, sublinear_tf=True, token_pattern=pattern)
    try:
        inputs = {"train": vectorizer.fit_transform([one.text for one in of.train])}
    except ValueError as error:
        raise InputError("the training texts have no words, or none of them twice: a bag of words is empty") from error
    inputs |= {part: vectorizer.transform([one.text for one in getattr(of, part)]) for part in ("validation", "test")}
    labels = {part: [one.label for one in getattr(of, part)] for part in ("train", "validation", "test")}
    models = [
        LogisticRegression(C=strength, max_iter=1000).fit(inputs["train"], labels["train"]) for strength in (3, 10, 30)
    ]
    best = max(models, key=lambda model: model.score(inputs["validation"], labels["validation"]))
    return float(best.score(inputs["test"], labels["test"]))
