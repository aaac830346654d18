"""``heal``: better vectors without training, by a linear map that held-out data agree with."""

from sepnorm.domains.healing.healing import Healing, heal
from sepnorm.domains.healing.maps import load_map

__all__ = ["Healing", "heal", "load_map"]
