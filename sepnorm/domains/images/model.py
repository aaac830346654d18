"""The masked autoencoder: transformers' ViTMAE with the uniformity loss of U-MAE and the paper."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sepnorm.distributed import is_sharded
from sepnorm.domains.images.config import ImageConfig
from sepnorm.losses import uniformity_loss
from sepnorm.surgery.leading_tokens import give_leading_tokens
from sepnorm.training.arm_norms import give_norms


class MaskedAutoencoder(nn.Module):
    """``ViTMAEForPreTraining`` as ``mae``, with the loss of a run's config."""

    def __init__(self, config: ImageConfig) -> None:
        from transformers import ViTMAEConfig, ViTMAEForPreTraining

        super().__init__()
        self.settings = config
        torch.manual_seed(config.weights_seed)  # equal weights in every arm: the norms that convert adds are constant
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
        _initialise(self.mae)
        side = config.image_size // config.patch_size
        with torch.no_grad():  # transformers 5 leaves both at zero in a new model
            self.mae.vit.embeddings.position_embeddings.copy_(positions(config.width, side))
            self.mae.decoder.decoder_pos_embed.copy_(positions(config.decoder_width, side))
        if config.num_cls > 1:
            give_leading_tokens(self.mae.vit, config.num_cls)
        give_norms(self.mae.vit, config)

    def forward(self, pixel_values: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """The loss for ``pixel_values`` (images, channels, side, side) with ``noise`` (images, patches).

        The patches with the lowest noise are visible. Equal to the loss of ``ViTMAEForPreTraining``, computed faster:
        only visible patches are embedded, the decoder keeps tokens in the order of the noise, and its last block
        computes masked ones only.
        """
        patches = self.mae.patchify(pixel_values)
        order = noise.argsort(dim=1)
        seen = order[:, : int(patches.shape[1] * (1 - self.settings.mask_ratio))]
        latent = self._encode(patches, seen)
        predicted = self._decode(self._without_registers(latent), order)
        target = _chosen(patches, order[:, seen.shape[1] :])
        if self.settings.normalised_pixels:
            target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        reconstruction = F.mse_loss(predicted, target)
        if not self.settings.uniformity_weight:
            return {"loss": reconstruction}
        parts = []
        form = self.settings.uniformity_form
        if self.settings.uniformity_on in ("cls", "both"):
            parts.append(uniformity_loss(latent[:, 0], form))
        if self.settings.uniformity_on in ("tokens", "both"):
            parts.append(
                uniformity_loss(latent[:, self.settings.num_cls :], form, within=self.settings.uniformity_within)
            )
        term = torch.stack(parts).sum()
        return {"loss": reconstruction + self.settings.uniformity_weight * term}

    def _encode(self, patches: Tensor, seen: Tensor) -> Tensor:
        """Latent tokens (images, num_cls + seen, width), [CLS] first, of the patches ``seen`` (images, seen)."""
        vit = self.mae.vit
        embed = vit.embeddings.patch_embeddings.projection
        weight = embed.weight.permute(0, 2, 3, 1).flatten(1)  # channels last, as in a patch
        places = vit.embeddings.position_embeddings[0]
        tokens = F.linear(_chosen(patches, seen), weight, embed.bias) + places[1:][seen]
        cls = (vit.embeddings.cls_token + places[:1]).expand(len(tokens), -1, -1)
        hidden = torch.cat([cls, tokens], dim=1)
        for layer in vit.layers:
            hidden = layer(hidden)
        return vit.layernorm(hidden)

    def _decode(self, latent: Tensor, order: Tensor) -> Tensor:
        """Predicted patches (images, masked, values) in the order of the noise."""
        decoder: Any = self.mae.decoder
        places = decoder.decoder_pos_embed[0]
        count = latent.shape[1]  # [CLS] and the visible patches
        masked = decoder.mask_token + places[1:][order[:, count - 1 :]]
        start = torch.cat([places[:1].expand(len(order), -1, -1), places[1:][order[:, : count - 1]]], dim=1)
        hidden = torch.cat([decoder.decoder_embed(latent) + start, masked], dim=1)
        *layers, last = decoder.decoder_layers
        for layer in layers:
            hidden = layer(hidden)
        return decoder.decoder_pred(decoder.decoder_norm(_end_of_block(last, hidden, count)))

    def reconstruct(self, pixel_values: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Latent tokens, [CLS] first; predicted patches (images, patches, values); and a mask, 1 for masked ones."""
        seen: Any = self.mae.vit(pixel_values, noise=noise)
        logits = self.mae.decoder(self._without_registers(seen.last_hidden_state), seen.ids_restore).logits
        return seen.last_hidden_state, logits, seen.mask

    def _without_registers(self, latent: Tensor) -> Tensor:
        """[CLS] and patches, which the decoder takes."""
        leading = self.settings.num_cls
        return latent if leading == 1 else torch.cat([latent[:, :1], latent[:, leading:]], dim=1)


def _chosen(patches: Tensor, numbers: Tensor) -> Tensor:
    """Selects patches (images, patches, values) by indices (images, chosen)."""
    return patches.gather(1, numbers[:, :, None].expand(-1, -1, patches.shape[2]))


def _end_of_block(layer: Any, hidden: Tensor, start: int) -> Tensor:
    """The output of a ViTMAE layer for the tokens from ``start`` on, computed for these only."""
    if is_sharded(layer):
        return layer(hidden)[:, start:]
    attention = layer.attention
    x, rest = layer.layernorm_before(hidden), hidden[:, start:]

    def heads(rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)

    q, k, v = heads(attention.q_proj(x[:, start:])), heads(attention.k_proj(x)), heads(attention.v_proj(x))
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    rest = rest + attention.o_proj(mixed)
    return rest + layer.mlp(layer.layernorm_after(rest))


def _initialise(model: nn.Module) -> None:
    """Initialises weights as MAE does, by fan-in and fan-out. transformers' default fits only a width of 768."""
    nn.init.normal_(model.get_parameter("decoder.mask_token"), std=0.02)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight.view(module.weight.shape[0], -1))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def positions(width: int, side: int) -> Tensor:
    """Fixed position embeddings of MAE: sines and cosines of rows and columns, zeros for [CLS].

    Args:
        width: dimensions of an embedding.
        side: number of patches in a row, and of rows.

    Returns:
        Embeddings (1, 1 + side * side, width).
    """
    rates = 10_000.0 ** (-torch.arange(width // 4, dtype=torch.float64) * 4 / width)
    angles = torch.arange(side, dtype=torch.float64)[:, None] * rates  # (side, width / 4)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # of one coordinate
    columns, rows = waves.repeat(side, 1), waves.repeat_interleave(side, dim=0)
    found = torch.cat([columns, rows], dim=1)
    found = torch.nn.functional.pad(found, (0, width - found.shape[1]))
    return torch.cat([torch.zeros(1, width), found])[None].float()


def made_up_batch(config: ImageConfig, count: int) -> dict[str, Tensor]:
    """A batch of noise for ``MaskedAutoencoder``, to measure how long a step takes."""
    side = config.image_size
    return {
        "pixel_values": torch.randn(count, config.channels, side, side),
        "noise": torch.rand(count, config.patches),
    }
