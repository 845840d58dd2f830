"""receive."""
