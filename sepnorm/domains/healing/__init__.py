"""``heal``: improves embeddings without training, by a linear map that is kept only if held-out data confirm it."""

from sepnorm.domains.healing.healing import Healing, heal
from sepnorm.domains.healing.maps import load_map

__all__ = ["Healing", "heal", "load_map"]
