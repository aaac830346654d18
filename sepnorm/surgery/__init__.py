"""Surgery on models that exist: finding norms, converting and reverting, statistics from data, saving, loading and opening."""

from sepnorm.surgery.conversion import ConversionReport, SiteReport, convert, revert

__all__ = ["ConversionReport", "SiteReport", "convert", "revert"]
