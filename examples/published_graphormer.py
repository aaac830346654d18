"""Open a published Graphormer, predict, embed molecules and atoms, give it separate norms, and save it.

    python published_graphormer.py CHECKPOINT

CHECKPOINT is a folder of transformers 4, Microsoft's `.pt` file, or a Hub name such as graphormer-base-pcqm4mv2.
Without it, a random model is first saved in that form. Prints a prediction for each molecule, and how much separate
norms change the embeddings before any training.
"""

import sys

import torch

import sepnorm
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.model import encode
from sepnorm.domains.molecules.published.config import PublishedConfig


def random_model() -> str:
    torch.manual_seed(0)
    config = PublishedConfig(embedding_dim=64, ffn_embedding_dim=64, num_attention_heads=8, num_hidden_layers=3)
    sepnorm.Graphormer(config).save_published("published")  # in the format of transformers 4
    return "published"


def made_up() -> list[str]:
    """Yours: a few hundred molecules of the kind that the model is for."""
    ends = ["O", "N", "Cl", "C(=O)O", "C#N", "c1ccccc1", "c1ccncc1", "C1CCCCC1"]
    return [
        f"{first.replace('1', '2')}{'C' * length}{last}"
        for first in ends[3:]
        for length in range(1, 13)
        for last in ends
    ]


def main() -> None:
    model = sepnorm.Graphormer.from_published(sys.argv[1] if len(sys.argv) > 1 else random_model())
    smiles = ["CCO", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O"]
    graphs, _ = featurise(smiles, model.config.features)
    with torch.no_grad():
        out = model(**model.collate(graphs))
    for text, predicted, states, graph in zip(smiles, out.logits, out.last_hidden_state, graphs, strict=True):
        atoms = states[1 : 1 + len(graph)]
        print(f"{text:25} {predicted[0]:+.3f}  [VNode] {tuple(states[0].shape)}, atoms {tuple(atoms.shape)}")

    ordinary, _ = featurise(made_up(), model.config.features)
    before = encode(model, ordinary)
    batches = [model.collate(ordinary[start : start + 64]) for start in range(0, len(ordinary), 64)]
    sepnorm.convert(model, "bn+ln", calibrate=batches)
    kept = torch.cosine_similarity(before, encode(model, ordinary)).mean()
    sepnorm.save(model, "separate")
    print(f"cosine to the published vectors, with separate norms: {float(kept):.3f}")


if __name__ == "__main__":
    main()
