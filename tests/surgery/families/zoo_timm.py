"""Tiny models of timm, by architecture and by class; ``timm_folder.py`` says where timm comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SMALL: dict[str, Any] = dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4, num_classes=5)


def timm_zoo(timm: Any) -> dict[str, Callable[[], Any]]:
    from timm.models.beit import Beit
    from timm.models.crossvit import CrossVit
    from timm.models.eva import Eva
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.volo import VOLO
    from timm.models.xcit import Xcit

    def named(name: str, **changes: Any) -> Callable[[], Any]:
        options = {key: value for key, value in (SMALL | changes).items() if value is not None}
        return lambda: timm.create_model(name, pretrained=False, **options)

    def naflex(**changes: Any) -> Callable[[], Any]:
        settings = dict(patch_size=8, embed_dim=32, depth=2, num_heads=4, **changes)
        return lambda: NaFlexVit(NaFlexVitCfg(**settings), img_size=32, num_classes=5)

    def mvit() -> Any:
        settings = MultiScaleVitCfg(depths=(1, 1), embed_dim=16, num_heads=2, use_cls_token=True)
        model = MultiScaleVit(settings, img_size=32, num_classes=5)
        model.pretrained_cfg = dict(input_size=(3, 32, 32))  # it says nowhere else for which size it was built
        return model

    eva = dict(SMALL, num_heads=2)
    return {
        "ViT": named("vit_tiny_patch16_224"),
        "ViT, mean": named("vit_tiny_patch16_224", global_pool="avg"),
        "ViT, mean without a norm of it": named("vit_tiny_patch16_224", global_pool="avg", fc_norm=False),
        "ViT, no class token": named("vit_tiny_patch16_224", global_pool="avg", class_token=False),
        "ViT, registers and no class token": named(
            "vit_tiny_patch16_224", global_pool="avg", class_token=False, reg_tokens=2
        ),
        "ViT, registers": named("vit_tiny_patch16_224", reg_tokens=2),
        "ViT of CLIP": named("vit_base_patch16_clip_224"),
        "ViT, norms of queries and keys": lambda: VisionTransformer(**SMALL, qk_norm=True),
        "ViT, post-norm branches": named("vit_relpos_base_patch16_rpn_224", class_token=True, global_pool="token"),
        "ViT, relative positions": named("vit_relpos_base_patch16_cls_224"),
        "DINOv2": named("vit_small_patch14_dinov2"),
        "DINOv3": named("vit_small_patch16_dinov3"),
        "SigLIP": named("vit_base_patch16_siglip_224"),
        "DeiT, distilled": named("deit_tiny_distilled_patch16_224"),
        "DeiT-III": named("deit3_small_patch16_224"),
        "EVA": lambda: Eva(**eva, global_pool="token"),
        "EVA-02, mean": named("eva02_tiny_patch14_224"),
        "EVA-02, mean without a norm of it": lambda: Eva(**eva, global_pool="avg", use_fc_norm=False),
        "BEiT": lambda: Beit(**SMALL, global_pool="token"),
        "BEiT v2, mean": named("beitv2_base_patch16_224"),
        "CaiT": named("cait_xxs24_224"),
        "XCiT": lambda: Xcit(img_size=32, patch_size=8, embed_dim=32, depth=2, cls_attn_layers=2, num_heads=4, num_classes=5),
        "NaFlexViT": naflex(class_token=True, global_pool="token"),
        "NaFlexViT, mean": naflex(class_token=True, global_pool="avg"),
        "NaFlexViT, no class token": naflex(class_token=False, reg_tokens=2, global_pool="avg"),
        "VOLO": lambda: VOLO(
            layers=[1, 1], img_size=32, patch_size=8, num_heads=(2, 2), embed_dims=(32, 32), downsamples=(False, False),
            outlook_attention=(True, False), stem_hidden_dim=8, num_classes=5,
        ),
        "CrossViT": lambda: CrossVit(
            img_size=32, img_scale=(1.0, 1.0), patch_size=(8, 16), embed_dim=(16, 32), depth=((1, 1, 0),),
            num_heads=(2, 2), mlp_ratio=(2, 2, 1), num_classes=5,
        ),
        "ConViT": named("convit_tiny", img_size=32, patch_size=8, local_up_to_layer=1),
        "TNT": named(
            "tnt_s_legacy_patch16_224", patch_size=16, num_heads=None, inner_dim=8, num_heads_inner=2, num_heads_outer=4
        ),
        "PiT": named("pit_ti_224", img_size=32, patch_size=None, depth=None, embed_dim=None, num_heads=None),
        "MViTv2 with a class token": mvit,
        "Swin": named(
            "swin_tiny_patch4_window7_224", patch_size=4, depth=None, embed_dim=16, num_heads=(2, 2), depths=(1, 1),
            window_size=4,
        ),
        "LeViT": named(
            "levit_128s", img_size=224, patch_size=None, depth=(1, 1, 1), embed_dim=(16, 16, 16), num_heads=(2, 2, 2)
        ),
    }  # fmt: skip
