"""The contents of the pages, computed from the table: rows, details, timeline, history."""
