"""Surgery on models that exist: finding norms, converting and reverting, statistics from data, saving, loading and opening."""

from sepnorm.surgery.conversion import convert, revert
from sepnorm.surgery.reports import ConversionReport, SiteReport

__all__ = ["ConversionReport", "SiteReport", "convert", "revert"]
