from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sepnorm import SepNormError
from sepnorm.commands.app import app
from sepnorm.domains.images.config import PRESETS, ImageConfig
from sepnorm.training.configs import parse_changes, preset


def test_changes_are_read_and_applied():
    changes = parse_changes(["norm=bn+ln", "epochs=3", "flip=true", "learning_rate=1e-4", "max_steps=null"])
    assert changes == {"norm": "bn+ln", "epochs": 3, "flip": True, "learning_rate": 1e-4, "max_steps": None}
    config = PRESETS["demo"].changed(changes)
    assert (config.norm, config.epochs, config.flip) == ("bn+ln", 3, True)
    assert PRESETS["demo"].epochs != 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"widht": 64}, "unknown setting 'widht'.*Did you mean 'width'"),
        ({"norm": "bm+ln"}, "Did you mean"),
        ({"epochs": 0}, "epochs=0: Input should be greater than 0"),
        ({"epochs": "many"}, "epochs='many'"),
        ({"patch_size": 3}, "images of 8 pixels cannot be cut into patches of 3"),
        ({"mask_ratio": 0.99}, "leaves none visible"),
        ({"mask_ratio": 0}, "mask_ratio=0: Input should be greater than 0"),
        ({"heads": 5}, "width 64 cannot be divided among 5 heads"),
        ({"uniformity_on": "token"}, "uniformity_on='token'"),
        ({"batch_size": 1}, "batch_size=1"),
        (
            {"norm": "bn+mix", "statistics": "step"},
            "a mixture is fitted to one batch at a time: statistics=step is for",
        ),
        ({"norm": "Mixture", "statistics": "step"}, "statistics=step is for batch norms alone"),
    ],
)
def test_what_does_not_fit_is_refused(changes, said):
    with pytest.raises(SepNormError, match=said):
        PRESETS["demo"].changed(changes)


def test_a_dry_run_refuses_it_too():
    words = ["compare", "images", "--norms", "ln,bn+mix", "--set", "statistics=step", "--dry-run"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code and "statistics=step is for batch norms alone" in str(found.exception)


def test_a_setting_without_value_and_an_unknown_preset_are_refused():
    with pytest.raises(SepNormError, match="key=value, found 'epochs'"):
        parse_changes(["epochs"])
    with pytest.raises(SepNormError, match=r"unknown preset 'smal'.*Did you mean 'small'"):
        preset(PRESETS, "smal")


def test_arms_are_named_by_what_differs():
    config: ImageConfig = PRESETS["demo"]
    assert config.arm == "ln"
    assert config.changed({"norm": "bn+ln", "sites": "all"}).arm == "bn+ln@all"
    weighted = config.changed({"norm": "bn", "uniformity_weight": 0.01, "uniformity_on": "both"})
    assert weighted.arm == "bn@final λ=0.01 both"


def test_the_paper_preset_is_as_published():
    paper = PRESETS["paper"]
    assert (paper.width, paper.depth, paper.epochs, paper.batch_size, paper.mask_ratio) == (768, 12, 4000, 512, 0.75)


@pytest.mark.parametrize(
    ("written", "norm"), [("LN", "ln"), ("batch+layer", "bn+ln"), (" Bn + LN ", "bn+ln"), ("Batch", "bn")]
)
def test_a_norm_is_kept_as_the_paper_writes_it(written, norm):
    """Or a run of ``LN`` would be converted, and ``batch+layer`` be measured without new statistics."""
    config = PRESETS["demo"].changed({"norm": written})
    assert config.norm == norm
    assert config.uses_batch == ("bn" in norm)
    assert config.arm == PRESETS["demo"].changed({"norm": norm}).arm
