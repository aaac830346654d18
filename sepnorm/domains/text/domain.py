"""What the commands know of text."""

from __future__ import annotations

from sepnorm.domains import Domain
from sepnorm.domains.text.config import PRESETS
from sepnorm.domains.text.recipe import TextRecipe
from sepnorm.domains.text.sections import SECTIONS

DOMAIN = Domain(PRESETS, TextRecipe, "ln,bn@final,bn+ln@final", SECTIONS)
