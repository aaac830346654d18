"""Which runs a study needs, at which scale. Parts of one name share their runs, whatever the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sepnorm.data.places import require_here
from sepnorm.domains import open_domain
from sepnorm.domains.comparison import parse_arms
from sepnorm.errors import SepNormError, nearest, require_known
from sepnorm.training.configs import RunConfig
from sepnorm.training.configs import preset as choose

SCALES = ("demo", "small", "paper")
SIX = ("ln", "bn@final", "ln+ln@final", "ln+bn@final", "bn+ln@final", "bn+bn@final")
_IMAGES = ("ln", "bn@final", "bn+bn@final")  # shared, shared by batch, and what the paper's first table has for SepNorm
_SPREAD = ("ln", "bn@final", "bn+ln@final", "bn+bn@final")
_OTHERS = ("ln", "bn@final", "bn+ln@final")


@dataclass(frozen=True)
class Part:
    """One comparison: what tables call it, and what it runs."""

    name: str
    domain: str
    preset: str
    norms: tuple[str, ...]  #: as ``--norms`` has them, the baseline first
    samples: int  #: for training, to say beforehand how long a run takes
    seeds: int = 3
    changes: Mapping[str, Any] = field(default_factory=dict)
    lambdas: str = ""
    targets: str = ""

    shared: str = ""  #: the name of a part whose runs these are too

    @property
    def folder(self) -> str:
        """Of its runs, which other parts of the same name share."""
        return f"{self.domain}-{self.shared or self.name}".replace(" ", "-").replace(",", "")


@dataclass(frozen=True)
class Study:
    """What is shown, how its page is drawn, and the parts of each scale; ``ours`` is what the paper has nothing of."""

    title: str
    draw: str  #: a function of ``drawing``
    parts: Mapping[str, tuple[Part, ...]]
    ours: bool = False


def _digits(norms: tuple[str, ...] = _IMAGES, **options: Any) -> Part:
    return Part("digits", "images", "demo", norms, 1297, changes={"epochs": 40}, **options)


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
    """A part for each value of a setting; that of the preset shares its runs with other studies."""
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


def _varied(part: Part) -> tuple[Part, ...]:
    """A part three times: seeds that change all, the first weights alone, or the order alone."""
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
            "demo": _varied(Part("short runs on digits", "images", "demo", ("ln", "bn+bn@final"), 1297, seeds=6)),
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
    "probe": Study(
        "A BatchNorm before the head of the probe, and re-estimated statistics",
        "probe_tables",
        _small(_SPREAD),
        ours=True,
    ),
    "pooling": Study("[CLS] against the mean of tokens", "pooling_tables", _with_text(_SPREAD), ours=True),
    "whitening": Study(
        "Centring and whitening afterwards, which need no training", "whitening_tables", _with_text(_SPREAD), ours=True
    ),
    "calibration": Study(
        "How a pretrained model survives the change of norms", "calibration", dict.fromkeys(SCALES, ()), ours=True
    ),
}


def find_study(name: str, ours: bool) -> Study:
    """A study by its name, of the paper or of ours."""
    known = [each for each, study in STUDIES.items() if study.ours == ours]
    if name not in known:
        other = " It is one of our own: sepnorm study." if name in STUDIES and not ours else ""
        other = " It is the paper's: sepnorm reproduce." if name in STUDIES and ours else other
        raise SepNormError(f"there is no {name!r} here: there are {', '.join(known)}.{other or nearest(name, known)}")
    return STUDIES[name]


def parse_copies(pairs: Sequence[str]) -> dict[str, str]:
    """``["cifar10=PATH"]`` by the names of parts; a path alone would not say of what it is a copy."""
    found = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals or not name or not path:
            raise SepNormError(
                f"--data of a study names a copy of some of its data, as cifar10=PATH, found {pair!r}. To compare norms on data of "
                "your own: sepnorm compare images --data PATH."
            )
        require_here(path)
        found[name.strip()] = path
    return found


def parts_of(study: Study, scale: str, data: Mapping[str, str] | None = None, seeds: int | None = None) -> list[Part]:
    """The parts at a scale, with other data for some of them by their names."""
    require_known("scale", scale, SCALES)
    parts = study.parts[scale]
    names = [part.shared or part.name for part in parts]
    for name in data or {}:
        if name not in names:
            raise SepNormError(
                f"--data names {name!r}, and there are {', '.join(dict.fromkeys(names))}.{nearest(name, names)}"
            )
    found = []
    for part, name in zip(parts, names, strict=True):
        changes = dict(part.changes) | ({"data": data[name]} if data and name in data else {})
        found.append(replace(part, changes=changes, seeds=seeds or part.seeds))
    return found


def configs_of(part: Part, given: Mapping[str, Any]) -> tuple[RunConfig, list[RunConfig]]:
    """The settings that the arms of a part have in common, and those of each arm."""
    base = choose(open_domain(part.domain).presets, part.preset).changed({**part.changes, **given})
    norms = ",".join(part.norms)
    arms = parse_arms(norms, part.lambdas, part.targets) if len(part.norms) > 1 else parse_arms(f"ln,{norms}")[1:]
    return base, [base.changed(arm) for arm in arms]


def check_parts(parts: Sequence[Part], given: Mapping[str, Any]) -> None:
    """Refuses settings that do not fit, before anything is run."""
    for part in parts:
        configs_of(part, given)
