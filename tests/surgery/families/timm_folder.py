"""Runs sepnorm on timm's models and prints what was observed, one JSON object a line; ``test_timm.py`` judges it.

This is a process of its own because timm needs torchvision. Once that can be imported, transformers uses it too, and where
its compiled part does not fit the build of torch, both break. So the two live in a folder that only this process sees.

    python tests/families/timm_folder.py FOLDER [CASE ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import sepnorm

Build = Callable[[], nn.Module]
SMALL: dict[str, Any] = dict(img_size=32, patch_size=8, depth=2, embed_dim=32, num_heads=4, num_classes=5)
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[Any] = []  # a torch.library.Library takes its operators with it when it goes


def import_timm(folder: str) -> Any:
    """timm from ``folder``, behind everything that is installed, whether or not torchvision's compiled part loads."""
    sys.path.append(folder)
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        # Without its compiled part torchvision trips over two operators that it declares shape rules for. timm's models
        # call neither, so a name and a signature for each are all that is missing.
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define(f"nms{SCHEMA}")
        library.define(f"qnms{SCHEMA}")
        _kept.append(library)
    import timm

    return timm


def images(model: Any, count: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, *model.patch_embed.img_size, generator=generator)


def seeded(build: Build, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build()


def output(model: nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model.eval()(images(model))
    return result


def separate(model: nn.Module) -> dict[str, Any]:
    return {path: module for path, module in model.named_modules() if isinstance(module, sepnorm.SepNorm)}


def used(build: Build) -> nn.Module:
    """A converted model whose running statistics are no longer those that it started with."""
    model = seeded(build)
    sepnorm.convert(model, "bn+ln", sites="all")
    model.train()(images(model))
    return model.eval()


# ---- what is observed ---------------------------------------------------------------------------------------------------


def see_sites(build: Build) -> dict[str, Any]:
    model = seeded(build)
    report = sepnorm.convert(model, "bn+ln", sites="all")
    return {
        "class": type(model).__name__,
        "reasons": {site.path: site.reason for site in report.sites},
        "converted": [site.path for site in report.converted],
        "present": list(separate(model)),
    }


def see_step(build: Build) -> dict[str, Any]:
    model = seeded(build)
    sepnorm.convert(model, "bn+ln", sites="all")
    layers = separate(model)
    before = {path: {k: v.clone() for k, v in layer.state_dict().items()} for path, layer in layers.items()}
    optimizer = torch.optim.SGD(model.train().parameters(), lr=0.1)
    x = images(model)
    loss = nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 5)
    loss.backward()
    optimizer.step()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    after = {path: layer.state_dict() for path, layer in layers.items()}
    return {
        "loss": loss.item(),
        "without gradient": [name for name, grad in gradients.items() if grad is None],
        "not finite": [name for name, grad in gradients.items() if grad is not None and not grad.isfinite().all()]
        + [
            f"{path}.{key}"
            for path, state in after.items()
            for key, value in state.items()
            if not value.isfinite().all()
        ],
        "statistics at rest": [
            f"{path}.{key}"
            for path in layers
            for key in ("cls_norm.running_mean", "cls_norm.running_var", "cls_norm.num_batches_tracked")
            if torch.equal(before[path][key], after[path][key])
        ],
        "weights moved": any(
            not torch.equal(before[path]["cls_norm.bias"], after[path]["cls_norm.bias"]) for path in layers
        ),
    }


def see_calls(build: Build) -> dict[str, Any]:
    model = used(build)
    calls: Counter[str] = Counter()
    layers = separate(model)
    for path, layer in layers.items():
        layer.register_forward_hook(lambda *_, path=path: calls.update([path]))
    output(model)
    return {"sites": list(layers), "calls": dict(calls)}


def see_identity(build: Build) -> dict[str, Any]:
    model = seeded(build)
    before, keys = output(model), list(model.state_dict())
    sepnorm.convert(model, "ln+ln", sites="all")
    sites, converted = len(separate(model)), output(model)
    sepnorm.revert(model)
    return {
        "sites": sites,
        "ln+ln equal": torch.equal(before, converted),
        "reverted equal": torch.equal(before, output(model)),
        "keys equal": keys == list(model.state_dict()) and not separate(model),
    }


def see_tuned(build: Build) -> dict[str, Any]:
    model = seeded(build).requires_grad_(False)  # torch rounds otherwise for weights that are frozen
    before = output(model)
    kinds = ("cls", "register") if getattr(model, "num_reg_tokens", 0) else "cls"
    report = sepnorm.tune_special(model.requires_grad_(True), kinds)
    equal = torch.equal(before, output(model))
    with torch.no_grad():
        model.special_tokens.vectors("default").normal_()
    moved = not torch.equal(before, output(model))
    sepnorm.tuning.remove(model)
    return {
        "parameters": report.parameters,
        "head": sorted({name.split(".")[0] for name in report.head}),
        "equal": equal,
        "moved": moved,
        "removed equal": torch.equal(before, output(model.requires_grad_(False))),
    }


def see_revert(build: Build) -> dict[str, Any]:
    """Reverts a conversion that changed outputs, so that equality has something to undo."""
    model = seeded(build)
    before = output(model)
    sepnorm.convert(model, "bn+ln", sites="all")
    converted = output(model)
    sepnorm.revert(model)
    return {"changed": not torch.equal(before, converted), "reverted equal": torch.equal(before, output(model))}


def see_saved(build: Build) -> dict[str, Any]:
    model, fresh = used(build), seeded(build, seed=1)
    expected, other = output(model), output(fresh)
    with tempfile.TemporaryDirectory() as folder:
        sepnorm.save(model, folder)
        loaded = sepnorm.load(folder, model=fresh)
    return {
        "different before": not torch.equal(expected, other),
        "same object": loaded is fresh,
        "training": loaded.training,
        "equal": torch.equal(expected, output(loaded)),
    }


def see_alone(build: Build) -> dict[str, Any]:
    """Loads without a model to load into; a refusal is an outcome of its own, a model that differs is another."""
    model = used(build)
    expected = output(model)
    with tempfile.TemporaryDirectory() as folder:
        sepnorm.save(model, folder)
        try:
            loaded = sepnorm.load(folder)
        except sepnorm.SepNormError as error:
            return {"outcome": "refused", "message": str(error)}
    return {
        "outcome": "equal" if torch.equal(expected, output(loaded)) else "different",
        "class": type(loaded).__name__,
    }


def see_diagnosis(build: Build) -> dict[str, Any]:
    """A folder as timm writes it for the hub, opened by its name and run on a folder of images."""
    from pathlib import Path

    from PIL import Image
    from timm.models import save_for_hf

    from sepnorm.domains.diagnosis import diagnose

    model: Any = seeded(build)
    with tempfile.TemporaryDirectory() as scratch:
        save_for_hf(model, f"{scratch}/model", model_args=dict(SMALL, num_classes=5), safe_serialization=True)
        for i in range(12):
            folder = Path(scratch) / "images" / ("even" if i % 2 == 0 else "odd")
            folder.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((40, 36), 20 + 10 * i).save(folder / f"{i}.png")
        found = diagnose(f"timm:local-dir:{scratch}/model", f"{scratch}/images")
    degenerate = [site.path for site in found.layers.sites if site.degenerate] if found.layers else []
    return {
        "count": found.embeddings.count,
        "dim": found.embeddings.dim,
        "sites": len(found.layers.sites) if found.layers else 0,
        "degenerate": degenerate,
        "labels": sorted(set((found.points.labels if found.points else None) or [])),
    }


def see_padding(build: Build) -> dict[str, Any]:
    """By how much statistics of tokens move with what lies in padded patches, given in one piece or by name."""

    def batch(fill: float) -> dict[str, Tensor]:
        patches = torch.randn(6, 9, 8 * 8 * 3, generator=torch.Generator().manual_seed(0))
        valid = torch.ones(6, 9, dtype=torch.bool)
        valid[:3, 5:] = False
        patches[~valid] = fill
        places = torch.cartesian_prod(torch.arange(3), torch.arange(3)).expand(6, 9, 2)
        return {"patches": patches, "patch_coord": places, "patch_valid": valid}

    def statistics(fill: float, in_one: bool) -> Tensor:
        given = batch(fill)
        whole = (given,) if in_one else {"x": given.pop("patches"), **given}
        model: Any = seeded(build).eval()
        sepnorm.convert(model, "bn+bn", calibrate=[whole])
        matched = model.norm.token_norm.running_mean.clone()
        model.train()
        model(*whole) if isinstance(whole, tuple) else model(**whole)
        return torch.stack([matched, model.norm.token_norm.running_mean])

    return {
        name: float((statistics(0.0, in_one) - statistics(50.0, in_one)).abs().max())
        for name, in_one in (("in one piece", True), ("by name", False))
    }


SEEN: dict[str, Callable[[Build], dict[str, Any]]] = {
    "sites": see_sites,
    "step": see_step,
    "calls": see_calls,
    "identity": see_identity,
    "revert": see_revert,
    "saved": see_saved,
    "alone": see_alone,
    "diagnosis": see_diagnosis,
    "padding": see_padding,
    "tuned": see_tuned,
}


def cases(timm: Any) -> Iterator[tuple[str, Build, tuple[str, ...]]]:
    """Every case by name, how its model is built, and what is looked at."""
    from timm.models.cait import Cait
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.eva import Eva
    from zoo_timm import timm_zoo

    def named(architecture: str, **options: Any) -> Build:
        return lambda: timm.create_model(architecture, pretrained=False, **options)

    most = ("sites", "step", "calls", "identity", "revert", "saved")
    yield "vit", named("vit_tiny_patch16_224", **SMALL), most
    yield "deit", named("deit_tiny_distilled_patch16_224", **SMALL), most
    yield "eva", named("eva02_tiny_patch14_224", **SMALL), most
    yield "cait", named("cait_xxs24_224", **SMALL), most
    # Built by their classes, models have no pretrained_cfg: their input size has to come from elsewhere.
    yield "vit class", lambda: timm.models.VisionTransformer(**SMALL), most
    yield "deit class", lambda: VisionTransformerDistilled(**SMALL), most
    yield "eva class", lambda: Eva(global_pool="token", **SMALL), most
    yield "cait class", lambda: Cait(depth_token_only=2, **SMALL), most
    for name in ("ViT", "ViT, registers", "DeiT, distilled", "EVA"):
        yield f"tuned {name}", timm_zoo(timm)[name], ("tuned",)
    yield "naflex", timm_zoo(timm)["NaFlexViT"], ("padding",)
    yield "hub vit", named("vit_tiny_patch16_224", **SMALL), ("diagnosis",)
    # Only architectures of their registered size can be built again from their name.
    yield "whole vit", named("vit_tiny_patch16_224", img_size=32, num_classes=5), ("alone",)
    yield "whole deit", named("deit_tiny_distilled_patch16_224", img_size=32, num_classes=5), ("alone",)
    yield "whole eva", named("eva02_tiny_patch14_224", img_size=28, num_classes=5), ("alone",)
    yield "whole cait", named("cait_xxs24_224", img_size=32, num_classes=5), ("alone",)
    # Options that the name does not tell: the first shows in the tensors, the others do not.
    other = dict(img_size=32, num_classes=5)
    yield "other depth", named("vit_tiny_patch16_224", depth=2, **other), ("alone",)
    yield "other heads", named("vit_tiny_patch16_224", num_heads=4, **other), ("alone",)
    yield "other pool", named("vit_tiny_patch16_224", global_pool="avg", fc_norm=False, **other), ("alone",)


def main(folder: str, chosen: list[str]) -> None:
    torch.set_num_threads(1)
    timm = import_timm(folder)
    for case, build, looks in cases(timm):
        for look in looks if not chosen or case in chosen else ():
            try:
                seen = SEEN[look](build)
            except Exception:  # one failure must not hide what the other cases show
                seen = {"error": traceback.format_exc()}
            print(json.dumps({"case": case, "look": look, **seen}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
