"""A published Graphormer: paths by Floyd and Warshall, what it gives, separate norms, and graphs that are refused."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published_models import TINY, model
from torch import nn

import sepnorm
from sepnorm import Graphormer, SepNormError
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphs import Graph
from sepnorm.domains.molecules.model import encode
from sepnorm.domains.molecules.published.batches import UNREACHABLE, collate, floyd_warshall
from sepnorm.domains.molecules.published.config import PublishedConfig
from sepnorm.domains.molecules.tables import read_table

SMILES = ["CCO", "c1ccccc1O", "[Na+].[Cl-]", "C1CC1C(=O)NC", "C", "CCCCCCCC(=O)OC", "c1ccc2c(c1)cccc2", "N#CC(C)(C)O"]


def graphs(kind: str = "ogb") -> list[Graph]:
    return list(featurise(SMILES, kind)[0])


# ---- batches ------------------------------------------------------------------------------------------------------------


def plain_search(joined: np.ndarray) -> tuple[list[list[int]], list[list[int]]]:
    """Floyd and Warshall's three loops over one graph."""
    count = len(joined)
    far = [[0 if i == j else 1 if joined[i, j] else UNREACHABLE for j in range(count)] for i in range(count)]
    middle = [[-1] * count for _ in range(count)]
    for k in range(count):
        for i in range(count):
            for j in range(count):
                if far[i][k] + far[k][j] < far[i][j]:
                    far[i][j], middle[i][j] = far[i][k] + far[k][j], k
    return far, middle


def plain_path(middle: list[list[int]], i: int, j: int) -> list[int]:
    """The atoms between two, by the halves that a path was put together from."""
    k = middle[i][j]
    return [] if k < 0 else [*plain_path(middle, i, k), k, *plain_path(middle, k, j)]


@st.composite
def some_graphs(draw: st.DrawFn) -> list[Graph]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 9))
        pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
        ends = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
        atoms = np.array([[draw(st.integers(0, 27))] for _ in range(count)], dtype=np.uint8)
        codes = np.array([[draw(st.integers(0, 3))] for _ in ends], dtype=np.uint8).reshape(-1, 1)
        found.append(Graph(atoms, np.array(ends, dtype=np.uint8).reshape(-1, 2), codes, "zinc"))
    return found


@settings(max_examples=60, deadline=None)
@given(some_graphs(), st.integers(1, 6))
def test_tensors_are_those_of_the_definition(several, hops):
    config = PublishedConfig(features="zinc", multi_hop_max_dist=hops, **TINY)
    batch = collate(several, config)
    for number, graph in enumerate(several):
        count = len(graph)
        codes = np.full((count, count), -1)
        for (i, j), (code,) in zip(graph.bonds, graph.bond_features, strict=True):
            codes[i, j] = codes[j, i] = code
        far, middle = plain_search(codes >= 0)
        assert batch["input_nodes"][number, :count, 0].tolist() == [int(code) + 3 for code in graph.atoms[:, 0]]
        assert batch["in_degree"][number, :count].tolist() == ((codes >= 0).sum(0) + 1).tolist()
        assert batch["attention_mask"][number].sum() == 1 + count
        for i in range(count):
            for j in range(count):
                assert int(batch["spatial_pos"][number, i, j]) == far[i][j] + 1
                assert bool(batch["attn_bias"][number, 1 + i, 1 + j] == -torch.inf) == (far[i][j] >= 19)
                way = [] if far[i][j] in (0, UNREACHABLE) else [i, *plain_path(middle, i, j), j]
                wanted = [codes[a, b] + 3 for a, b in pairwise(way)][:hops]
                assert batch["input_edges"][number, i, j, :, 0].tolist() == wanted + [0] * (hops - len(wanted))


def test_distances_of_long_chains():
    joined = np.zeros((1, 60, 60), dtype=bool)
    joined[0, np.arange(59), np.arange(1, 60)] = joined[0, np.arange(1, 60), np.arange(59)] = True
    distances, _ = floyd_warshall(joined)
    assert np.array_equal(distances[0], np.abs(np.arange(60)[:, None] - np.arange(60)))


def test_the_two_collators_count_atoms_and_far_pairs_otherwise():
    chain = list(featurise(["C" * 30, "[Na+].[Cl-]"], "ogb")[0])
    theirs = collate(chain, PublishedConfig(**TINY))
    microsofts = collate(chain, PublishedConfig(collator="microsoft", **TINY))
    assert torch.equal(theirs["input_nodes"][0], microsofts["input_nodes"][0] + 1)
    assert torch.isinf(theirs["attn_bias"]).sum() == 2 * sum(range(1, 12)) + 2
    assert not torch.isinf(microsofts["attn_bias"]).any()
    assert torch.equal(theirs["input_edges"], microsofts["input_edges"])


# ---- the model ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"pre_layernorm": True}, {"edge_type": "one_hop", "embed_scale": 2.0}])
def test_a_molecule_is_the_same_alone_and_beside_larger_ones(changes):
    built, several = model(**changes), graphs()
    together = built(**built.collate(several))
    for number, graph in enumerate(several):
        alone = built(**built.collate([graph]))
        assert torch.allclose(alone.logits[0], together.logits[number], atol=1e-5)
        hidden = together.last_hidden_state[number, : 1 + len(graph)]
        assert torch.allclose(alone.last_hidden_state[0], hidden, atol=1e-5)


def test_the_way_that_bonds_are_looked_up_is_the_published_sum():
    bias, several = model().encoder.graph_encoder.graph_attn_bias, graphs()
    batch = model().collate(several)
    edges, pos = batch["input_edges"], batch["spatial_pos"]
    weights = bias.edge_dis_encoder.weight.view(-1, 2, 2)[:5]
    mean = bias.edge_encoder(edges).mean(-2)
    wanted = torch.einsum("bijhc,hcd->bijd", mean, weights) / (pos - 1).clamp(1, 5)[..., None]
    assert torch.allclose(bias._on_the_way(pos, edges), wanted, atol=1e-5)


@pytest.mark.parametrize("classes", [1, 3])
def test_training_reaches_every_weight_that_is_used(classes):
    built = model(num_classes=classes, num_trans_layers_to_freeze=1).train()
    labels = torch.rand(len(SMILES), classes).round() if classes > 1 else torch.rand(len(SMILES))
    labels[0] = torch.nan
    built(**built.collate(graphs()), labels=labels).loss.backward()
    for name, value in built.named_parameters():
        frozen = name.startswith("encoder.graph_encoder.layers.0.")
        assert (value.grad is None) if frozen else bool(value.grad.abs().sum()), name


@pytest.mark.parametrize(
    ("classes", "missing"), [(1, [torch.nan]), (3, [torch.nan]), (3, [torch.nan] * 3), (3, [-100])]
)
def test_a_batch_without_labels_has_the_loss_0_and_teaches_nothing(classes, missing):
    built = model(num_classes=classes)
    labels = torch.tensor([missing] * len(SMILES)).squeeze(1)
    loss = built(**built.collate(graphs()), labels=labels).loss
    loss.backward()
    assert loss == 0
    assert all(value.grad is None or not value.grad.any() for value in built.parameters())


def test_losses_are_those_of_transformers_4():
    logits_of = model()(**model().collate(graphs())).logits[:, 0]
    wanted = torch.linspace(-1, 1, len(SMILES))
    found = model()(**model().collate(graphs()), labels=wanted)
    assert torch.allclose(found.loss, (logits_of - wanted).square().mean())
    several = model(num_classes=3)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    out = several(**several.collate(graphs()), labels=labels)
    assert torch.allclose(out.loss, nn.functional.cross_entropy(out.logits, labels))


def test_hidden_states_are_given_when_asked_for():
    built = model()
    found = built(**built.collate(graphs()), output_hidden_states=True)
    assert [tuple(state.shape) for state in found.hidden_states] == [(len(SMILES), 12, 16)] * 3
    assert built(**built.collate(graphs())).hidden_states is None


def test_graphs_of_pyg_are_taken_as_they_are():
    built = model()
    items = []
    for graph in graphs():
        ends, codes = graph.bonds.astype(int).reshape(-1, 2), graph.bond_features - np.array([0, 5, 11], dtype=np.uint8)
        items.append(
            SimpleNamespace(
                x=graph.atoms - np.array([0, 119, 124, 136, 148, 158, 164, 170, 172], dtype=np.uint8),
                edge_index=np.concatenate([ends, ends[:, ::-1]]).T,
                edge_attr=np.concatenate([codes, codes]),
            )
        )
    wanted = built(**built.collate(graphs())).logits
    batch = SimpleNamespace(edge_index=np.zeros((2, 0)), to_data_list=lambda: items)
    assert torch.equal(built(items).logits, wanted)
    assert torch.equal(built(batch).logits, wanted)
    assert torch.allclose(built(items[0]).logits, wanted[:1], atol=1e-5)


def wide(pre_layernorm: bool) -> Graphormer:
    """One whose norms see what a trained model's do: many channels, none of which stands out."""
    torch.manual_seed(1)
    sizes = {"embedding_dim": 128, "ffn_embedding_dim": 128, "num_attention_heads": 8, "num_hidden_layers": 3}
    found = Graphormer(PublishedConfig(**sizes, pre_layernorm=pre_layernorm, encoder_normalize_before=True)).eval()
    for module in found.modules():
        for value in module.parameters(recurse=False):
            spread = module.in_features**-0.5 if isinstance(module, nn.Linear) and value.dim() > 1 else 0.15
            value.data += spread * torch.randn_like(value)
    return found


@pytest.mark.parametrize(("sites", "pre_layernorm"), [("final", False), ("all", True)])
def test_separate_norms_keep_what_a_published_model_gives(sites, pre_layernorm):
    """Vectors and predictions of molecules that were not calibrated on; without calibration they are lost."""
    built, lost = wide(pre_layernorm), wide(pre_layernorm)
    several = list(featurise(read_table("nci").smiles[::20], "ogb")[0])
    some, others = several[::2], several[1::2]
    before = encode(built, others)
    batches = [built.collate(some[start : start + 32]) for start in range(0, len(some), 32)]
    sepnorm.convert(built, "bn+ln", sites=sites, calibrate=batches)
    sepnorm.convert(lost, "bn+ln", sites=sites)
    after, without = encode(built, others), encode(lost, others)
    assert cosine(before, after) > 0.995 > 0.95 > cosine(before, without)
    predicted = torch.stack([built.classifier(vectors)[:, 0] for vectors in (before, after)])
    assert torch.corrcoef(predicted)[0, 1] > 0.98


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.cosine_similarity(one, other).mean())


def empty() -> Graph:
    return Graph(np.zeros((0, 9), np.uint8), np.zeros((0, 2), np.uint8), np.zeros((0, 3), np.uint8), "ogb")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.collate([]), "at least one graph"),
        (lambda m: m.collate([empty()]), "graph 0 has 0 atoms, and this model takes 1 to 30"),
        (lambda m: m.collate(featurise(["C", "C" * 31])[0]), "graph 0 has the features 'zinc', the model 'ogb'"),
        (lambda m: m.collate(featurise(["C", "C" * 31], "ogb")[0]), "graph 1 has 31 atoms"),
        (
            lambda m: m(SimpleNamespace(x=np.zeros((1, 9)), edge_index=np.zeros((2, 0)))),
            "a SimpleNamespace, has no edge_attr",
        ),
        (lambda m: m(torch.ones(1, 2, 9).long()), "all tensors of a batch"),
        (
            lambda m: model(edge_type="one_hop")(**m.dummy_inputs | {"attn_edge_type": None}),
            "attn_edge_type is a tensor, found NoneType",
        ),
        (lambda m: m(**m.dummy_inputs | {"attn_bias": torch.zeros(3, 4, 4)}), r"attn_bias has the shape \(3, 5, 5\)"),
        (
            lambda m: m(**m.dummy_inputs, labels=torch.zeros(2)),
            r"labels have the shape \(3,\) or \(3, 1\), found \(2,\)",
        ),
        (lambda m: m(**m.dummy_inputs | {"input_nodes": torch.full((3, 4, 9), 4609)}), "input_nodes holds 4609"),
        (lambda m: m(**m.dummy_inputs | {"in_degree": torch.full((3, 4), 512)}), "in_degree holds 512"),
        (lambda m: m(**m.dummy_inputs | {"spatial_pos": torch.full((3, 4, 4), -1)}), "spatial_pos holds -1"),
        (
            lambda m: m(**m.dummy_inputs | {"input_edges": torch.zeros(3, 4, 4, 0, 3).long()}),
            "input_edges has the shape",
        ),
    ],
)
def test_bad_graphs_are_refused(call, message):
    with pytest.raises(SepNormError, match=message):
        call(model(max_nodes=30))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"embedding_dim": 15}, "cannot be divided"),
        ({"multi_hop_max_dist": 0}, "multi_hop_max_dist lies between"),
        ({"collator": "google"}, "unknown collator 'google'"),
        ({"features": "obg"}, "Did you mean 'ogb'"),
        ({"bias": False}, "bias=False cannot be built"),
        ({"max_nodes": 0}, "max_nodes is a whole number from 1 on, found 0"),
        ({"spatial_pos_max": "far"}, "spatial_pos_max is a whole number from 1 on, found 'far'"),
        ({"embed_scale": "large"}, "embed_scale is a number or None, found 'large'"),
    ],
)
def test_bad_settings_are_refused(settings_, message):
    with pytest.raises(SepNormError, match=message):
        PublishedConfig(**(TINY | settings_))
