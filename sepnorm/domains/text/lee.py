"""The Lee corpus: 300 short news items for training, and 50 others with rated similarity.

Published by Lee, Pincombe and Welsh in 2005. The files come with gensim, which itself is not imported.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from sepnorm.domains.text.reading import clean
from sepnorm.domains.text.sts import Pairs
from sepnorm.errors import SepNormError

_BACKGROUND, _RATED, _RATINGS = "lee_background.cor", "lee.cor", "similarities0-1.txt"
# a break after . ! or ?, perhaps with a closing quote or bracket, and before what may begin a sentence
_BREAK = re.compile(r"""(?<=[.!?])(?P<closing>["')]*)\s+(?=["'(]*[A-Z0-9])""")
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|Sen|Gen|Lt|Col|Capt|No|vs)|\b[A-Z](?:\.[A-Z])*)\.$")


def lee_sentences() -> list[str]:
    """The distinct sentences of the 300 news items.

    Returns:
        The sentences, in order.

    Raises:
        SepNormError: if gensim is not installed.
    """
    found = [clean(sentence) for line in _lines(_BACKGROUND) for sentence in split_sentences(line)]
    return list(dict.fromkeys(found))


def lee_pairs() -> Pairs:
    """All 1,225 pairs of the 50 rated items.

    Returns:
        The pairs with mean ratings from 0 to 1; 1 is most similar.

    Raises:
        SepNormError: if gensim is not installed.
    """
    texts = _lines(_RATED)
    ratings = [[float(cell) for cell in line.split()] for line in _lines(_RATINGS)]
    if len(ratings) != len(texts) or any(len(row) != len(texts) for row in ratings):
        raise SepNormError(f"{_RATINGS} and {_RATED} of gensim do not belong together: install gensim anew.")
    pairs = [(i, j) for i in range(len(texts)) for j in range(i + 1, len(texts))]
    return Pairs([texts[i] for i, _ in pairs], [texts[j] for _, j in pairs], [ratings[i][j] for i, j in pairs])


def split_sentences(text: str) -> list[str]:
    """Splits a text after ``.``, ``!`` or ``?``, unless that ends an abbreviation or initials."""
    found: list[str] = []
    start = 0
    for match in _BREAK.finditer(text):
        if _ABBREVIATION.search(text, start, match.start()):
            continue
        found.append(text[start : match.end("closing")].strip())
        start = match.end()
    return [sentence for sentence in [*found, text[start:].strip()] if sentence]


def _lines(name: str) -> list[str]:
    spec = find_spec("gensim")
    if spec is None or spec.origin is None:
        raise SepNormError("the Lee corpus comes with gensim, which is not installed: pip install 'sepnorm[demo]'.")
    path = Path(spec.origin).parent / "test" / "test_data" / name
    if not path.is_file():
        raise SepNormError(f"this gensim comes without its test data ({path} is missing): name other data by --data.")
    return [line.strip() for line in path.read_text(encoding="latin-1").split("\n") if line.strip()]
