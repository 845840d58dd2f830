"""`python -m twinscope_service` is `twinscope`."""

from twinscope_service.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
