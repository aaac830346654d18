"""Public data sets of the tables: where each is published, how downloads are checked, and which files are written."""
