"""What the commands know of images."""

from __future__ import annotations

from sepnorm.domains import Domain
from sepnorm.domains.images.config import PRESETS
from sepnorm.domains.images.pictures import reconstructions
from sepnorm.domains.images.recipe import ImageRecipe

DOMAIN = Domain(PRESETS, ImageRecipe, "ln,bn@final,bn+bn@final", [reconstructions])
