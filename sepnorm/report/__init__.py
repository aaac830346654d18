"""Pages that show results: one self-contained HTML file with interactive figures, readable on a phone and in the dark."""

from sepnorm.report.page import Section, table, write_page

__all__ = ["Section", "table", "write_page"]
