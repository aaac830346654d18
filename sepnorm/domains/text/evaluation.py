"""Scores of a text encoder on evaluation sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.evaluation import Evaluation, Task
from sepnorm.domains.requests import NEED_CLS, POOLINGS
from sepnorm.domains.text.embedding import Embed, sentence_embedder
from sepnorm.domains.text.encoder import TextEncoder
from sepnorm.domains.text.sets import GROUPS, SETS, Loaded, load_sets
from sepnorm.domains.text.sts import Pairs, sts_score
from sepnorm.domains.text.transfer import transfer_scores
from sepnorm.errors import require_known


def evaluate(encoder: TextEncoder, task: Task) -> Evaluation:
    """Scores an encoder on the sets ``task.on`` (default ``sts``), by [CLS] unless other poolings are named."""
    sets = load_sets(task.on or ["sts"], task.data)
    places = task.poolings(("cls",))
    if set(places) & set(NEED_CLS):
        encoder.require_cls()
    said = ", ".join("[CLS]" if place == "cls" else place for place in places)
    found = Evaluation(encoder.name, task.data, f"{', '.join(sets)}, with {said}")
    for place in places:
        scores = score_sets(sets, sentence_embedder(encoder, place))
        found.metrics |= {f"{place}_{key}" if len(places) > 1 else key: value for key, value in scores.items()}
    return found


def evaluate_text(
    model: str, on: Sequence[str] = ("sts",), data: str | None = None, pooling: str = "cls"
) -> dict[str, float]:
    """A score for each set: Spearman's correlation for ``sts``, accuracy for ``transfer``.

    ``model``: as for ``open_encoder``; ``on``, ``data``: as for ``load_sets``. Sets are read first, so that a misspelt
    name is reported before the model is opened.
    """
    require_known("pooling", pooling, POOLINGS)
    sets = load_sets(on, data)
    return score_sets(sets, sentence_embedder(open_encoder(model), pooling))


def score_sets(sets: Mapping[str, Loaded], embed: Embed) -> dict[str, float]:
    """A score for each set, ``NAME_f1`` for sets of pairs, and the average of each complete group."""
    scores: dict[str, float] = {}
    for name, loaded in sets.items():
        if isinstance(loaded, Pairs):
            scores[name] = sts_score(loaded, embed)
            continue
        found = transfer_scores(loaded, embed)
        scores[name] = found.pop("accuracy")
        scores |= {f"{name}_{key}": value for key, value in found.items()}
    for group in GROUPS:
        members = [name for name, known in SETS.items() if known.group == group]
        if all(name in sets for name in members):  # the average of part of a group would not be comparable
            scores[f"{group}_average"] = sum(scores[name] for name in members) / len(members)
    return scores
