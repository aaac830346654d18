from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as T
from models import bert, text_model

import sepnorm
from sepnorm import SepNormError
from sepnorm.domains.encoders import open_encoder
from sepnorm.domains.text.config import TextConfig
from sepnorm.domains.text.corpus import load_corpus, load_development
from sepnorm.domains.text.embedding import sentence_embedder
from sepnorm.domains.text.recipe import TextRecipe
from sepnorm.domains.text.sections import binned, nearest_of
from sepnorm.domains.text.sts import sts_score
from sepnorm.errors import LeftOutWarning
from sepnorm.experiment.runs import perform

WORDS = "the cat dog sat on mat and number a b c d e".split()
ARMS = ["ln", "bn", "bn+ln", "bn+bn"]


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * (i + 3) + i * i) % len(WORDS)] for i in range(2 + number % 7)) + f" {number % 10}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model, sentences, triples, rated pairs for testing and development, and a set with classes."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("text")
    text_model(folder / "model")
    (folder / "train.txt").write_text("\n".join(sentence(n) for n in range(120)))
    rows = [f"{sentence(n)}\t{sentence(n + 1)}\t{sentence(n + 40)}" for n in range(60)]
    (folder / "triples.tsv").write_text("\n".join(["sent0\tsent1\thard_neg", *rows]))
    header = "split\tscore\tsentence1\tsentence2"
    parts = [(split, n) for split, count in (("train", 3), ("dev", 20), ("test", 30)) for n in range(count)]
    rows = [f"{split}\t{n * 7 % 11}\t{sentence(n)}\t{sentence(3 * n + 1)}" for split, n in parts]
    (folder / "sets").mkdir()
    (folder / "sets" / "stsb.tsv").write_text("\n".join([header, *rows]))
    rows = [f"{'test' if n % 3 == 0 else 'train'}\t{sentence(n)}\t{n % 2}" for n in range(60)]
    (folder / "sets" / "trec.tsv").write_text("\n".join(["split\ttext\tlabel", *rows]))
    return folder


@pytest.fixture(scope="module")
def config(folder) -> TextConfig:
    return TextConfig(
        data=str(folder / "train.txt"),
        model=str(folder / "model"),
        test=str(folder / "sets"),
        on="stsb,trec",
        batch_size=8,
        learning_rate=1e-3,
        max_steps=6,
        checkpoints=2,
        length=10,
    )


@pytest.fixture(scope="module")
def recipe(config) -> TextRecipe:
    return TextRecipe(config)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("norm", ARMS)
def test_a_run_leaves_a_model_that_opens_and_gives_a_sentence_one_vector(recipe, config, tmp_path, norm):
    from sentence_transformers import SentenceTransformer

    perform(recipe, config.changed({"norm": norm}), tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert all(math.isfinite(value) for value in metrics.values())
    names = "stsb trec sts_average transfer_average sts_before".split()
    assert {f"{pooling}_{name}" for pooling in ("cls", "mean") for name in names} <= metrics.keys()
    assert {f"moments_{name}" for name in names[:-1]} <= metrics.keys()  # all but the score before training
    geometry = ("uniformity", "effective_rank", "mean_cosine", "alignment")
    assert {f"cls_{name}" for name in geometry} | {"loss"} <= metrics.keys()
    target = str(tmp_path / "run" / "model")
    opened = SentenceTransformer(target, device="cpu") if norm == "ln" else sepnorm.load(target)
    assert isinstance(opened, SentenceTransformer) and opened[1].pooling_mode == "cls"
    texts = json.loads((tmp_path / "run" / "names.json").read_text())
    assert texts == recipe.corpus.held_out
    kept = np.load(tmp_path / "run" / "embeddings.npz")["cls"]
    for size in (1, 3, 64):
        np.testing.assert_allclose(opened.encode(texts, batch_size=size), kept, atol=1e-5)
    embed = sentence_embedder(open_encoder(target))
    np.testing.assert_allclose(embed(texts).numpy(), kept, atol=1e-5)
    assert metrics["cls_stsb"] == pytest.approx(sts_score(recipe.sets["stsb"], embed), abs=1e-3)


@pytest.mark.parametrize("changes", [{"norm": "bn+ln"}, {"masked_weight": 0.1, "model": "scratch", "vocabulary": 120}])
def test_a_run_with_dropout_goes_on_from_its_checkpoint_bit_by_bit(config, folder, tmp_path, changes):
    changes |= {"development": str(folder / "sets" / "stsb.tsv"), "evaluate_every": 1, "width": 16, "depth": 1}
    from safetensors.torch import load_file

    config = config.changed(changes)
    recipe = TextRecipe(config)
    model = recipe.prepare(config)
    trained, selection = recipe.fit(model, config, tmp_path / "whole")
    assert [step for step, _ in selection.scores] == [1, 2, 3, 4, 5, 6] and len({s for _, s in selection.scores}) > 1
    kept = sorted((tmp_path / "whole").glob("checkpoint-*"))
    assert [path.name for path in kept] == ["checkpoint-4", "checkpoint-6"]
    shutil.copytree(kept[0], tmp_path / "part" / "checkpoint-4")
    resumed = recipe.prepare(config)
    again, chosen = recipe.fit(resumed, config, tmp_path / "part")
    assert same(weights(model), weights(resumed))
    assert again.losses == trained.losses and chosen.scores == selection.scores
    stored = load_file(kept[1] / "best.safetensors")
    assert same(stored, weights(model))


def test_arms_of_a_seed_start_alike_and_calibration_keeps_the_model_working(recipe, config):
    plain, separate = (recipe.prepare(config.changed({"norm": norm})) for norm in ("ln", "bn+ln"))
    old, new = weights(plain), weights(separate)
    common = [key for key in old if key in new and new[key].shape == old[key].shape]
    assert len(common) >= len(old) - 2 and all(torch.equal(old[key], new[key]) for key in common)
    first, second = (recipe.encode(model, recipe.held_out)[0] for model in (plain, separate))
    assert float(torch.cosine_similarity(first, second).mean()) > 0.9
    assert recipe.prepare(config.changed({"seed": 1})).head[0].weight.ne(plain.head[0].weight).any()


def test_sentences_that_the_steps_do_not_reach_are_said(config):
    with pytest.warns(LeftOutWarning, match=r"^16 of 96 training sentences are used, because max_steps=2; --set max"):
        TextRecipe(config.changed({"max_steps": 2}))


def test_training_learns_and_other_seeds_differ(recipe, config, tmp_path):
    longer = config.changed({"max_steps": 30, "checkpoints": 0, "epochs": 9, "head": "none"})
    model, trained = recipe.pretrain(longer, tmp_path / "a")
    early, late = (sum(loss for _, loss in part) / 5 for part in (trained.losses[:5], trained.losses[-5:]))
    assert late < 0.9 * early
    other, _ = recipe.pretrain(longer.changed({"seed": 1, "max_steps": 2}), tmp_path / "b")
    assert not same(weights(model), weights(other))


def test_a_kept_head_is_part_of_the_saved_model(recipe, config, tmp_path):
    from sentence_transformers import SentenceTransformer

    perform(recipe, config.changed({"head": "kept", "max_steps": 1, "checkpoints": 0}), tmp_path)
    kept = np.load(tmp_path / "embeddings.npz")["cls"]
    found = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(recipe.corpus.held_out)
    np.testing.assert_allclose(found, kept, atol=1e-5)
    assert np.abs(kept).max() < 1


def test_triples_are_found_by_their_columns(config, folder):
    triples = config.changed({"data": str(folder / "triples.tsv")})
    corpus = load_corpus(triples)
    assert corpus.supervised and corpus.samples == 48 and len(corpus.texts) == 144 and len(corpus.held_out) == 12
    assert corpus.views(True) == [0, 48, 96] and corpus.views(False) == [0, 48]
    assert not set(corpus.held_out) & set(corpus.texts[:48])
    alone = load_corpus(triples.changed({"column": "sent1"}))
    assert not alone.supervised and alone.views(True) == [0, 0]
    assert load_corpus(triples.changed({"column": "hard_neg, sent1, sent0"})).texts[0] == corpus.texts[96]


def test_triples_train_with_their_hard_negatives(config, folder, tmp_path):
    config = config.changed({"data": str(folder / "triples.tsv"), "max_steps": 1, "checkpoints": 0})
    recipe = TextRecipe(config)
    losses = [
        recipe.pretrain(config.changed({"hard_negatives": hard}), tmp_path / str(hard))[1].losses[0][1]
        for hard in (True, False)
    ]
    assert losses[0] != losses[1] and all(map(math.isfinite, losses))


def test_a_development_set_is_that_split_of_a_table(folder, tmp_path):
    assert len(load_development(str(folder / "sets" / "stsb.tsv"))) == 20
    (tmp_path / "all.csv").write_text("sentence1,sentence2,score\na,b,1\nc,d,2\n")
    assert len(load_development(str(tmp_path / "all.csv"))) == 2
    (tmp_path / "test.csv").write_text("split,sentence1,sentence2,score\ntest,a,b,1\ntest,c,d,2\n")
    with pytest.raises(SepNormError, match=r"no rows of the split dev.*it has test"):
        load_development(str(tmp_path / "test.csv"))
    with pytest.raises(SepNormError, match=r"holds no sts-dev\.csv"):
        load_development(str(tmp_path))


def without_cls(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1} | {w: i + 2 for i, w in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    T.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    bert().save_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "BARE"}, r"puts no \[CLS\] before a sentence \(its tokeniser begins with '\[UNK\]'\)"),
        ({"length": 33}, "length=33 is more than the 32 tokens that .* takes"),
        ({"data": "one.txt"}, "one.txt holds one sentence"),
        ({"data": "few.txt"}, "few.txt holds 5 sentences or triples: 20 or more"),
        ({"masked_weight": 0.1}, "comes without weights for predicting masked words"),
        ({"model": "CONVERTED"}, "has separate norms already"),
        ({"model": "./nowhere"}, "there is no model ./nowhere"),
        ({"num_cls": 2}, r"num_cls=2 is for images: sentences have one \[CLS\]"),
        ({"on": "stsx"}, r"unknown evaluation set 'stsx'"),
        ({"data": "nowhere.txt"}, "there is no file nowhere.txt"),
    ],
)
def test_bad_input_is_one_sentence(config, tmp_path, monkeypatch, changes, said):
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text("one sentence only\n\n")
    Path("few.txt").write_text("\n".join(map(sentence, range(5))))
    if changes.get("model") == "BARE":
        without_cls(tmp_path / "BARE")
    if changes.get("model") == "CONVERTED":
        model = bert()
        sepnorm.convert(model, "ln+ln", sites="all")
        sepnorm.save(model, "CONVERTED")
    with pytest.raises(SepNormError, match=said) as caught:
        TextRecipe(config.changed(changes))
    assert "\n" not in str(caught.value)


def test_the_commands_know_text_and_the_page_shows_it(config, folder, tmp_path, monkeypatch, capfd):
    from sepnorm.__main__ import main

    given = {"model": config.model, "test": config.test, "on": config.on, "batch_size": 8, "threads": 0}
    given |= {"learning_rate": 1e-3, "development": str(folder / "sets" / "stsb.tsv"), "evaluate_every": 1}
    options = ["--data", config.data, "--max-steps", "2", *(w for k, v in given.items() for w in ("--set", f"{k}={v}"))]

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sepnorm", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, "".join(capfd.readouterr())

    code, said = run(
        "compare", "text", "--seeds", "1", "--norms", "ln,bn+ln@final", *options, "--out", str(tmp_path / "c")
    )
    assert code == 0, said
    assert "[CLS] STS" in said
    page = (tmp_path / "c" / "report.html").read_text()
    for title in ("Tasks", "Similarity beside people", "Alignment and uniformity", "Nearest neighbours"):
        assert f"<h2>{title}" in page
    assert "best score on the development set" in page and "Score on the development set" in page
    assert sentence(0) in page and "Scored by" not in page
    other = [word for key in ("model", "batch_size", "threads") for word in ("--set", f"{key}={given[key]}")]
    words = ("compare", "text", "--data", config.data, "--max-steps", "1", "--seeds", "1", *other)
    code, said = run(*words, "--out", str(tmp_path / "other"))
    assert code == 0, said
    assert "Lee corpus that people rated, which are not of your data" in (tmp_path / "other/report.html").read_text()
    code, said = run("pretrain", "text", *options, "--quiet", "--out", str(tmp_path / "p"))
    assert code == 0 and (tmp_path / "p" / "model" / "sepnorm.json").is_file(), said
    code, said = run("pretrain", "text", "--set", "lenght=3")
    assert code == 1 and "Did you mean 'length'?" in said


def test_bins_and_neighbours_have_closed_forms():
    middles, means, deviations = binned(torch.tensor([0.0, 0.05, 1.0]), torch.tensor([1.0, 3.0, 5.0]))
    assert middles == [0.05, 0.95] and means == [2.0, 5.0] and deviations == [1.0, 0.0]
    unit = torch.nn.functional.normalize(torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [-1, 0]]), dim=1)
    assert [place for _, place in nearest_of(unit, torch.tensor([0]))[0]] == [1, 2]


def test_readings_on_the_way_change_no_bit_of_a_run(recipe, config, tmp_path):
    states, losses = [], []
    for count in (0, 2):
        own = config.changed({"norm": "bn+ln", "monitor": count})
        model = recipe.prepare(own)
        trained, _, found = recipe.watched(model, own, tmp_path / str(count))
        states.append(model.state_dict())
        losses.append(trained.losses)
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0]) and losses[0] == losses[1]
    assert len(found["monitor"]["steps"]) >= 2 and bool(found["monitor"]["cls_uniformity"].isfinite().all())
