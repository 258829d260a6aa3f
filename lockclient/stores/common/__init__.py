"""What stores share: lifecycle, background threads, polling instead of a watch."""
