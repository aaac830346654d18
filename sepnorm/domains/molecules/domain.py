"""What the commands know of molecules."""

from __future__ import annotations

from sepnorm.domains import Domain
from sepnorm.domains.molecules.config import PRESETS
from sepnorm.domains.molecules.pictures import draw, neighbours, predictions
from sepnorm.domains.molecules.recipe import MoleculeRecipe

DOMAIN = Domain(PRESETS, MoleculeRecipe, "ln,bn@final,bn+ln@final", [predictions, neighbours], draw)
