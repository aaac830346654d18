"""The masked autoencoder: transformers' ViTMAE with the uniformity term of U-MAE and the paper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sepnorm.images.config import ImageConfig
from sepnorm.losses import uniformity_loss
from sepnorm.surgery import convert


class MaskedAutoencoder(nn.Module):
    """``ViTMAEForPreTraining`` as ``mae``, and the loss of a run's config."""

    def __init__(self, config: ImageConfig) -> None:
        from transformers import ViTMAEConfig, ViTMAEForPreTraining

        super().__init__()
        self.settings = config
        torch.manual_seed(config.seed)  # every norm starts from the same weights: those that convert adds are constants
        self.mae = ViTMAEForPreTraining(
            ViTMAEConfig(
                image_size=config.image_size,
                patch_size=config.patch_size,
                num_channels=config.channels,
                hidden_size=config.width,
                num_hidden_layers=config.depth,
                num_attention_heads=config.heads,
                intermediate_size=4 * config.width,
                decoder_hidden_size=config.decoder_width,
                decoder_num_hidden_layers=config.decoder_depth,
                decoder_num_attention_heads=config.decoder_heads,
                decoder_intermediate_size=4 * config.decoder_width,
                mask_ratio=config.mask_ratio,
                norm_pix_loss=config.normalised_pixels,
            )
        )
        side = config.image_size // config.patch_size
        with torch.no_grad():  # transformers 5 leaves both at zero in a model that is not loaded from a checkpoint
            self.mae.vit.embeddings.position_embeddings.copy_(positions(config.width, side))
            self.mae.decoder.decoder_pos_embed.copy_(positions(config.decoder_width, side))
        if config.norm != "ln":
            convert(self.mae.vit, config.norm, sites=config.sites)

    def forward(self, pixel_values: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """``pixel_values`` (images, channels, side, side), ``noise`` (images, patches): the patches of lowest noise are seen."""
        latent, logits, mask = self.reconstruct(pixel_values, noise)
        target = self.mae.patchify(pixel_values)
        if self.settings.normalised_pixels:
            target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        reconstruction = (((logits - target) ** 2).mean(-1) * mask).sum() / mask.sum().clamp(min=1)
        if not self.settings.uniformity_weight:
            return {"loss": reconstruction}
        parts = []
        form = self.settings.uniformity_form
        if self.settings.uniformity_on in ("cls", "both"):
            parts.append(uniformity_loss(latent[:, 0], form))
        if self.settings.uniformity_on in ("tokens", "both"):
            parts.append(uniformity_loss(latent[:, 1:], form, within=self.settings.uniformity_within))
        term = torch.stack(parts).sum()
        return {"loss": reconstruction + self.settings.uniformity_weight * term}

    def reconstruct(self, pixel_values: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Latent tokens with [CLS] first, predicted patches (images, patches, values), and 1 where a patch was masked."""
        seen: Any = self.mae.vit(pixel_values, noise=noise)
        logits = self.mae.decoder(seen.last_hidden_state, seen.ids_restore).logits
        return seen.last_hidden_state, logits, seen.mask


def positions(width: int, side: int) -> Tensor:
    """Sines and cosines of rows and columns (1, 1 + side * side, width), zeros for [CLS], as in MAE."""
    rates = 10_000.0 ** (-torch.arange(width // 4, dtype=torch.float64) * 4 / width)
    angles = torch.arange(side, dtype=torch.float64)[:, None] * rates  # (side, width / 4)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # of one coordinate
    columns, rows = waves.repeat(side, 1), waves.repeat_interleave(side, dim=0)
    found = torch.cat([columns, rows], dim=1)
    found = torch.nn.functional.pad(found, (0, width - found.shape[1]))
    return torch.cat([torch.zeros(1, width), found])[None].float()
