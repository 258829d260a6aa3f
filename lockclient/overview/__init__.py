"""The live table of all locks, and what people see of it: columns, search, force-unlock."""
