"""The RTL suite: `make test-rtl` at the root."""
