"""The entry point `verl.plugins: twinscope`: verl imports it and calls nothing.

With TWINSCOPE_VERL unset, the cost is one look into the environment.
"""

from __future__ import annotations

import os

if os.environ.get("TWINSCOPE_VERL"):
    from twinscope.hosts.verl import register

    register()
