"""Train a Graphormer on PyTorch Geometric graphs: Data, Batch and DataLoader work as they are.

    python pyg_loader.py

The graphs are made up: rings and chains of two kinds of atoms; the target is the share of the second kind. *Yours* are
any with categories as in ZINC (x of 28 types, edge_attr of 4), or as in OGB with features="ogb" below. Prints the error
on test graphs, and that a Batch and its Data give the same outputs.
"""

import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import sepnorm
from sepnorm.domains.molecules.graphormer import GraphormerConfig, GraphormerModel


def made_up(count: int, ring: bool) -> Data:
    """Yours: each bond is in edge_index in both directions."""
    x = torch.randint(2, (count, 1))
    ends = torch.arange(count if ring else count - 1)
    there = torch.stack([ends, (ends + 1) % count])
    edges = torch.cat([there, there.flip(0)], dim=1)
    return Data(
        x=x, edge_index=edges, edge_attr=torch.ones(edges.shape[1], 1).long(), y=x.float().mean(0, keepdim=True)
    )


def main() -> None:
    torch.manual_seed(0)
    graphs = [made_up(int(count), bool(count % 2)) for count in torch.randint(3, 15, (400,))]
    train, test = DataLoader(graphs[:320], batch_size=32, shuffle=True), DataLoader(graphs[320:], batch_size=80)

    config = GraphormerConfig("zinc", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    model, head = GraphormerModel(config), nn.Linear(32, 1)
    sepnorm.convert(model, "bn+ln")  # a separate norm for [VNode]
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(10):
        for batch in train:
            loss = (head(model(batch).last_hidden_state[:, 0]) - batch.y).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    sepnorm.calibrate(model, train)  # statistics of [VNode] over the whole loader, not just the last few steps
    model.eval()
    with torch.no_grad():
        for batch in test:
            error = (head(model(batch).last_hidden_state[:, 0]) - batch.y).abs().mean()
        several = model(Batch.from_data_list(graphs[:3])).last_hidden_state[:, 0]
        alone = torch.cat([model(graph).last_hidden_state[:, 0] for graph in graphs[:3]])
    print(f"error: {float(error):.3f}, without a model: {float((batch.y - batch.y.median()).abs().mean()):.3f}")
    print(f"a Batch and its Data give the same: {torch.allclose(several, alone, atol=1e-5)}")


if __name__ == "__main__":
    main()
