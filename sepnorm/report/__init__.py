"""Reports: verdicts, tables, terminal output, and self-contained HTML pages with interactive figures."""

from sepnorm.report.page import Section, table, write_page

__all__ = ["Section", "table", "write_page"]
