"""The same for folders of timm, in a process of its own: timm_folder.py says why."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from harmful_folders import LOAD, TWO, Made
from harmless_folders import write
from hostile_ground import Ground, Outcomes, did_no_harm, harmless, is_of_a_link, opens, refused_without_harm
from wires import HERE, Wires, carried_out, forked, in_a_process, pixels

import sepnorm

TIMM = Path(os.environ.get("SEPNORM_TIMM") or HERE.parents[1] / ".timm").absolute()
pytestmark = pytest.mark.timeout(900)  # each opening has a limit of its own

HUB = "timm:local-dir:{}"
ELSEWHERE = ("local-dir:OUTSIDE", "hf-hub:evil/repo", "../outside", "OUTSIDE")
WRAPPER = {"model_type": "timm_wrapper", "label_names": ["a"], "num_classes": 0}
BACKBONE = {"model_type": "timm_backbone", "use_pretrained_backbone": False, "num_channels": 3}
TIMM_REFUSED: dict[str, Made] = {
    **{f"a wrapper of {name}": Made("wrapper", {"config.json": {"architecture": name}}) for name in ELSEWHERE},
    **{
        f"a model with a wrapper of {name}": Made(
            "wrapper",
            {
                "config.json": TWO
                | {"vision_config": WRAPPER | {"architecture": name}, "text_config": {"model_type": "bert"}}
            },
            gone=("config.json",),
        )
        for name in ELSEWHERE[:2]
    },
    "a model with a wrapper with weights elsewhere": Made(
        "wrapper",
        {
            "config.json": TWO
            | {
                "vision_config": WRAPPER
                | {"architecture": "vit_tiny_patch16_224", "model_args": {"checkpoint_path": "OUTSIDE/bomb.bin"}},
                "text_config": {"model_type": "bert"},
            }
        },
        gone=("config.json",),
    ),
    "a model with a backbone of timm": Made(
        "wrapper",
        {"config.json": {"model_type": "detr", "backbone_config": BACKBONE | {"backbone": "local-dir:OUTSIDE"}}},
        gone=("config.json",),
    ),
    "a wrapper with weights elsewhere": Made(
        "wrapper", {"config.json": {"model_args": {"checkpoint_path": "OUTSIDE/bomb.bin"}}}
    ),
    **{
        f"a saved {name}": Made("saved", {"sepnorm.json": {"build": {"architecture": name}}}, calls=LOAD)
        for name in ELSEWHERE
    },
    **{f"a folder of {name}": Made("hub", {"config.json": {"architecture": name}}, target=HUB) for name in ELSEWHERE},
    "a pickle in place of weights": Made("hub", {}, ("pytorch_model.bin",), ("model.safetensors",), target=HUB),
    "a pickle by another name": Made("hub", {}, ("anything.pth",), ("model.safetensors",), target=HUB),
    "weights elsewhere by an argument": Made(
        "hub", {"config.json": {"model_args": {"checkpoint_path": "OUTSIDE/bomb.bin"}}}, target=HUB
    ),
    "ten million layers": Made("hub", {"config.json": {"model_args": {"depth": 10**7}}}, target=HUB),
    "a width of a million": Made("hub", {"config.json": {"model_args": {"embed_dim": 10**6}}}, target=HUB),
    "a milliard of classes, saved": Made("saved", {"sepnorm.json": {"build": {"num_classes": 10**9}}}, calls=LOAD),
    "large images, saved": Made("saved", {"sepnorm.json": {"build": {"img_size": [40_000, 40_000]}}}, calls=LOAD),
}
TIMM_LINKS: dict[str, Made] = {
    "a link in place of weights": Made("hub", links={"model.safetensors": "OUTSIDE/model.safetensors"}, target=HUB),
    "a link in place of the config": Made("hub", links={"config.json": "OUTSIDE/config.json"}, target=HUB),
}
TIMM_EITHER: dict[str, Made] = {
    "weights from the network": Made(
        "hub",
        {
            "config.json": {
                "pretrained_cfg": {"url": "http://evil.invalid/x.pth", "hf_hub_id": "evil/repo", "custom_load": True}
            }
        },
        target=HUB,
    ),
    "weights from a file": Made(
        "hub", {"config.json": {"pretrained_cfg": {"file": "OUTSIDE/bomb.bin", "source": "file"}}}, target=HUB
    ),
}
TIMM_GOOD: dict[str, Made] = {
    "a folder for the hub": Made("hub", target=HUB),
    "a folder for the hub, with a pickle beside": Made("hub", {}, ("pytorch_model.bin",), target=HUB),
    "a saved one": Made("saved", calls=LOAD),
}
needs_timm = pytest.mark.skipif(not (TIMM / "timm").is_dir(), reason=f"timm is tested from {TIMM}, which has none")


class TimmGround(Ground):
    def _bases(self, folder: Path) -> dict[str, np.ndarray]:
        import timm
        from safetensors.torch import save_file
        from timm.models import save_for_hf
        from timm_folder import SMALL

        torch.manual_seed(0)
        small = timm.create_model("vit_tiny_patch16_224", **SMALL).eval()
        save_for_hf(small, str(folder / "hub"), model_args=SMALL, safe_serialization=True)
        config = {"model_type": "timm_wrapper", "architecture": "vit_tiny_patch16_224", "label_names": ["a"]}
        given = {key: value for key, value in SMALL.items() if key != "num_classes"}
        write(folder / "wrapper/config.json", config | {"num_classes": 0, "model_args": given})
        tensors = {f"timm_model.{key}": tensor for key, tensor in small.state_dict().items() if "head." not in key}
        save_file(tensors, folder / "wrapper/model.safetensors", metadata={"format": "pt"})
        whole = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5).eval()
        sepnorm.convert(whole, "bn+ln", sites="all")
        sepnorm.save(whole, folder / "saved")
        with torch.no_grad():
            found = {
                "hub": small.forward_features(pixels(3, 32, 32)),
                "saved": whole.forward_features(pixels(3, 32, 32)),
            }
        return {name: hidden[:, 0].numpy() for name, hidden in found.items()}

    def _furnish(self, bases: Path) -> None:
        shutil.copytree(bases / "hub", self.outside)


def report_on_timm(folder: str) -> None:
    """Makes the folders too, since that takes timm."""
    ground = TimmGround(Path(folder))
    kinds = {"refused": TIMM_REFUSED, "links": TIMM_LINKS, "either": TIMM_EITHER, "good": TIMM_GOOD}
    for kind, folders in kinds.items():
        for title, made in folders.items():
            ground.ask(kind, title, made)
    print(json.dumps({name: vectors.tolist() for name, vectors in ground.expected.items()}))
    wires = Wires(folder)
    warm = {"call": "open", "words": [f"{folder}/bases/wrapper"], "folder": folder, "offline": False}
    carried_out(warm, wires)  # for what is imported
    for (kind, title, _), job in zip(ground.made, ground.jobs, strict=True):
        print(json.dumps([kind, title, job, forked(job, wires, ground.folder)]), flush=True)


@pytest.fixture(scope="module")
def done_timm(tmp_path_factory) -> tuple[dict[str, np.ndarray], Outcomes]:
    folder = tmp_path_factory.mktemp("timm").resolve()
    for name in ("scratch", "home"):
        (folder / name).mkdir()
    before = f"sys.path.append({str(HERE.parent / 'surgery/families')!r})\n"
    before += f"import timm_folder; timm_folder.import_timm({str(TIMM)!r})"
    first, *lines = in_a_process(
        folder, f"report_on_timm({str(folder)!r})", before=before, module="test_hostile_timm"
    ).splitlines()
    found: Outcomes = {}
    for kind, title, job, result in map(json.loads, lines):
        found.setdefault((kind, title), []).append((job, result))
    return {name: np.array(vectors, dtype=np.float32) for name, vectors in json.loads(first).items()}, found


@needs_timm
@pytest.mark.parametrize("title", TIMM_REFUSED)
def test_a_harmful_folder_of_timm_is_refused_and_does_nothing(done_timm, title):
    refused_without_harm(done_timm[1]["refused", title])


@needs_timm
@pytest.mark.parametrize("title", TIMM_LINKS)
def test_a_link_to_a_file_of_timm_is_that_file_and_does_nothing_else(done_timm, title):
    for job, result in done_timm[1]["links", title]:
        did_no_harm(job, result | {"told": [event for event in result["told"] if not is_of_a_link(event)]})


@needs_timm
@pytest.mark.parametrize("title", TIMM_EITHER)
def test_a_harmful_setting_of_timm_is_refused_or_left_out(done_timm, title):
    harmless(done_timm[1]["either", title], done_timm[0][TIMM_EITHER[title].base])


@needs_timm
@pytest.mark.parametrize("title", TIMM_GOOD)
def test_a_good_folder_of_timm_opens_and_gives_what_it_gave_before(done_timm, title):
    opens(done_timm[1]["good", title], done_timm[0][TIMM_GOOD[title].base])
