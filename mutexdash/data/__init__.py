"""What the pages show, computed from the table: rows, details, timeline, history."""
