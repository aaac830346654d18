"""One small folder of every kind that can be opened, of which the harmful ones are made."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from whole_files import WORDS
from wires import TEXTS, graphs, pixels

import sepnorm


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def change(path: Path, changes: dict[str, Any] | list[Any]) -> None:
    """New values in a JSON file, or a whole new list; dictionaries in it keep what is not changed."""

    def merged(old: Any, new: Any) -> Any:
        if not (isinstance(old, dict) and isinstance(new, dict)):
            return new
        return old | {key: merged(old.get(key), value) for key, value in new.items()}

    write(path, merged(json.loads(path.read_text()) if path.is_file() else {}, changes))


def make_bases(folder: Path) -> dict[str, np.ndarray]:
    """Every kind of folder that can be opened, small, and the vectors that its model gave before it was saved."""
    import transformers as T
    from models import BERT, bert
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    from sepnorm.domains.molecules.batches import collate
    from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel

    T.utils.logging.disable_progress_bar()
    T.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    expected: dict[str, Any] = {}

    @torch.no_grad()
    def first(model: Any, **batch: Any) -> Any:
        return model.eval()(**batch).last_hidden_state[:, 0]

    # BERT, its words in vocab.txt or in tokenizer.json
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"0123456789"]
    write(folder / "words/vocab.txt", "\n".join(vocabulary) + "\n")
    write(folder / "words/tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    model = bert()
    model.save_pretrained(folder / "words")
    tokenizer = T.BertTokenizer(vocab=str(folder / "words/vocab.txt"))
    batch = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    model.save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    expected["words"] = expected["plain"] = first(model, **batch)
    model.save_pretrained(folder / "shards", max_shard_size="6KB")
    tokenizer.save_pretrained(folder / "shards")
    assert (folder / "shards/model.safetensors.index.json").is_file()
    expected["shards"] = expected["plain"]

    # sentence-transformers, with all the modules that are usual
    modules = [Transformer(str(folder / "words")), Pooling(16, "cls"), Dense(16, 12), Normalize()]
    sentences = SentenceTransformer(modules=modules, device="cpu").eval()
    sentences.save_pretrained(str(folder / "sentences"), create_model_card=False)
    expected["sentences"] = expected["plain"]

    shutil.copytree(folder / "sentences", folder / "sentences_words")
    (folder / "sentences_words/tokenizer.json").unlink()
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / "words" / name, folder / "sentences_words")
    expected["sentences_words"] = expected["plain"]

    # what sepnorm.save wrote
    few = SentenceTransformer(modules=[Transformer(str(folder / "words")), Pooling(16, "cls")], device="cpu").eval()
    for name, each in (("saved_sentences", few), ("saved_dense", sentences)):
        sepnorm.convert(each, "bn+ln", example=TEXTS, sites="all")
        with torch.no_grad():
            expected[name] = each(dict(each.preprocess(TEXTS)))["token_embeddings"][:, 0]
        sepnorm.save(each, folder / name)
    sepnorm.convert(model, "bn+ln", sites="all")
    expected["saved"] = first(model, **batch)
    sepnorm.save(model, folder / "saved")
    tokenizer.save_pretrained(folder / "saved")
    graphormer = GraphormerModel(GraphormerConfig("ogb", 16, 2, 2, 16))
    sepnorm.convert(graphormer, "bn+ln", sites="final")
    expected["graphormer"] = first(graphormer, **collate(graphs("ogb"), graphormer.config.max_hops))
    sepnorm.save(graphormer, folder / "graphormer")

    # images
    size = {key: BERT[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    vit = T.ViTModel(T.ViTConfig(image_size=8, patch_size=4, **size))
    vit.save_pretrained(folder / "vit")
    write(folder / "vit/preprocessor_config.json", {"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    expected["vit"] = first(vit, pixel_values=pixels(3, 8, 8))
    sepnorm.convert(vit, "bn+ln", sites="all")
    expected["saved_vit"] = first(vit, pixel_values=pixels(3, 8, 8))
    sepnorm.save(vit, folder / "saved_vit")
    shutil.copy(folder / "vit/preprocessor_config.json", folder / "saved_vit")
    swin = T.SwinModel(T.SwinConfig(image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[1, 1]))
    swin.save_pretrained(folder / "swin")
    shutil.copytree(folder / "swin", folder / "saved_swin")
    os.rename(folder / "saved_swin/model.safetensors", folder / "saved_swin/sepnorm.safetensors")
    description = {
        "format": 1,
        "library": "transformers",
        "class": "SwinModel",
        "build": {},
        "sites": [],
        "aliases": {},
    }
    write(folder / "saved_swin/sepnorm.json", description)

    # RoBERTa, its words in vocab.json and merges.txt, or in tokenizer.json
    from tokenizers.pre_tokenizers import ByteLevel

    letters = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet()), "th", "the", "at"]
    write(folder / "roberta_words/vocab.json", {letter: number for number, letter in enumerate(letters)})
    write(folder / "roberta_words/merges.txt", "#version: 0.2\nt h\nth e\na t\n")
    write(folder / "roberta_words/tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
    tokenizer = T.AutoTokenizer.from_pretrained(folder / "roberta_words")
    config = T.RobertaConfig(**(BERT | dict(vocab_size=len(letters), max_position_embeddings=60)))
    roberta = T.RobertaModel(config)
    batch = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    assert batch["input_ids"].shape[1] > 10
    expected["roberta_words"] = expected["roberta"] = first(roberta, **batch)
    roberta.save_pretrained(folder / "roberta_words")
    roberta.save_pretrained(folder / "roberta")
    tokenizer.save_pretrained(folder / "roberta")

    # two towers, each with a config inside the config
    tower = dict(size, projection_dim=8)
    text = T.CLIPTextConfig(vocab_size=60, max_position_embeddings=32, **tower).to_dict()
    vision = T.CLIPVisionConfig(image_size=8, patch_size=4, **tower).to_dict()
    T.CLIPModel(T.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)).save_pretrained(
        folder / "towers"
    )
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / "words" / name, folder / "towers")
    return {name: vectors.numpy() for name, vectors in expected.items()}
