"""Surgery on existing models: find norms, convert and revert, measure statistics, save, load and open."""

from sepnorm.surgery.conversion import convert, revert
from sepnorm.surgery.reports import ConversionReport, SiteReport

__all__ = ["ConversionReport", "SiteReport", "convert", "revert"]
