"""Tiny models of transformers, one for each class that is looked at: text, images, video and sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as T

TEXT: dict[str, Any] = dict(
    vocab_size=120,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=64,
    pad_token_id=0,
)
IMAGE: dict[str, Any] = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4
)
TOWER = dict(vision_config=dict(IMAGE), text_config=dict(TEXT))


def of(model: str, config: str, usual: dict[str, Any], **changes: Any) -> Callable[[], Any]:
    options = {key: value for key, value in (usual | changes).items() if value is not None}
    return lambda: getattr(T, model)(getattr(T, config)(**options))


def text(model: str, config: str, **changes: Any) -> Callable[[], Any]:
    return of(model, config, TEXT, **changes)


def image(model: str, config: str, **changes: Any) -> Callable[[], Any]:
    return of(model, config, IMAGE, **changes)


ZOO: dict[str, Callable[[], Any]] = {
    "BERT": text("BertModel", "BertConfig"),
    "BERT, classifier": text("BertForSequenceClassification", "BertConfig"),
    "BERT, masked words": text("BertForMaskedLM", "BertConfig"),
    "BERT, decoder": text("BertLMHeadModel", "BertConfig", is_decoder=True),
    "RoBERTa": text("RobertaModel", "RobertaConfig"),
    "RoBERTa, norm first": text("RobertaPreLayerNormModel", "RobertaPreLayerNormConfig"),
    "XLM-R": text("XLMRobertaModel", "XLMRobertaConfig"),
    "XLM-R XL": text("XLMRobertaXLModel", "XLMRobertaXLConfig"),
    "X-MOD": text("XmodModel", "XmodConfig", languages=["en_XX"], default_language="en_XX"),
    "CamemBERT": text("CamembertModel", "CamembertConfig"),
    "data2vec, text": text("Data2VecTextModel", "Data2VecTextConfig"),
    "DistilBERT": of(
        "DistilBertModel", "DistilBertConfig",
        dict(vocab_size=120, dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=64),
    ),
    "ELECTRA": text("ElectraModel", "ElectraConfig", embedding_size=16),
    "MPNet": text("MPNetModel", "MPNetConfig"),
    "DeBERTa": text("DebertaModel", "DebertaConfig"),
    "DeBERTa-v2": text(
        "DebertaV2Model", "DebertaV2Config", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
        norm_rel_ebd="layer_norm", share_att_key=True,
    ),
    "ALBERT": text("AlbertModel", "AlbertConfig", embedding_size=16),
    "ModernBERT": text("ModernBertModel", "ModernBertConfig", attn_implementation="sdpa"),
    "ModernBERT, classifier": text(
        "ModernBertForSequenceClassification", "ModernBertConfig", attn_implementation="sdpa", classifier_pooling="cls"
    ),
    "ModernBERT, classifier of the mean": text(
        "ModernBertForSequenceClassification", "ModernBertConfig", attn_implementation="sdpa", classifier_pooling="mean"
    ),
    "Nomic BERT": text("NomicBertModel", "NomicBertConfig"),
    "ConvBERT": text("ConvBertModel", "ConvBertConfig", embedding_size=32),
    "ERNIE": text("ErnieModel", "ErnieConfig"),
    "ESM-2": text("EsmModel", "EsmConfig", position_embedding_type="rotary", mask_token_id=4),
    "ESM-C": text("EsmcModel", "EsmcConfig", max_position_embeddings=None),
    "Megatron-BERT": text("MegatronBertModel", "MegatronBertConfig"),
    "RemBERT": text("RemBertModel", "RemBertConfig", input_embedding_size=16),
    "RoFormer": text("RoFormerModel", "RoFormerConfig"),
    "EuroBERT": text("EuroBertModel", "EuroBertConfig", num_key_value_heads=4),
    "EuroBERT, classifier": text("EuroBertForSequenceClassification", "EuroBertConfig", num_key_value_heads=4),
    "GTE": text("GteModel", "GteConfig"),
    "Jina embeddings v3": text("JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config"),
    "Longformer": text("LongformerModel", "LongformerConfig", attention_window=4),
    "T5": of("T5EncoderModel", "T5Config", dict(d_model=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=50)),
    "XLNet": of("XLNetModel", "XLNetConfig", dict(vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=16)),
    "GPT-2": of("GPT2Model", "GPT2Config", dict(n_embd=16, n_layer=2, n_head=2, vocab_size=50)),
    "BART": of("BartModel", "BartConfig", dict(d_model=16, encoder_layers=1, decoder_layers=1, vocab_size=50)),
    "ViT": image("ViTModel", "ViTConfig"),
    "ViT, classifier": image("ViTForImageClassification", "ViTConfig"),
    "DeiT": image("DeiTModel", "DeiTConfig"),
    "BEiT": image("BeitModel", "BeitConfig", use_mean_pooling=False),
    "BEiT, classifier of the mean": image("BeitForImageClassification", "BeitConfig", use_mean_pooling=True),
    "data2vec, images": image("Data2VecVisionModel", "Data2VecVisionConfig", use_mean_pooling=False),
    "DINOv2": image("Dinov2Model", "Dinov2Config"),
    "DINOv2, registers": image("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", num_register_tokens=3),
    "DINOv3": image("DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=2),
    "ViT-MAE": image("ViTMAEModel", "ViTMAEConfig"),
    "ViT-MAE, pretraining": image(
        "ViTMAEForPreTraining", "ViTMAEConfig", decoder_hidden_size=16, decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2, decoder_intermediate_size=24,
    ),
    "ViT-MSN": image("ViTMSNModel", "ViTMSNConfig"),
    "I-JEPA": image("IJepaModel", "IJepaConfig"),
    "YOLOS": image("YolosModel", "YolosConfig", image_size=[16, 16], num_detection_tokens=3),
    "CLIP, images": image("CLIPVisionModel", "CLIPVisionConfig"),
    "CLIP, images with projection": image("CLIPVisionModelWithProjection", "CLIPVisionConfig"),
    "CLIP, text": text("CLIPTextModel", "CLIPTextConfig"),
    "CLIP, both": lambda: T.CLIPModel(T.CLIPConfig(**TOWER)),
    "MetaCLIP 2, images": image("MetaClip2VisionModel", "MetaClip2VisionConfig"),
    "Chinese CLIP, images": image("ChineseCLIPVisionModel", "ChineseCLIPVisionConfig"),
    "BLIP, images": image("BlipVisionModel", "BlipVisionConfig"),
    "BLIP-2, images": image("Blip2VisionModel", "Blip2VisionConfig"),
    "FLAVA, images": image("FlavaImageModel", "FlavaImageConfig"),
    "MLCD": image("MLCDVisionModel", "MLCDVisionConfig"),
    "InternVL, images": image("InternVLVisionModel", "InternVLVisionConfig", image_size=[16, 16], patch_size=[4, 4]),
    "AIMv2": image("Aimv2VisionModel", "Aimv2VisionConfig"),
    "Pixio": image("PixioModel", "PixioConfig"),
    "SigLIP, images": image("SiglipVisionModel", "SiglipVisionConfig"),
    "SigLIP 2, images": image("Siglip2VisionModel", "Siglip2VisionConfig", image_size=None),
    "Swin": of(
        "SwinModel", "SwinConfig",
        dict(image_size=16, patch_size=2, embed_dim=8, depths=[1], num_heads=[2], window_size=4),
    ),
    "AST": of(
        "ASTModel", "ASTConfig",
        dict(IMAGE, image_size=None, patch_size=4, max_length=24, num_mel_bins=16, frequency_stride=4, time_stride=4),
    ),
    "ViViT": image("VivitModel", "VivitConfig", num_frames=4, tubelet_size=[2, 4, 4], patch_size=None),
    "VideoMAE": image("VideoMAEModel", "VideoMAEConfig", num_frames=4, tubelet_size=2),
    "TimeSformer": image("TimesformerModel", "TimesformerConfig", num_frames=2),
    "V-JEPA 2": image(
        "VJEPA2Model", "VJEPA2Config", image_size=None, crop_size=16, frames_per_clip=4, tubelet_size=2,
        pred_hidden_size=16, pred_num_attention_heads=2, pred_num_hidden_layers=1, pred_num_mask_tokens=1,
    ),
}  # fmt: skip
