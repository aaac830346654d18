"""What the commands know of images."""

from __future__ import annotations

from sepnorm.domains import Domain
from sepnorm.images.config import PRESETS
from sepnorm.images.pictures import reconstructions
from sepnorm.images.recipe import ImageRecipe

DOMAIN = Domain(PRESETS, ImageRecipe, "ln,bn@final,bn+bn@final", [reconstructions])
