"""What the commands know of text."""

from __future__ import annotations

from sepnorm.domains import Domain
from sepnorm.text.config import PRESETS
from sepnorm.text.recipe import TextRecipe
from sepnorm.text.sections import SECTIONS

DOMAIN = Domain(PRESETS, TextRecipe, "ln,bn@final,bn+ln@final", SECTIONS)
