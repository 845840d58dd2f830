"""expose."""
