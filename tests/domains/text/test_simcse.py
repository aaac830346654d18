from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
import transformers as T
from models import BERT, bert, sentences, text_model

import sepnorm
from sepnorm import SepNormError
from sepnorm.domains.text.config import PRESETS, TextConfig
from sepnorm.domains.text.domain import DOMAIN
from sepnorm.domains.text.masked import Predictor, mask_tokens
from sepnorm.domains.text.model import SimCSE
from sepnorm.domains.text.selection import Selection
from sepnorm.domains.text.tokens import Tokens, train_wordpiece
from sepnorm.losses import uniformity_loss
from sepnorm.training.batching import Samples, Steps, by_length

CONFIG = TextConfig(batch_size=4, learning_rate=1e-3, head="none")
WORDS = "the cat dog sat on mat and number a b c d e".split()


def texts(count: int) -> list[str]:
    return [" ".join(WORDS[(n * 5 + i * (n + 1)) % len(WORDS)] for i in range(1 + n * 7 % 11)) for n in range(count)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    text_model(folder)
    return T.AutoTokenizer.from_pretrained(folder)


def test_a_step_is_timed_whatever_the_size_of_the_vocabulary(tmp_path):
    text_model(tmp_path)
    model, batch = DOMAIN.trial(CONFIG.changed({"model": str(tmp_path), "length": 8}))
    assert model(**batch(4))["loss"].isfinite()


def calm(**changes) -> T.BertModel:
    """Without dropout, so that training and evaluation differ by batch norms alone."""
    return bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **changes)


def views(count: int = 2, rows: int = 4) -> dict:
    batch = sentences(rows, 9)
    return {key: value.repeat(count, 1) for key, value in batch.items()} | {"sentences": rows, "seed": 1}


def contrastive(first, second, temperature=0.05):
    cosines = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T
    return F.cross_entropy(cosines / temperature, torch.arange(len(first)))


def test_the_loss_is_that_of_finding_the_other_view():
    model = SimCSE(calm(), CONFIG).train()
    ids = sentences(8, 9)
    cls = model.encoder(**ids).last_hidden_state[:, 0]
    found = model(**ids, sentences=4, seed=1)["loss"]
    assert torch.allclose(found, contrastive(cls[:4], cls[4:]), rtol=1e-5)
    warm = SimCSE(model.encoder, CONFIG.changed({"temperature": 0.5}))
    assert torch.allclose(warm(**ids, sentences=4, seed=1)["loss"], contrastive(cls[:4], cls[4:], 0.5), rtol=1e-5)


def test_hard_negatives_are_partners_of_none():
    model = SimCSE(calm(), CONFIG)
    ids = sentences(12, 9)
    cls = model.encoder(**ids).last_hidden_state[:, 0]
    assert torch.allclose(model(**ids, sentences=4, seed=1)["loss"], contrastive(cls[:4], cls[4:]), rtol=1e-5)


def test_both_views_go_through_one_pass_and_batch_statistics_see_both():
    encoder = bert()
    sepnorm.convert(encoder, "bn+ln", sites="final")
    model = SimCSE(encoder, CONFIG).train()
    norm = next(m for m in model.modules() if isinstance(m, sepnorm.SepNorm))
    seen = []
    norm.register_forward_hook(lambda module, args, output: seen.append(args[0][:, 0].detach()))
    before = norm.cls_norm.running_mean.clone()
    model(**views())
    assert [len(rows) for rows in seen] == [8]
    assert torch.allclose(norm.cls_norm.running_mean, 0.9 * before + 0.1 * seen[0].mean(0), atol=1e-6)


def test_dropout_makes_the_views_differ_and_is_drawn_from_the_seed():
    model = SimCSE(bert(), CONFIG).train()
    batch = views()
    first = model(**batch)["loss"]
    torch.rand(5)
    assert torch.equal(first, model(**batch)["loss"])
    assert not torch.equal(first, model(**batch | {"seed": 2})["loss"])
    assert not torch.equal(first, model.eval()(**batch)["loss"])


@pytest.mark.parametrize("norm", ["ln", "bn", "bn+bn"])
def test_padding_changes_nothing(norm):
    encoder = calm()
    if norm != "ln":
        sepnorm.convert(encoder, norm, sites="all")
    model = SimCSE(encoder, CONFIG.changed({"uniformity_weight": 0.5, "uniformity_on": "both"})).train()
    batch = views()
    wide = {key: F.pad(batch[key], (0, 5)) for key in ("input_ids", "attention_mask")}
    assert torch.allclose(model(**batch)["loss"], model(**batch | wide)["loss"], rtol=1e-5)


@pytest.mark.parametrize("on", ["cls", "tokens", "both"])
def test_the_uniformity_term_is_of_one_view_without_padding(on):
    plain = SimCSE(calm(), CONFIG)
    model = SimCSE(plain.encoder, CONFIG.changed({"uniformity_weight": 0.7, "uniformity_on": on}))
    batch = views()
    mask = batch["attention_mask"][:4].bool()
    hidden = plain.encoder(batch["input_ids"][:4], attention_mask=mask.long()).last_hidden_state
    parts = {"cls": uniformity_loss(hidden[:, 0]), "tokens": uniformity_loss(hidden[:, 1:][mask[:, 1:]])}
    expected = parts["cls"] + parts["tokens"] if on == "both" else parts[on]
    assert torch.allclose(model(**batch)["loss"], plain(**batch)["loss"] + 0.7 * expected, rtol=1e-4)


def test_the_head_is_used_in_training_and_kept_only_where_asked():
    encoder = calm()
    hidden = torch.randn(3, 5, 16)
    trained, kept = (SimCSE(encoder, CONFIG.changed({"head": head})) for head in ("training", "kept"))
    assert torch.equal(trained.head[0].weight, kept.head[0].weight)
    assert torch.equal(trained.embed(hidden), hidden[:, 0])
    assert torch.allclose(kept.embed(hidden), torch.tanh(kept.head[0](hidden[:, 0])))
    batch = views()
    assert not torch.equal(trained(**batch)["loss"], SimCSE(encoder, CONFIG)(**batch)["loss"])


SMALL = {key: value for key, value in BERT.items() if key != "max_position_embeddings"} | {
    "max_position_embeddings": 40
}


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (T.BertForMaskedLM, T.BertConfig(**SMALL)),
        (T.RobertaForMaskedLM, T.RobertaConfig(**SMALL)),
        (T.MPNetForMaskedLM, T.MPNetConfig(**SMALL)),
        (T.AlbertForMaskedLM, T.AlbertConfig(**SMALL, embedding_size=16)),
    ],
)
def test_masked_words_are_predicted_as_transformers_does_and_weights_are_held_once(cls, settings, tmp_path):
    from safetensors.torch import save_file

    model = cls(settings).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    ids = torch.randint(5, 60, (2, 7))
    logits = model(ids).logits
    encoder = model.base_model
    wrapped = SimCSE(encoder, CONFIG, Predictor(model)).eval()
    assert torch.allclose(wrapped.predictor(encoder(ids).last_hidden_state), logits, atol=1e-5)
    save_file(wrapped.state_dict(), tmp_path / "w.safetensors")  # refuses weights that are there twice
    wrapped.predictor(encoder(ids).last_hidden_state).sum().backward()
    assert all(p.grad is not None for p in wrapped.predictor.parameters())


def test_an_architecture_without_a_known_head_is_refused():
    settings = T.DistilBertConfig(vocab_size=60, dim=16, n_layers=1, n_heads=2, hidden_dim=24)
    with pytest.raises(SepNormError, match="DistilBertForMaskedLM has no head for masked words"):
        Predictor(T.DistilBertForMaskedLM(settings))


def test_masks_hide_some_words_and_no_special_tokens(tokenizer):
    ids = Tokens(tokenizer, texts(400), 12).batch(torch.arange(400))["input_ids"]
    draws = torch.rand(3, *ids.shape, generator=torch.Generator().manual_seed(0))
    shown, targets = mask_tokens(ids, tokenizer, draws)
    words = ~torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    chosen = targets != -100
    assert not (chosen & ~words).any() and torch.equal(targets[chosen], ids[chosen])
    assert torch.equal(shown[~chosen], ids[~chosen])
    assert float(chosen.sum() / words.sum()) == pytest.approx(0.15, abs=0.03)
    assert float((shown[chosen] == tokenizer.mask_token_id).float().mean()) == pytest.approx(0.8, abs=0.1)


def test_the_masked_term_is_added_with_its_weight():
    lm = T.BertForMaskedLM(T.BertConfig(**BERT)).eval()
    predictor = Predictor(lm)
    batch = views(3)
    targets = torch.full((4, 9), -100)
    targets[0, 2], targets[3, 1] = 7, 8
    plain = SimCSE(lm.base_model, CONFIG).eval()
    model = SimCSE(lm.base_model, CONFIG.changed({"masked_weight": 0.3}), predictor).eval()
    two = {key: value[:8] if torch.is_tensor(value) else value for key, value in batch.items()}
    hidden = lm.base_model(batch["input_ids"][8:], attention_mask=batch["attention_mask"][8:]).last_hidden_state
    term = F.cross_entropy(predictor(hidden).flatten(0, 1), targets.flatten(), ignore_index=-100)
    assert torch.allclose(model(**batch, targets=targets)["loss"], plain(**two)["loss"] + 0.3 * term, rtol=1e-5)


def test_batches_are_what_the_tokeniser_makes_of_the_sentences(tokenizer):
    every = texts(30)
    tokens = Tokens(tokenizer, every, 8)
    rows = torch.tensor([3, 29, 0, 3])
    expected = tokenizer([every[i] for i in rows], padding=True, truncation=True, max_length=8, return_tensors="pt")
    found = tokens.batch(rows)
    assert all(torch.equal(found[key], expected[key]) for key in ("input_ids", "attention_mask"))
    assert tokens.lengths.tolist() == [len(ids) for ids in tokenizer(every, truncation=True, max_length=8)["input_ids"]]
    parts = tokens.batches(torch.arange(30), 7)
    assert sorted(torch.cat([numbers for numbers, _ in parts]).tolist()) == list(range(30))


def test_batches_have_similar_lengths_and_are_a_function_of_seed_and_number():
    lengths = torch.arange(203) * 37 % 50

    def steps(seed: int) -> Steps:
        config = CONFIG.changed({"seed": seed, "epochs": 2, "batch_size": 10})
        return Steps(config, Samples(203, lambda chosen, *_: {"chosen": chosen}, by_length(lengths, 64)))

    first, again, other = steps(1), steps(1), steps(2)
    for number in (25, 3, 39, 0):
        assert torch.equal(first[number]["chosen"], again[number]["chosen"])
    assert not torch.equal(first[0]["chosen"], other[0]["chosen"])
    epoch = [first[number]["chosen"] for number in range(20)]
    assert len(torch.cat(epoch).unique()) == 200
    assert max(int(lengths[rows].max() - lengths[rows].min()) for rows in epoch) < 10
    middles = [float(lengths[rows].float().mean()) for rows in epoch]
    assert middles != sorted(middles) and middles != sorted(middles, reverse=True)


def test_word_pieces_learnt_from_the_same_texts_are_the_same():
    corpus = [f"{text} unbelievable{n} Beliefs" for n, text in enumerate(texts(60))]
    first, second = (train_wordpiece(corpus, 150, 64) for _ in range(2))
    assert first.get_vocab() == second.get_vocab() and len(first) == 150
    ids = first("The cat, unbelievable!")["input_ids"]
    assert ids[0] == first.cls_token_id and ids[-1] == first.sep_token_id
    assert first.decode(first("The cat sat")["input_ids"], skip_special_tokens=True).replace(" ", "") == "thecatsat"
    assert first.model_max_length == 64 and first.convert_tokens_to_ids("[PAD]") == 0


def test_the_best_weights_are_kept_and_found_again_in_a_checkpoint(tmp_path):
    model = torch.nn.Linear(1, 1)
    values = {2: 0.5, 4: 0.9, 6: 0.7, 7: 0.9}
    step = 0
    selection = Selection(model, lambda: values[step], 2)
    selection.save(tmp_path)
    assert not list(tmp_path.iterdir())
    for step in range(1, 8):
        torch.nn.init.constant_(model.weight, step)
        if selection.due(step, 7):
            selection.look(step, 7)
    assert selection.scores == list(values.items()) and selection.best == (4, 0.9)
    selection.save(tmp_path)
    other = Selection(model, lambda: 0.0, 2)
    other.resume(tmp_path)
    other.apply()
    assert model.weight.item() == 4 and other.scores == selection.scores


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"widht": 64}, r"unknown setting 'widht'.*Did you mean 'width'"),
        ({"width": 30}, "width 30 cannot be divided among 4 heads"),
        ({"temperature": 0}, "temperature=0"),
        ({"head": "always"}, "head='always'"),
        ({"norm": "bm"}, "bm"),
        (
            {"uniformity_weight": 1, "uniformity_on": "tokens", "uniformity_within": "sample"},
            "does not know of padding",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(SepNormError, match=said):
        CONFIG.changed(changes)


def test_presets_have_the_published_settings():
    published = {
        "paper": (64, 3e-5, "google-bert/bert-base-uncased"),
        "paper-roberta": (512, 1e-5, "FacebookAI/roberta-base"),
        "paper-supervised": (512, 5e-5, "google-bert/bert-base-uncased"),
        "paper-roberta-supervised": (512, 5e-5, "FacebookAI/roberta-base"),
    }
    for name, expected in published.items():
        config = PRESETS[name]
        assert (config.batch_size, config.learning_rate, config.model) == expected
        assert (config.temperature, config.length, config.head) == (0.05, 32, "training")
        json.dumps(config.model_dump())
    assert PRESETS["demo"].sets == ["lee"] and PRESETS["paper"].sets == ["sts", "transfer"]
    assert CONFIG.changed({"test": "stsb.tsv"}).sets == ["sts"]
