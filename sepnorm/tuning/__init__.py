"""Tunes special tokens alone: vectors added at [CLS], [SEP] and the like, or the norms of [CLS].

Start with ``sepnorm.tune_special``. The functions here save, load, merge and remove what it adds.
"""

from sepnorm.tuning.merging import merge
from sepnorm.tuning.presets import PRESETS, Preset
from sepnorm.tuning.reports import TuningReport
from sepnorm.tuning.saving import load, save
from sepnorm.tuning.special_tokens import SpecialTokens
from sepnorm.tuning.tuning import remove, tune_special

__all__ = ["PRESETS", "Preset", "SpecialTokens", "TuningReport", "load", "merge", "remove", "save", "tune_special"]
