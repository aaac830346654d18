"""All studies, and the comparisons that each needs at each scale. Parts of the same name share their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sepnorm.errors import SepNormError, nearest
from sepnorm.studies.parts import SCALES, Part, Study

SIX = ("ln", "bn@final", "ln+ln@final", "ln+bn@final", "bn+ln@final", "bn+bn@final")
# shared layer norm, shared batch norm, and SepNorm as in the paper's first table
_IMAGES = ("ln", "bn@final", "bn+bn@final")
_SPREAD = ("ln", "bn@final", "bn+ln@final", "bn+bn@final")
_MIXED = ("ln", "bn@final", "bn+bn@final", "bn+mix@final", "ln+mix@final", "mix@final")
_OTHERS = ("ln", "bn@final", "bn+ln@final")


def _digits(norms: tuple[str, ...] = _IMAGES, **options: Any) -> Part:
    return Part("digits", "images", "demo", norms, 900, changes={"epochs": 40}, **options)


def _cifar(norms: tuple[str, ...] = _IMAGES, **options: Any) -> Part:
    return Part("cifar10", "images", "small", norms, 10_000, **options)


def _published(name: str, samples: int, norms: tuple[str, ...] = _IMAGES, **options: Any) -> Part:
    return Part(name, "images", "paper", norms, samples, changes={"data": name}, **options)


def _images(norms: tuple[str, ...], paper: tuple[Part, ...], **options: Any) -> dict[str, tuple[Part, ...]]:
    return {"demo": (_digits(norms, **options),), "small": (_cifar(norms, **options),), "paper": paper}


def _sentences(name: str, preset: str, samples: int) -> Part:
    return Part(name, "text", preset, _OTHERS, samples, seeds=1, changes={"on": "sts,transfer"})


def _small(norms: tuple[str, ...]) -> dict[str, tuple[Part, ...]]:
    return _images(norms, (_published("stl10", 5000, norms, seeds=1),))


def _each(key: str, name: str, values: Mapping[str, tuple[float, ...]]) -> dict[str, tuple[Part, ...]]:
    """A part for each value of a setting; the preset's value shares its runs with other studies."""
    found: dict[str, tuple[Part, ...]] = {}
    for scale, parts in _images(("ln", "bn+bn@final"), (_published("stl10", 5000, seeds=1),)).items():
        usual = {"demo": 64, "small": 128, "paper": 512}[scale]
        default = {"batch_size": usual, "momentum": 0.1, "num_cls": 1}[key]
        norms = ("ln", "bn+bn@final") if key == "batch_size" else ("bn+bn@final",)
        found[scale] = tuple(
            replace(
                parts[0],
                name=f"{name} {value:g}",
                norms=("ln", "bn+bn@final") if value == default else norms,
                changes={**parts[0].changes, key: value},
                shared=parts[0].name if value == default else "",
            )
            for value in values[scale]
        )
    return found


def _on_the_way(part: Part) -> Part:
    """A part whose runs are probed during training, under its own name; shorter on CIFAR-10, as probing takes time."""
    changes = {"monitor": 8, "probes": True} | ({"epochs": 8} if part.name == "cifar10" else {})
    return replace(part, name=f"{part.name}-steps", norms=_MIXED, changes={**part.changes, **changes})


def _varied(part: Part) -> tuple[Part, ...]:
    """A part three times: the seed changes all, the initial weights only, or the order only."""
    ways = {"all": "weights and order", "weights": "weights alone", "order": "order alone"}
    return tuple(
        replace(
            part,
            name=name,
            changes={**part.changes, "varies": varies},
            shared=part.name if varies == "all" else f"{part.name}, {name}",
        )
        for varies, name in ways.items()
    )


def _with_text(norms: tuple[str, ...]) -> dict[str, tuple[Part, ...]]:
    found = _small(norms)
    return found | {"demo": (*found["demo"], _LEE)}


_LEE = Part("lee", "text", "demo", _OTHERS, 500)
_NCI = Part("nci", "molecules", "demo", _OTHERS, 3000)
_UNLABELLED = Part("nci, unlabelled", "molecules", "demo", _OTHERS, 3000, changes={"task": "pretrain"})
_FLOWERS = Part(
    "flowers", "images", "small", _SPREAD, 1020, changes={"data": "flowers", "image_size": 64, "patch_size": 8}
)
_STSB = Part("stsb", "text", "small", _OTHERS, 20_000, changes={"on": "stsb"})
# Molecules of ZINC without properties, then tables to probe: --data moleculenet=FILE --data moleculenet.test=FOLDER
_MOLECULENET = Part(
    "moleculenet",
    "molecules",
    "demo",
    _OTHERS,
    50_000,
    changes={
        "data": "zinc",
        "task": "pretrain",
        "contrastive_weight": 0.1,
        "molecules": 62_500,
        "train_molecules": 50_000,
        "split": "random",
        "max_atoms": 128,
        "epochs": 2,
        "learning_rate": 1e-3,
    },
)
_SWEEP = {"lambdas": "0,0.01,0.1,1", "targets": "tokens,cls,both", "seeds": 1}
_STL10 = _published("stl10", 5000, SIX, seeds=1)
_PAPER_SWEEP = (_published("stl10", 5000, SIX, **_SWEEP),)

STUDIES = {
    "table1": Study(
        "Table 1: linear probes of masked autoencoders",
        "image_table",
        _images(
            _IMAGES,
            (
                _published("stl10", 5000, seeds=1),
                _published("aircraft", 3334, seeds=1),
                _published("svhn", 73_257, seeds=1),
                _published("flowers", 1020, seeds=1),
            ),
        ),
    ),
    "table2": Study(
        "Table 2: uniformity of [CLS] and of tokens",
        "uniformity_table",
        _images(SIX, (_STL10, _published("aircraft", 3334, SIX, seeds=1))),
    ),
    "table3": Study(
        "Table 3: sentence embeddings",
        "text_table",
        {
            "demo": (_LEE,),
            "small": (Part("wikipedia", "text", "small", _OTHERS, 20_000),),
            "paper": (
                _sentences("BERT, unsupervised", "paper", 1_000_000),
                _sentences("RoBERTa, unsupervised", "paper-roberta", 1_000_000),
                _sentences("BERT, supervised", "paper-supervised", 275_601),
                _sentences("RoBERTa, supervised", "paper-roberta-supervised", 275_601),
            ),
        },
    ),
    "table4": Study(
        "Table 4: properties of molecules",
        "molecule_table",
        {
            "demo": (_NCI,),
            "small": (
                Part(
                    "zinc12k",
                    "molecules",
                    "slim",
                    ("ln", "bn+ln@final"),
                    10_000,
                    seeds=2,
                    changes={
                        "data": "zinc12k",
                        "epochs": 20,
                        "learning_rate": 2e-3,
                        "warmup": 0.05,
                        "schedule": "cosine",
                        "attention_dropout": 0,
                        "activation_dropout": 0,
                    },
                ),
            ),
            "paper": (
                Part("zinc", "molecules", "slim", _OTHERS, 220_011, seeds=1),
                Part("zinc12k", "molecules", "slim", _OTHERS, 10_000, seeds=1, changes={"data": "zinc12k"}),
                Part("molhiv", "molecules", "base", _OTHERS, 32_901, seeds=1),
            ),
        },
    ),
    "figure2": Study("Figure 2: components of [CLS] and of tokens", "feature_figures", _images(_SPREAD, (_STL10,))),
    "figure3": Study("Figure 3: maps of [CLS]", "map_figures", _images(_SPREAD, (_STL10,))),
    "figure4": Study(
        "Figure 4: loss of training, and singular values of [CLS] and tokens",
        "loss_figures",
        _images(_SPREAD, (_STL10,)),
    ),
    "figure5": Study("Figure 5: accuracy against lambda", "lambda_figures", _images(SIX, _PAPER_SWEEP, **_SWEEP)),
    "figure6": Study(
        "Figure 6: uniformity against lambda, and accuracy against uniformity",
        "uniformity_figures",
        _images(SIX, _PAPER_SWEEP, **_SWEEP),
    ),
    "seeds": Study(
        "What differs from seed to seed: first weights, order and masks, or the test images",
        "seed_tables",
        {
            "demo": _varied(Part("short runs on digits", "images", "demo", ("ln", "bn+bn@final"), 900, seeds=6)),
            "small": _varied(_cifar(seeds=8)),
            "paper": _varied(_published("stl10", 5000, seeds=8)),
        },
        ours=True,
    ),
    "sites": Study(
        "Which norms: all, those in the blocks, the last one, or degenerate ones too",
        "part_tables",
        _small(("ln", "bn+bn@final", "bn+bn@blocks", "bn+bn@all", "bn+bn@degenerate", "bn+ln@final", "bn+ln@all")),
        ours=True,
    ),
    "batch-size": Study(
        "Batch size: how many samples the statistics of [CLS] are of",
        "part_tables",
        _each("batch_size", "batch", {"demo": (16, 64, 256), "small": (16, 128, 512), "paper": (64, 512, 4096)}),
        ours=True,
    ),
    "momentum": Study(
        "Momentum of running statistics",
        "merged_table",
        _each("momentum", "momentum", dict.fromkeys(SCALES, (0.1, 0.01, 0.5))),
        ours=True,
    ),
    "num-cls": Study(
        "How many leading tokens share the norm of [CLS]",
        "merged_table",
        _each("num_cls", "num_cls", dict.fromkeys(SCALES, (1, 2, 4))),
        ours=True,
    ),
    "rms": Study(
        "RMSNorm instead of LayerNorm for the tokens",
        "part_tables",
        _small(("ln", "rms@final", "bn+ln@final", "bn+rms@final")),
        ours=True,
    ),
    "mixture": Study(
        "Mixture Normalisation at the last norm: accuracy, and steps to the best of bn and of bn+bn",
        "step_tables",
        {
            "demo": (_on_the_way(_digits()),),
            "small": (_on_the_way(_cifar()), _on_the_way(_FLOWERS)),
            "paper": (_on_the_way(_published("stl10", 5000, seeds=1)),),
        },
        ours=True,
    ),
    "probe": Study(
        "A BatchNorm before the head of the probe, and re-estimated statistics",
        "probe_tables",
        _small(_SPREAD),
        ours=True,
    ),
    "pooling": Study(
        "[CLS], the mean of tokens, or their moments",
        "pooling_tables",
        {
            "demo": (_digits(_SPREAD), _LEE, _UNLABELLED),
            "small": (_cifar(_SPREAD), _FLOWERS, _STSB, _MOLECULENET),
            "paper": (_published("stl10", 5000, _SPREAD, seeds=1),),
        },
        ours=True,
    ),
    "whitening": Study(
        "Centring and whitening afterwards, which need no training", "whitening_tables", _with_text(_SPREAD), ours=True
    ),
    "calibration": Study(
        "How a pretrained model survives the change of norms", "calibration", dict.fromkeys(SCALES, ()), ours=True
    ),
    "tuning": Study(
        "Tuning special tokens alone, against other ways to adapt an encoder",
        "tuning",
        dict.fromkeys(SCALES, ()),
        ours=True,
        copies=("transfer",),
    ),
}


def find_study(name: str, ours: bool) -> Study:
    """The study of a name, the paper's or ours."""
    known = [each for each, study in STUDIES.items() if study.ours == ours]
    if name not in known:
        other = " It is one of our own: sepnorm study." if name in STUDIES and not ours else ""
        other = " It is the paper's: sepnorm reproduce." if name in STUDIES and ours else other
        raise SepNormError(f"unknown name {name!r}: choose from {', '.join(known)}.{other or nearest(name, known)}")
    return STUDIES[name]
