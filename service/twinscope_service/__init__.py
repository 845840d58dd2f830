"""twinscope_service."""
