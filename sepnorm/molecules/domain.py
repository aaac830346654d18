"""What the commands know of molecules."""

from __future__ import annotations

from sepnorm.domains import Domain
from sepnorm.molecules.config import PRESETS
from sepnorm.molecules.pictures import draw, neighbours, predictions
from sepnorm.molecules.recipe import MoleculeRecipe

DOMAIN = Domain(PRESETS, MoleculeRecipe, "ln,bn@final,bn+ln@final", [predictions, neighbours], draw)
