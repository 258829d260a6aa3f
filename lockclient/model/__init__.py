"""A lock as values: holder, ticket, removal record, stamps. No I/O."""
