"""Compare norms in your own training loop, on matched seeds. Prints the verdict on each arm and writes a page."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import ViTConfig, ViTModel

import sepnorm


def digits():
    """Images (1797, 1, 8, 8) and labels of scikit-learn's digits."""
    found = load_digits()
    return torch.tensor(found.images[:, None] / 16, dtype=torch.float32), torch.tensor(found.target)


def run(arm, seed, folder):
    images, labels = digits()
    shape = dict(image_size=8, patch_size=2, num_channels=1, hidden_size=32, intermediate_size=64)
    model = ViTModel(ViTConfig(**shape, num_hidden_layers=2, num_attention_heads=2))
    arm.apply(model)
    head = nn.Linear(32, 10)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=3e-3)
    for rows in torch.randperm(1500)[:960].split(64):
        loss = nn.functional.cross_entropy(head(model(images[rows]).last_hidden_state[:, 0]), labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        guesses = head(model(images[1500:]).last_hidden_state[:, 0]).argmax(1)
    return {"accuracy": (guesses == labels[1500:]).float().mean().item()}


if __name__ == "__main__":
    found = sepnorm.compare(run, ["ln", "bn+ln@final"], seeds=4, out="runs/own", metrics={"accuracy": True})
    for name, decision in found.decisions().items():
        print(f"{name} minus ln: {decision} ({decision.verdict})")
    print("Page: runs/own/report.html")
