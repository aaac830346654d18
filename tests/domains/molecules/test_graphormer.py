from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from molecule_reference import SMILES, renumbered, zinc_smiles
from torch import nn

import sepnorm
from sepnorm import SepNormError
from sepnorm.domains.molecules.batches import collate
from sepnorm.domains.molecules.features import featurise
from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerLayer, GraphormerModel
from sepnorm.domains.molecules.model import encode, encode_atoms
from sepnorm.domains.molecules.model import vectors as pooled
from sepnorm.domains.molecules.published.config import PublishedConfig

KINDS = ["zinc", "ogb"]


def model(kind="zinc", layers=3, **changes):
    """A Graphormer in evaluation mode, with weights large enough for every part of it to matter."""
    found = GraphormerModel(GraphormerConfig(features=kind, num_hidden_layers=layers, initializer_range=0.3, **changes))
    return found.eval()


def vectors(model, graphs):
    with torch.no_grad():
        return model(**collate(graphs, model.config.max_hops)).last_hidden_state


def test_the_defaults_are_graphormer_slim():
    config = GraphormerModel(GraphormerConfig()).config
    sizes = config.num_hidden_layers, config.hidden_size, config.intermediate_size, config.num_attention_heads
    assert sizes == (12, 80, 80, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_gives_what_single_molecules_give(kind):
    graphs, _ = featurise(SMILES, kind)
    net = model(kind)
    together = vectors(net, graphs)
    assert together.shape == (len(graphs), 1 + graphs.sizes.max(), 80)
    for row, graph in enumerate(graphs):
        alone = vectors(net, [graph])[0]
        assert (together[row, : len(alone)] - alone).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_numbering_the_atoms_otherwise_changes_nothing(kind):
    graphs, _ = featurise(zinc_smiles(200), kind)
    net = model(kind)
    generator = np.random.default_rng(0)
    orders = [generator.permutation(len(graph)) for graph in graphs]
    before = vectors(net, graphs)
    after = vectors(net, [renumbered(graph, order) for graph, order in zip(graphs, orders, strict=True)])
    assert (before[:, 0] - after[:, 0]).abs().max() < 1e-5
    for row, order in enumerate(orders):
        assert (after[row, 1 : 1 + len(order)] - before[row, 1 + order]).abs().max() < 1e-5


def test_writing_a_molecule_otherwise_changes_nothing():
    from rdkit import Chem

    plain = [text for text in SMILES if "@" not in text]  # the marks of chirality depend on the order of atoms
    others = [Chem.MolToSmiles(Chem.MolFromSmiles(text), doRandom=True) for text in plain]
    net = model("ogb")
    before, after = (vectors(net, featurise(texts, "ogb")[0])[:, 0] for texts in (plain, others))
    assert (before - after).abs().max() < 1e-5


def test_what_stands_in_padding_changes_nothing():
    net = model()
    batch = collate(featurise(["CCO", "c1ccccc1O"])[0])
    wanted = net(**batch).last_hidden_state
    spoilt = {key: value.clone() for key, value in batch.items()}
    spoilt["nodes"][0, 3:], spoilt["degrees"][0, 3:] = 5, 4
    spoilt["distances"][0, 3:], spoilt["distances"][0, :, 3:] = 2, 1
    spoilt["paths"][0, 3:], spoilt["paths"][0, :, 3:] = 9.0, 9.0
    found = net(**spoilt).last_hidden_state
    assert torch.equal(found[0, :4], wanted[0, :4]) and torch.equal(found[1], wanted[1])


def test_a_batch_without_padding_needs_no_mask():
    net = model()
    batch = collate(featurise(["CCO", "CCN"])[0])
    wanted = net(**batch).last_hidden_state
    assert torch.allclose(net(**(batch | {"attention_mask": None})).last_hidden_state, wanted, atol=1e-6)


def walk(distances, i, j):
    """The atoms on the only shortest path from i to j."""
    path = [i]
    while path[-1] != j:
        here = distances[path[-1]]
        path.append(next(k for k in range(len(here)) if here[k] == 1 and distances[k, j] == here[j] - 1))
    return path


@pytest.mark.parametrize(("kind", "smiles"), [("zinc", "CC(=O)CC#N"), ("ogb", "C/C=C/CC(=O)O")])
def test_the_bias_is_the_published_one_where_there_is_one_path(kind, smiles):
    """Embeddings of the bonds on the path, each times the weights of its hop, mean over hops; bonds one at a time."""
    graph = featurise([smiles], kind)[0][0]
    batch = collate([graph], max_hops=3)
    bias = model(kind, max_hops=3, max_distance=2).bias
    found = bias(batch["distances"], batch["paths"], None)[0]
    heads = found.shape[0]
    weights = bias.hop_weights.weight.view(3, heads, heads)
    codes = {
        frozenset(ends): bond for ends, bond in zip(graph.bonds.tolist(), graph.bond_features.tolist(), strict=True)
    }
    for i in range(len(graph)):
        for j in range(len(graph)):
            path = walk(batch["distances"][0], i, j)
            bonds = [codes[frozenset(step)] for step in itertools.pairwise(path)][:3]
            terms = [bias.bonds.weight[bond].sum(0) @ weights[hop] for hop, bond in enumerate(bonds)]
            edge = torch.stack(terms).mean(0) if terms else 0
            wanted = bias.distances.weight[1 + min(len(path) - 1, 2)] + edge
            assert torch.allclose(found[:, 1 + i, 1 + j], wanted, atol=1e-5)
    virtual = bias.distances.weight[-1][:, None]
    assert torch.equal(found[:, 0], virtual.expand(-1, 1 + len(graph)))
    assert torch.equal(found[:, :, 0], virtual.expand(-1, 1 + len(graph)))


def test_unreachable_atoms_have_a_bias_of_their_own():
    bias = model().bias
    batch = collate(featurise(["C.C"])[0])
    found = bias(batch["distances"], batch["paths"], None)[0]
    assert torch.equal(found[:, 1, 2], bias.distances.weight[0])
    assert torch.equal(found[:, 1, 1], bias.distances.weight[1])


def test_distances_and_degrees_beyond_the_limits_count_as_the_limit():
    net = model(max_distance=3, max_degree=2)
    assert torch.isfinite(vectors(net, featurise(["C" * 20, "CC(C)(C)C"])[0])).all()
    chain = collate(featurise(["CCCCCC"])[0])
    found = net.bias(chain["distances"], torch.zeros_like(chain["paths"]), None)[0]
    assert torch.equal(found[:, 1, 4], found[:, 1, 6]) and not torch.equal(found[:, 1, 3], found[:, 1, 4])


def test_every_parameter_learns():
    net = model("ogb").train()
    net(**collate(featurise(SMILES, "ogb")[0])).last_hidden_state[:, 0].pow(3).sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


# ---- separate norms -----------------------------------------------------------------------------------------------------


def test_the_norms_before_the_first_attention_are_degenerate_and_the_others_convert():
    report = sepnorm.convert(model(layers=2), "bn+ln", sites="all")
    assert [site.path for site in report.kept] == ["emb_layer_norm", "layers.0.attention_norm"]
    assert all("degenerate" in site.reason for site in report.kept)
    assert [site.path for site in report.converted] == [
        "layers.0.feed_forward_norm", "layers.1.attention_norm", "layers.1.feed_forward_norm", "final_norm",
    ]  # fmt: skip


def test_a_graphormer_inside_another_module_is_found():
    class Regression(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = model(layers=2)
            self.head = nn.Linear(80, 1)

        def forward(self, **batch):
            return self.head(self.encoder(**batch).last_hidden_state[:, 0])

    assert [site.path for site in sepnorm.convert(Regression(), "bn+ln", sites="final").converted] == [
        "encoder.final_norm"
    ]


def test_padding_stays_out_of_statistics_over_tokens():
    graphs, _ = featurise(["CCO", "c1ccccc1O", "CCCCCCCCCC"])
    narrow = model(layers=2, attention_probs_dropout_prob=0.0, activation_dropout_prob=0.0)
    sepnorm.convert(narrow, "bn+bn", sites="all")
    narrow.double()  # products of other sizes round otherwise
    wide = copy.deepcopy(narrow)
    batch = collate(graphs)
    padded = {
        "nodes": F.pad(batch["nodes"], (0, 0, 0, 6), value=3),
        "degrees": F.pad(batch["degrees"], (0, 6), value=2),
        "distances": F.pad(batch["distances"], (0, 6, 0, 6), value=1),
        "paths": F.pad(batch["paths"], (0, 0, 0, 6, 0, 6), value=1.0),
        "attention_mask": F.pad(batch["attention_mask"], (0, 6)),
    }
    wanted, found = (net.train()(**inputs).last_hidden_state for net, inputs in ((narrow, batch), (wide, padded)))
    assert torch.allclose(found[:, 0], wanted[:, 0], atol=1e-10)
    statistics = {key: value for key, value in narrow.state_dict().items() if "running" in key}
    assert len(statistics) == 2 * 2 * 4
    assert all(torch.allclose(wide.state_dict()[key], value, rtol=0, atol=1e-10) for key, value in statistics.items())


@pytest.mark.parametrize(("norm", "sites"), [("ln", "final"), ("bn+ln", "final"), ("bn+bn", "final"), ("bn+ln", "all")])
def test_training_on_molecules_by_their_size_changes_neither_outputs_nor_gradients(norm, sites, monkeypatch):
    graphs, _ = featurise([*SMILES, *zinc_smiles(40)])
    batch = collate(graphs)
    net = model(attention_probs_dropout_prob=0.0, activation_dropout_prob=0.0).double()
    if norm != "ln":
        sepnorm.convert(net, norm, sites=sites)
    net.train()
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(GraphormerLayer, "forward", recorded(GraphormerLayer.forward, shapes))

    def step(net):
        out = net(**batch).last_hidden_state[batch["attention_mask"] > 0]
        return [out.detach(), *torch.autograd.grad(out.sin().sum(), list(net.parameters()))]

    whole = copy.deepcopy(net)
    found = step(net)
    whole_shape = (len(graphs), 1 + int(graphs.sizes.max()), 80)
    if sites == "final":
        (rows,) = {shape[0] for shape in shapes if len(shape) == 2}
        assert len(graphs) + graphs.sizes.sum() <= rows < len(graphs) * whole_shape[1]
    else:  # where a batch meets at a norm inside, it stays together
        assert set(shapes) == {whole_shape}
    shapes.clear()
    monkeypatch.setattr(GraphormerModel, "_may_part", lambda self, padding: False)
    for one, other in zip(found, step(whole), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)
    assert set(shapes) == {whole_shape}
    for name, buffer in net.named_buffers():
        assert torch.allclose(buffer, dict(whole.named_buffers())[name])


def recorded(forward, shapes):
    def call(self, x, bias):
        shapes.append(tuple(x.shape))
        return forward(self, x, bias)

    return call


def test_a_layer_that_is_watched_sees_whole_molecules():
    graphs, _ = featurise([*SMILES, *zinc_smiles(40)])
    net = model(layers=2).train()
    seen: list[tuple[int, ...]] = []
    net.layers[1].attention.out.register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    net(**collate(graphs))
    assert seen == [(len(graphs), 1 + graphs.sizes.max(), 80)]


def test_the_bias_is_that_of_its_formula():
    graphs, _ = featurise([*SMILES, *zinc_smiles(10)])
    batch, part = collate(graphs), model(layers=1).double().bias
    padding = batch["attention_mask"] == 0
    found = part(batch["distances"], batch["paths"], padding)
    row = F.pad((batch["distances"] + 1).clamp(max=part.max_distance + 1), (1, 0, 1, 0), value=part.max_distance + 2)
    edges = F.pad(batch["paths"].double() @ part.edge_table(), (0, 0, 1, 0, 1, 0))
    wanted = (F.embedding(row, part.distances.weight) + edges).permute(0, 3, 1, 2)
    wanted = wanted.masked_fill(padding[:, None, None, :], float("-inf"))
    assert torch.allclose(found, wanted, atol=1e-12)
    parameters = list(part.parameters())
    grads = [torch.autograd.grad(bias.exp().sin().sum(), parameters) for bias in (found, wanted)]
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(*grads, strict=True))


def test_separate_norms_of_the_old_kind_change_no_output():
    net = model(layers=2)
    graphs, _ = featurise(SMILES)
    before = vectors(net, graphs)
    sepnorm.convert(net, "ln+ln", sites="all")
    assert torch.equal(vectors(net, graphs), before)


# ---- files --------------------------------------------------------------------------------------------------------------


def test_save_pretrained_and_from_pretrained_give_the_model_back(tmp_path):
    from transformers import AutoModel

    net = model("ogb", layers=2, max_hops=4)
    net.save_pretrained(tmp_path)
    graphs, _ = featurise(SMILES, "ogb")
    wanted = vectors(net, graphs)
    for loaded in (GraphormerModel.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)):
        assert type(loaded) is GraphormerModel and loaded.config.max_hops == 4
        assert torch.equal(vectors(loaded.eval(), graphs), wanted)


@pytest.mark.parametrize("norm", ["bn+ln", "bn+bn"])
def test_sepnorm_save_and_load_give_the_model_back(norm, tmp_path):
    net = model(layers=2)
    graphs, _ = featurise(SMILES)
    sepnorm.convert(net, norm, calibrate=[collate(graphs)], sites="all")
    sepnorm.save(net, tmp_path)
    loaded = sepnorm.load(tmp_path)
    assert type(loaded) is GraphormerModel
    assert torch.equal(vectors(loaded, graphs), vectors(net, graphs))


# ---- bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "hops", "changes", "words"),
    [
        ("ogb", 5, {}, "nodes has the shape"),
        ("zinc", 4, {}, "paths has the shape"),
        ("zinc", 5, {"attention_mask": torch.ones(1, 3)}, "attention_mask has the shape"),
        ("zinc", 5, {"distances": torch.ones(1, 2, 3)}, "distances has the shape"),
        ("zinc", 5, {"degrees": torch.ones(1, 1).long()}, r"degrees has the shape \(1, 3\)"),
        ("zinc", 5, {"nodes": torch.full((1, 3, 1), 29)}, "nodes holds 29, and the model takes 0 to 28: featurise"),
        ("zinc", 5, {"nodes": torch.full((1, 3, 1), -1)}, "nodes holds -1"),
        ("zinc", 5, {"degrees": torch.full((1, 3), -1)}, "degrees holds -1, and the model takes 0 or more"),
        ("zinc", 5, {"distances": torch.full((1, 3, 3), -2)}, "distances holds -2"),
    ],
)
def test_a_batch_of_another_kind_is_refused(kind, hops, changes, words):
    batch = collate(featurise(["CCO"], kind)[0], hops) | changes
    with pytest.raises(SepNormError, match=words):
        model(layers=1)(**batch)


def test_a_config_that_cannot_be_built_is_refused():
    with pytest.raises(SepNormError, match="cannot be divided among 7 heads"):
        GraphormerConfig(num_attention_heads=7)
    with pytest.raises(SepNormError, match="Did you mean 'ogb'"):
        GraphormerConfig(features="obg")


class Data(SimpleNamespace):
    """As PyG has it: its length is the number of its tensors."""

    def __len__(self):
        return len(vars(self))


def as_pyg(graphs):
    """Molecules by ``zinc``, whose only feature has the codes as categories."""
    return [
        Data(x=graph.atoms, edge_index=np.concatenate([ends, ends[:, ::-1]]).T, edge_attr=np.concatenate([codes] * 2))
        for graph in graphs
        for ends, codes in [(graph.bonds.astype(int), graph.bond_features)]
    ]


def test_graphs_of_pyg_go_in_as_they_are():
    items = as_pyg(featurise(SMILES)[0])
    net = model()
    wanted = vectors(net, featurise(SMILES)[0])
    batch = SimpleNamespace(edge_index=None, to_data_list=lambda: items)
    with torch.no_grad():
        assert torch.equal(net(items).last_hidden_state, wanted)
        assert torch.equal(net(batch).last_hidden_state, wanted)
    other = copy.deepcopy(net)
    sepnorm.convert(net, "bn+bn", calibrate=[batch])  # padding stays out of the statistics as it does with a mask
    sepnorm.convert(other, "bn+bn", calibrate=[other.collate(items)])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in net.state_dict().items())
    with pytest.raises(SepNormError, match="takes all tensors of a batch"):
        net(torch.zeros(1, 2, 1).long())


@pytest.mark.parametrize("published", [False, True])
def test_atoms_have_vectors_of_their_own(published):
    graphs, _ = featurise(SMILES, "ogb")
    sizes = {"embedding_dim": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    net = sepnorm.Graphormer(PublishedConfig(**sizes)).eval() if published else model("ogb", 2)
    found = encode_atoms(net, graphs, 3)
    assert [len(atoms) for atoms in found] == graphs.sizes.tolist()
    with torch.no_grad():
        wanted = net(**net.collate(graphs)).last_hidden_state
    for row, atoms in enumerate(found):
        assert (atoms - wanted[row, 1 : 1 + len(atoms)]).abs().max() < 1e-5


@pytest.mark.parametrize("published", [False, True])
def test_no_graphs_have_no_vectors(published):
    net = sepnorm.Graphormer(PublishedConfig(embedding_dim=64, num_hidden_layers=1)) if published else model("ogb", 1)
    assert encode(net, []).shape == (0, net.config.hidden_size) and encode_atoms(net, []) == []
    assert encode(net, featurise([])[0]).shape == (0, net.config.hidden_size)


def test_graphs_of_pyg_are_encoded_as_molecules_are():
    graphs, net = featurise(SMILES)[0], model()
    items = as_pyg(graphs)
    batch = Data(edge_index=None, to_data_list=lambda: items)
    loader = [Data(edge_index=None, to_data_list=lambda item=item: [item]) for item in items]
    for given in (items, batch, loader, iter(loader)):
        assert torch.equal(encode(net, given), encode(net, graphs))
    for found, wanted in zip(encode_atoms(net, items), encode_atoms(net, graphs), strict=True):
        assert torch.equal(found, wanted)
    assert torch.equal(pooled(net, items, ["mean"])["mean"], pooled(net, graphs, ["mean"])["mean"])


class Batch(Data):
    """As PyG has it: it can be run through, and gives its tensors by name."""

    def __iter__(self):
        return iter(vars(self).items())


def seen_by(net, data):
    """What an inspection found, as text."""
    return str(sepnorm.inspect(net, data))


@pytest.mark.parametrize("published", [False, True])
def test_all_molecules_of_a_batch_count_in_whatever_form_it_comes(published):
    graphs = list(featurise(SMILES)[0])
    sizes = {"embedding_dim": 80, "num_attention_heads": 2, "num_hidden_layers": 2, "features": "zinc"}
    net = sepnorm.Graphormer(PublishedConfig(**sizes)).eval() if published else model(layers=2)
    items = as_pyg(graphs)
    batch = Batch(edge_index=np.zeros((2, 0)), to_data_list=lambda: items)
    states = []
    for data in ([net.collate(graphs)], [graphs], [items], [batch], batch):
        assert seen_by(net, data) == seen_by(net, [net.collate(graphs)])
        other = copy.deepcopy(net)
        sepnorm.convert(other, "bn+bn", calibrate=data)
        states.append(other.state_dict())
        sepnorm.calibrate(other, data)
        states.append(other.state_dict())
    assert all(torch.equal(value, state[name]) for state in states for name, value in states[0].items())


@pytest.mark.parametrize("form", ["graphs", "items", "batch"])
def test_an_example_may_be_graphs(form):
    graphs = list(featurise(SMILES)[0])
    items = as_pyg(graphs)
    example = {"graphs": graphs, "items": items, "batch": Batch(edge_index=None, to_data_list=lambda: items)}[form]
    net, other = model(layers=2), model(layers=2)
    assert str(sepnorm.convert(net, "bn+ln", example=example)) == str(sepnorm.convert(other, "bn+ln"))
    with pytest.raises(SepNormError, match="at least two different samples"):
        sepnorm.convert(model(layers=2), "bn+ln", example=items[0])
