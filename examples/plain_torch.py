"""Your own training loop with torch's nn.TransformerEncoder and a separate norm for [CLS].

Needs scikit-learn for the digits; each of an image's eight rows is a token. Prints which norms changed, the accuracy on
test digits, and the difference between the trained model and the frozen one, which has no batch statistics.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import sepnorm


class Classifier(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """Rows of pixels (batch, 8, 8) to scores (batch, 10)."""
        tokens = self.embed(rows) + self.positions
        hidden = self.encoder(torch.cat([self.cls.expand(len(rows), -1, -1), tokens], dim=1))
        return self.head(hidden[:, 0])


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    rows, labels = torch.tensor(digits.images, dtype=torch.float32) / 8 - 1, torch.tensor(digits.target)
    train, test = slice(0, 1297), slice(1297, None)

    model = Classifier()
    print(sepnorm.convert(model, "bn+ln", sites="all", example=rows[:4]), "\n")  # before the optimiser is made
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    for epoch in range(8):
        model.train()
        for batch in torch.randperm(1297).split(64)[:-1]:  # the last batch is too small for good statistics
            loss = nn.functional.cross_entropy(model(rows[train][batch]), labels[train][batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        model.eval()
        with torch.no_grad():
            right = (model(rows[test]).argmax(1) == labels[test]).float().mean()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {right:.3f}")

    with torch.no_grad():
        before = model(rows[test])
        after = sepnorm.freeze(model)(rows[test])  # statistics folded into scale and shift, for deployment
    print(f"largest difference once frozen: {(before - after).abs().max():.1e}")


if __name__ == "__main__":
    main()
