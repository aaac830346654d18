"""Settings and presets of a masked autoencoder, with the reason beside each number."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from sepnorm.errors import SepNormError
from sepnorm.training.configs import RunConfig


class ImageConfig(RunConfig):
    """A masked autoencoder (He et al., CVPR 2022) on images of one size, and its probes."""

    data: str = "digits"  # folder of images, table, IDX files, digits (packaged), or Hugging Face dataset
    column: str | None = None  # column with the images; needed if several fit
    label: str | None = None  # column with the labels; needed if several fit
    image_size: int = Field(gt=0)  # pixels of a side; taken from your data if no preset is named
    patch_size: int = Field(gt=0)  # pixels of a side of a patch
    channels: int = Field(3, ge=1, le=4)  # 1 for grey, 3 for colour; taken from your data if no preset is named
    width: int = Field(gt=0)  # dimensions of the encoder
    depth: int = Field(gt=0)  # blocks of the encoder
    heads: int = Field(gt=0)  # attention heads of the encoder
    decoder_width: int = Field(gt=0)  # dimensions of the decoder
    decoder_depth: int = Field(gt=0)  # blocks of the decoder
    decoder_heads: int = Field(gt=0)  # attention heads of the decoder
    mask_ratio: float = Field(0.75, gt=0, lt=1)  # share of the patches that are masked
    normalised_pixels: bool = True  # predict each patch standardised to mean 0 and deviation 1
    smallest_crop: float = Field(0.2, gt=0, le=1)  # smallest area of a random crop, as share of the image; 1: no crop
    flip: bool = True  # mirror images at random
    pretrain_images: int | None = Field(None, gt=1)  # number of training images to use; null for all
    stream: int | None = Field(None, gt=1)  # read data of any size while training, this many images at a time
    workers: int = Field(1, ge=0)  # processes that read and decode a stream ahead of training; 0 for none
    probes: bool = False  # probe [CLS] on some images at every measurement of the monitor, as at the end

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.image_size % self.patch_size:
            raise SepNormError(
                f"images of {self.image_size} pixels cannot be cut into patches of {self.patch_size}: choose a patch_size that "
                "divides image_size."
            )
        for width, heads, what in (
            (self.width, self.heads, "width"),
            (self.decoder_width, self.decoder_heads, "decoder_width"),
        ):
            if width % heads:
                raise SepNormError(f"{what} {width} cannot be divided among {heads} heads.")
        if self.stream is not None and self.pretrain_images is not None:
            raise SepNormError(
                "the length of a stream is set by max_steps: leave out pretrain_images, or --set pretrain_images=null."
            )
        if int(self.patches * (1 - self.mask_ratio)) < 1:
            raise SepNormError(
                f"mask_ratio {self.mask_ratio} of {self.patches} patches leaves none visible: lower it, or use smaller patches."
            )
        return self

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        return int((self.image_size // self.patch_size) ** 2)


PRESETS = {
    # scikit-learn's 8x8 digits in 2x2 patches: 16 tokens, 4 of them visible; ten seconds a run on one core. Many short
    # runs distinguish arms better than few long ones: at 40 epochs the difference is smaller and its spread is not.
    "demo": ImageConfig(
        image_size=8,
        patch_size=2,
        channels=1,
        width=64,
        depth=4,
        heads=4,
        decoder_width=32,
        decoder_depth=2,
        decoder_heads=4,
        epochs=16,
        batch_size=64,
        learning_rate=1e-3,  # small models learn at higher rates than the published 1.5e-4 for 256 images
        smallest_crop=1.0,  # a cropped digit may look like another
        flip=False,  # a mirrored digit is no digit
        threads=1,  # more are not faster here, and two runs fit on two cores
    ),
    # 32x32 images such as CIFAR in 4x4 patches: 64 tokens, 16 of them visible; about five minutes a run on one core
    "small": ImageConfig(
        data="cifar10",
        image_size=32,
        patch_size=4,
        width=128,
        depth=4,
        heads=4,
        decoder_width=64,
        decoder_depth=1,
        decoder_heads=4,
        epochs=12,
        batch_size=128,
        learning_rate=1e-3,
        pretrain_images=10_000,
        threads=1,
    ),
    # ViT-Base as in the paper: 4000 epochs, batch size 512, 75 % masked; decoder and schedule as in MAE
    "paper": ImageConfig(
        data="stl10",
        image_size=224,
        patch_size=16,
        width=768,
        depth=12,
        heads=12,
        decoder_width=512,
        decoder_depth=8,
        decoder_heads=16,
        epochs=4000,
        batch_size=512,
        learning_rate=3e-4,  # 1.5e-4 for 256 images, twice that for 512
        warmup=0.01,
    ),
}
