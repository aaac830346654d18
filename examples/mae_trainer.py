"""Pretrain a masked autoencoder by transformers' Trainer with a separate norm for [CLS], then probe [CLS].

A small ViTMAE on scikit-learn's 8x8 digits; takes a few seconds. Prints which norm changed, the loss, and the accuracy
of a linear probe on the frozen [CLS]. For a comparison of norms use `sepnorm compare images`.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from transformers import Trainer, TrainingArguments, ViTMAEConfig, ViTMAEForPreTraining, set_seed

import sepnorm
from sepnorm.domains.images.model import positions


def build() -> ViTMAEForPreTraining:
    sizes = dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128)
    decoder = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    decoder = {f"decoder_{name}": value for name, value in decoder.items()}
    model = ViTMAEForPreTraining(
        ViTMAEConfig(image_size=8, patch_size=2, num_channels=1, initializer_range=0.1, **sizes, **decoder)
    )
    # transformers leaves the positions of a new ViTMAE at zero, so that patches would have no place
    model.vit.embeddings.position_embeddings.data.copy_(positions(64, side=4))
    model.decoder.decoder_pos_embed.data.copy_(positions(32, side=4))
    return model


@torch.no_grad()
def cls_of(model: ViTMAEForPreTraining, images: torch.Tensor) -> torch.Tensor:
    model.eval()
    return model.vit(pixel_values=images).last_hidden_state[:, 0]


def main() -> None:
    set_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1  # (1797, 1, 8, 8)
    model = build()
    print(sepnorm.convert(model.vit, "bn+bn", sites="final"), "\n")  # before the Trainer gets the model

    settings = TrainingArguments(
        "mae", num_train_epochs=10, per_device_train_batch_size=128, learning_rate=2e-3, weight_decay=0.05, warmup_steps=20,
        dataloader_drop_last=True, logging_steps=30, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    Trainer(model, settings, train_dataset=[{"pixel_values": image} for image in images[:1297]]).train()

    # Training saw a quarter of each image, the probe sees all of it: measure the batch statistics again.
    model.vit.config.mask_ratio = 0.0  # not model.config: convert gives the encoder a config of its own
    sepnorm.calibrate(model.vit, images[:1297].split(128))
    train, test = cls_of(model, images[:1297]), cls_of(model, images[1297:])
    probe = LogisticRegression(max_iter=1000).fit(train, digits.target[:1297])
    print(f"linear probe on [CLS]: {probe.score(test, digits.target[1297:]):.3f}")


if __name__ == "__main__":
    main()
