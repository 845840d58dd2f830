"""The entry points that hosts load by themselves. Nothing is imported unless switched on.

Hosts call these in every process, workers and data loaders too: with the variable unset, the cost
is one look into the environment.
"""

from __future__ import annotations

import os


def vllm() -> None:
    """Entry point `vllm.general_plugins: twinscope`, switched on by TWINSCOPE_VLLM."""
    if os.environ.get("TWINSCOPE_VLLM"):
        from twinscope.hosts.vllm_plugin import register

        register()


def sglang() -> None:
    """Entry point `sglang.srt.plugins: twinscope`, switched on by TWINSCOPE_SGLANG."""
    if os.environ.get("TWINSCOPE_SGLANG"):
        from twinscope.hosts.sglang_plugin import register

        register()
