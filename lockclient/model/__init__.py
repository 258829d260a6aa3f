"""What a lock is, as values: holder, ticket, removal record, stamps. No I/O."""
