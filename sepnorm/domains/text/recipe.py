"""One run on text: convert a pretrained encoder, train by SimCSE, evaluate on STS and transfer sets, measure, save."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sepnorm.data.choices import evenly
from sepnorm.distributed import rank
from sepnorm.domains.probes import centred, shape, whitened
from sepnorm.domains.text.config import TextConfig
from sepnorm.domains.text.corpus import Corpus, load_corpus, load_development
from sepnorm.domains.text.embedding import Embed
from sepnorm.domains.text.evaluation import score_sets
from sepnorm.domains.text.masked import mask_tokens
from sepnorm.domains.text.model import SimCSE
from sepnorm.domains.text.saving import save_sentence_transformer
from sepnorm.domains.text.selection import Selection
from sepnorm.domains.text.sets import GROUPS, Loaded, load_sets
from sepnorm.domains.text.starting import LONGEST, Start, open_start
from sepnorm.domains.text.streaming import TextStream, corpus_of
from sepnorm.domains.text.sts import Pairs, sts_score
from sepnorm.domains.text.tokens import Tokens
from sepnorm.errors import tell_limit
from sepnorm.experiment.runs import Outcome
from sepnorm.geometry import alignment
from sepnorm.pooling import pool
from sepnorm.surgery import model_call
from sepnorm.surgery.inspection import Inspection, conclude, watch
from sepnorm.training.arm_norms import give_norms
from sepnorm.training.batching import Samples, Steps, StreamedSteps, by_length
from sepnorm.training.monitored import Monitored
from sepnorm.training.trainer import Report, Trained, train

_BATCH = 64  # sentences encoded at a time
_WINDOW = 64  # training batches that are sorted by length together
_INSPECTED, _TOKENS = 512, 4096  # sentences inspected; token vectors kept of them
_MONITORED = 256  # sentences on which [CLS] is measured during training
_POSITIVE = 0.8  # pairs above this share of their set's score range mean the same: above 4 on 0 to 5, as in SimCSE

Texts = dict[str, int]  # distinct sentences with their indices


class TextRecipe:
    """Reads the data of a config, and runs any config with the same data and model."""

    def __init__(self, config: TextConfig) -> None:
        self.sets = load_sets(config.sets, config.test)  # first, so that a misspelt name is reported at once
        self.development = None if config.development is None else load_development(config.development)
        self.stream = None if config.stream is None else TextStream(config)
        self.corpus: Corpus = load_corpus(config) if self.stream is None else self.stream.corpus
        self.start: Start = open_start(config, self.corpus.texts)
        self.tokens = Tokens(self.start.tokenizer, self.corpus.texts, config.length)
        seen = (config.max_steps or 0) * config.batch_size * config.accumulation
        if 0 < seen < self.corpus.samples and config.data != "lee" and self.stream is None:
            tell_limit(seen, f"{self.corpus.samples:,} training sentences", "max_steps", config.max_steps)
        longest = min(self.start.longest, LONGEST)
        self.held_out = Tokens(self.start.tokenizer, self.corpus.held_out, longest)
        rated = [text for one in self.sets.values() if isinstance(one, Pairs) for text in _texts(one)]
        self._rated = len(set(rated))  # rated sentences come first, and are also scored before training
        self._tested = _numbered([*rated, *(text for one in self.sets.values() for text in _texts(one))])
        self.test_tokens = Tokens(self.start.tokenizer, list(self._tested), longest)

    def run(self, config: TextConfig, folder: Path, report: Report | None = None) -> Outcome:
        """Converts, scores, trains, scores again and measures."""
        model = self.prepare(config)
        before = self.scores(self.vectors(model, self.test_tokens, ("cls", "mean"), self._rated), "sts")
        trained, selection, monitored = self.watched(model, config, folder, report)
        rows = self.vectors(model, self.test_tokens, ("cls", "mean", "moments"))
        metrics = self.scores(rows)
        metrics |= {key.replace("average", "before"): value for key, value in before.items() if "average" in key}
        cls, mean = self.encode(model, self.held_out)
        for way, change in (("centred", centred), ("whitened", whitened)):
            free = self.scores({"cls": change(cls, rows["cls"]), "mean": change(mean, rows["mean"])}, "sts")
            metrics |= {key.replace("average", way): value for key, value in free.items() if "average" in key}
        metrics |= {f"cls_{key}": value for key, value in shape(cls).items()}
        arrays: dict[str, dict[str, Tensor]] = dict(monitored)
        if (pairs := self._pairs(rows["cls"])) is not None:
            positive = pairs.pop("positive")
            metrics["cls_alignment"] = alignment(pairs.pop("first")[positive], pairs.pop("second")[positive])
            arrays["pairs"] = pairs
        if selection is not None:
            steps, scores = zip(*selection.scores, strict=True)
            arrays["development"] = {"steps": torch.tensor(steps), "scores": torch.tensor(scores)}
            metrics |= {"chosen_step": float(selection.best[0]), "development": selection.best[1]}
        metrics |= {"loss": trained.losses[-1][1], "sentences_per_second": trained.rate}
        layers, tokens = self.look_inside(model)
        save_to = partial(save_sentence_transformer, model, self.start)
        found = {"cls": cls, "mean": mean, "tokens": tokens}
        return Outcome(
            metrics,
            trained.losses,
            found,
            save_to,
            layers,
            arrays,
            self.corpus.held_out,
            resumed_from=trained.resumed_from,
        )

    def prepare(self, config: TextConfig) -> SimCSE:
        """The model at the start of a run. A pretrained one is calibrated on training sentences when converted."""
        encoder, predictor = self.start.fresh(config)
        some = (
            self.tokens.batches(evenly(len(self.tokens), config.calibration), _BATCH) if self.start.pretrained else []
        )
        give_norms(encoder, config, [batch for _, batch in some] or None)
        return SimCSE(encoder, config, predictor)

    def pretrain(self, config: TextConfig, folder: Path, report: Report | None = None) -> tuple[SimCSE, Trained]:
        model = self.prepare(config)
        return model, self.fit(model, config, folder, report)[0]

    def fit(
        self, model: SimCSE, config: TextConfig, folder: Path, report: Report | None = None
    ) -> tuple[Trained, Selection | None]:
        """Trains. With a development set the model ends with its best weights, else with the last."""
        return self.watched(model, config, folder, report)[:2]

    def watched(
        self, model: SimCSE, config: TextConfig, folder: Path, report: Report | None = None
    ) -> tuple[Trained, Selection | None, dict[str, dict[str, Tensor]]]:
        """Like ``fit``, and records the geometry of [CLS] of some held-out sentences during training."""
        steps: Steps
        if self.stream is None or config.stream is None:
            steps = Steps(config, self._samples(config, self.corpus, self.tokens), "linear")  # as in SimCSE
        else:
            steps = StreamedSteps(
                config, config.stream, self.stream.open(config.order_seed), partial(self._read, config), "linear"
            )
        selection = None
        if self.development is not None:
            selection = Selection(model, self._scored_by(model, self.development), config.evaluate_every)
        others = [] if selection is None else [selection]
        few = min(len(self.held_out), _MONITORED)
        monitored = Monitored(
            model, lambda _, batch: self.encode(model, self.held_out, few), config.monitor * (few > 1), others
        )
        trained = train(model, steps, folder, report, monitored)
        if selection is not None:
            selection.apply()
        return trained, selection, monitored.arrays()

    def _read(self, config: TextConfig, parts: list[list[str]]) -> Samples:
        """Training samples from what a stream returned."""
        corpus = corpus_of(parts)
        return self._samples(config, corpus, Tokens(self.start.tokenizer, corpus.texts, config.length))

    def _samples(self, config: TextConfig, corpus: Corpus, tokens: Tokens) -> Samples:
        views = corpus.views(config.hard_negatives)

        def make(chosen: Tensor, own: slice, generator: torch.Generator) -> dict[str, Any]:
            rows = [chosen[own] + view for view in views]
            masked = [rows[0]] if config.masked_weight else []
            batch: dict[str, Any] = tokens.batch(torch.cat(rows + masked))
            sentences = len(rows[0])
            if masked:
                ids = batch["input_ids"]
                draws = torch.rand(3, len(chosen), config.length, generator=generator)[:, own, : ids.shape[1]]
                shown, batch["targets"] = mask_tokens(ids[-sentences:], self.start.tokenizer, draws)
                batch["input_ids"] = torch.cat([ids[:-sentences], shown])
            seed = int(torch.randint(2**62, (1,), generator=generator)) + rank()
            return batch | {"sentences": sentences, "seed": seed}

        count = corpus.samples
        lengths = torch.stack([tokens.lengths[view : view + count] for view in views]).amax(0)
        return Samples(count, make, by_length(lengths, _WINDOW) if config.similar_lengths else None)

    def encode(self, model: SimCSE, tokens: Tokens, count: int | None = None) -> tuple[Tensor, Tensor]:
        """[CLS] and mean of all tokens (sentences, width) of the first ``count`` sentences, without padding."""
        found = self.vectors(model, tokens, ("cls", "mean"), count)
        return found["cls"], found["mean"]

    @torch.no_grad()
    def vectors(
        self, model: SimCSE, tokens: Tokens, poolings: Sequence[str], count: int | None = None
    ) -> dict[str, Tensor]:
        """Vectors (sentences, size) of the first ``count`` sentences by each pooling; padding does not count."""
        count = len(tokens) if count is None else count
        found: dict[str, Tensor] = {}
        with model_call.quiet(model):
            for rows, batch in tokens.batches(torch.arange(count), _BATCH):
                hidden = model_call.run(model.encoder, batch).last_hidden_state
                for name in poolings:
                    some = pool(name, model.embed(hidden), hidden, batch["attention_mask"]).float().cpu()
                    found.setdefault(name, some.new_empty(count, some.shape[1]))[rows] = some
        return found

    def scores(self, rows: Mapping[str, Tensor], only: str = "") -> dict[str, float]:
        """Scores of the test sets, or of one group, from the output of ``vectors``, and the average of each group."""
        found: dict[str, float] = {}
        for pooling, vectors in rows.items():
            for group in [only] if only else GROUPS:
                sets = {name: one for name, one in self.sets.items() if isinstance(one, Pairs) == (group == "sts")}
                scores = score_sets(sets, _lookup(self._tested, vectors))
                if sets:
                    scores[f"{group}_average"] = sum(scores[name] for name in sets) / len(sets)
                found |= {f"{pooling}_{name}": value for name, value in scores.items()}
        return found

    def _scored_by(self, model: SimCSE, pairs: Pairs) -> Callable[[], float]:
        numbers = _numbered([*pairs.first, *pairs.second])
        tokens = Tokens(self.start.tokenizer, list(numbers), min(self.start.longest, LONGEST))
        return lambda: sts_score(pairs, _lookup(numbers, self.encode(model, tokens)[0]))

    def _pairs(self, cls: Tensor) -> dict[str, Tensor] | None:
        """All rated pairs: people's scores from 0 to 1, cosines, vectors, and which pairs mean the same."""
        sets = [one for one in self.sets.values() if isinstance(one, Pairs)]
        if not sets:
            return None
        embed = _lookup(self._tested, cls)
        first, second = (embed([text for one in sets for text in getattr(one, side)]) for side in ("first", "second"))
        human = torch.cat([_spread(torch.tensor(one.scores)) for one in sets])
        cosine = torch.cosine_similarity(first, second)
        return {"human": human, "cosine": cosine, "positive": human > _POSITIVE, "first": first, "second": second}

    @torch.no_grad()
    def look_inside(self, model: SimCSE) -> tuple[Inspection, Tensor]:
        """Statistics of the norms on some held-out sentences, and some token vectors (count, width)."""
        rows = evenly(len(self.held_out), _INSPECTED)
        batches = [batch for _, batch in self.held_out.batches(rows, _BATCH)]
        tokens = []
        with watch(model.encoder) as watchers, model_call.quiet(model):
            for batch in batches:
                hidden = model_call.run(model.encoder, batch).last_hidden_state.float().cpu()
                tokens.append(hidden[:, 1:][batch["attention_mask"][:, 1:].bool()])
        every = torch.cat(tokens)
        return conclude(model.encoder, watchers), every[evenly(len(every), _TOKENS)]


def _texts(loaded: Loaded) -> list[str]:
    parts = [loaded] if isinstance(loaded, Pairs) else list(loaded.parts.values())
    return [text for part in parts for side in (part.first, part.second) for text in side]


def _numbered(texts: Sequence[str]) -> Texts:
    return {text: number for number, text in enumerate(dict.fromkeys(texts))}


def _lookup(numbers: Texts, rows: Tensor) -> Embed:
    return lambda texts: rows[[numbers[text] for text in texts]]


def _spread(scores: Tensor) -> Tensor:
    """Scales from 0 for the lowest to 1 for the highest."""
    return (scores - scores.min()) / (scores.max() - scores.min()).clamp(min=1e-12)
