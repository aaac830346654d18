"""What of a batch a model is called with, in every form that loaders produce."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sepnorm.surgery.model_call import batches, run


class Seen(nn.Module):
    """Returns what it was called with."""

    def forward(self, *given: object, **named: object) -> object:
        return given or named


PAIR = torch.zeros(2, 3), torch.ones(2)
GRAPHS = [SimpleNamespace(edge_index=None), SimpleNamespace(edge_index=None)]


@pytest.mark.parametrize(
    ("batch", "wanted"),
    [
        (list(PAIR), PAIR[:1]),
        ([PAIR, torch.ones(2)], PAIR),
        ([{"a": PAIR[0]}, torch.ones(2)], {"a": PAIR[0]}),
        ([GRAPHS[0], torch.ones(2)], (GRAPHS[0],)),  # a Batch of PyG beside labels
        (GRAPHS, (GRAPHS,)),
        (GRAPHS[:1], (GRAPHS[:1],)),
        (GRAPHS[0], (GRAPHS[0],)),
    ],
)
def test_a_list_is_cut_to_its_first_item_where_items_are_inputs_and_not_where_they_are_samples(batch, wanted):
    assert run(Seen(), batch) == wanted


def test_arrays_in_a_list_are_inputs_too():
    (found,) = run(Seen(), [np.zeros((2, 3)), np.ones(2)])
    assert found.shape == (2, 3)


def test_a_data_set_of_graphs_is_cut_into_batches_though_it_has_edge_index():
    class DataSet(list):
        edge_index = None  # that of all graphs, joined

        def indices(self):
            return range(len(self))

        def get(self, index):
            return self[index]

        def __getitem__(self, index):
            return DataSet(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    assert [len(batch) for batch in batches(DataSet(range(130)))] == [64, 64, 2]


def test_one_batch_of_graphs_is_one_batch():
    class Batch(SimpleNamespace):
        def __iter__(self):
            return iter(vars(self).items())

    batch = Batch(edge_index=None)
    assert list(batches(batch)) == [batch] and list(batches([batch, batch])) == [batch, batch]
