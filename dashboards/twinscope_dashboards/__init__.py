"""twinscope_dashboards."""
