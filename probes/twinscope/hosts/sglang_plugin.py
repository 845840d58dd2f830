"""SGLang without code in the caller: finished requests that carry log-probs are captured.

SGLang loads the entry point `sglang.srt.plugins: twinscope` in all of its processes. With
TWINSCOPE_SGLANG=1 it registers one hook with SGLang's own registry, after the function that makes
the exporters of request metrics: one more exporter, which SGLang calls with every finished request
(`write_record`). Nothing is patched, and nothing is asked for that the client did not ask.

HTTP workers of `--tokenizer-worker-num` above 1 and the Rust server do not load plugins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from twinscope.errors import DidNotAttach
from twinscope.hosts.attach import Attachment, Host
from twinscope.hosts.collector import Collector
from twinscope.hosts.sampling import read_sampling
from twinscope.hosts.sglang import read_outputs

SGLANG = Host(
    "sglang", "TWINSCOPE_SGLANG", versions=((0, 5, 11),)
)  # 0.5.11: the first with plugins
TARGET = "sglang.srt.observability.request_metrics_exporter.create_request_metrics_exporters"
REGISTRY = "sglang.srt.plugins.hook_registry"
ARGUMENTS = (
    "model_path", "dtype", "quantization", "kv_cache_dtype", "attention_backend", "tp_size",
    "pp_size", "dp_size", "ep_size", "disable_radix_cache", "speculative_algorithm",
    "enable_deterministic_inference", "rl_on_policy_target", "enable_fp32_lm_head",
)  # fmt: skip
NAMES = {"model_path": "model", "tp_size": "tp", "pp_size": "pp", "dp_size": "dp",
         "ep_size": "ep", "speculative_algorithm": "speculative_method"}  # fmt: skip


def register() -> None:
    """What the entry point calls (entry.py)."""
    attachment = Attachment(SGLANG)
    if attachment.switch != "off":
        attachment.guard.run("register", None, lambda: _register(attachment))


def _register(attachment: Attachment) -> None:
    version = getattr(sys.modules.get("sglang"), "__version__", None)

    def install() -> None:
        registry = sys.modules.get(REGISTRY)  # it is what loads us
        if registry is None:
            raise DidNotAttach(
                f"sglang {version}: {REGISTRY} is not there; this SGLang has no plugins"
            )
        tap = Tap(attachment, version)
        registry.HookRegistry.register(TARGET, tap.add_exporter, registry.HookType.AFTER)

    attachment.attach(version, install)


@dataclass(frozen=True)
class Finished:
    """One finished request: SGLang's answer, by reference, and what was asked."""

    out: Mapping[str, Any]
    params: Mapping[str, Any]
    prompt: list[int] | None

    @property
    def tokens(self) -> int:
        """Response tokens."""
        return len(self.out["meta_info"]["output_token_logprobs"])

    @property
    def kind(self) -> Hashable:
        """Samples of one batch share the sampling, and whether prompts are known."""
        return repr(sorted(read_sampling(self.params).items())), self.prompt is None


class Tap:
    """The exporter's side of one process."""

    def __init__(self, attachment: Attachment, version: str | None) -> None:
        self._attachment = attachment
        self._version = version
        self._fingerprint: dict[str, Any] = {}
        self._collector: Collector | None = None  # None: SGLang has made no exporters here
        self.seen: dict[str, int] = {}  # finished requests: captured, or why not

    def add_exporter(self, result: Any, *args: Any, **kwargs: Any) -> Any:
        """AFTER hook: the list of exporters, with ours."""
        server_args = args[0] if args else kwargs.get("server_args")
        made = self._attachment.guard.run("engine", False, lambda: self._greet(server_args))
        return [*result, Exporter(self)] if made else result

    def _greet(self, server_args: Any) -> bool:
        probe = self._attachment.probe()
        if not probe.enabled:
            return False
        self._fingerprint = fingerprint_of(server_args, self._version)
        self._collector = Collector(
            self.deliver,
            lose=self._lose,
            guard=self._attachment.guard,
            exit_s=probe.exit_timeout_s,
        )
        self._attachment.announce(self._version, engine=self._fingerprint)
        return True

    def take(self, obj: Any, out: Mapping[str, Any]) -> None:
        """A request is over; on the thread of SGLang's event loop."""
        self._attachment.guard.run("finish", None, lambda: self._take(obj, out))

    def _take(self, obj: Any, out: Mapping[str, Any]) -> None:
        meta = out.get("meta_info", {})
        reason = meta.get("finish_reason")
        kind = reason.get("type") if isinstance(reason, Mapping) else reason
        if not meta.get("output_token_logprobs"):
            word = "no_logprobs"
        elif kind == "abort":
            word = "aborted"
        else:
            word = "captured"
        self.seen[word] = self.seen.get(word, 0) + 1
        if word == "captured" and self._collector is not None:
            params = obj.sampling_params if isinstance(obj.sampling_params, Mapping) else {}
            ids = getattr(obj, "input_ids", None) or out.get("prompt_token_ids")
            self._collector.add(Finished(out, params, ids))

    def _lose(self, sample: Any) -> None:
        self._attachment.probe().count_loss(tokens=sample.tokens, reason="buffer_full")

    def deliver(self, samples: list[Finished]) -> None:
        """One batch to the probe; on the collector's thread."""
        first = samples[0]
        prompts = None if first.prompt is None else [list(s.prompt or ()) for s in samples]
        self._attachment.probe().rollout_from(
            lambda: read_outputs(
                [sample.out for sample in samples],
                sampling=first.params,
                prompts=prompts,
                fingerprint=self._fingerprint,
            )
        )

    def drain(self, timeout: float | None = None) -> bool:
        """Hand everything finished so far to the probe; False when the time was over first."""
        return self._collector is None or self._collector.drain(timeout)


class Exporter:
    """What SGLang's manager of exporters calls."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap

    async def write_record(self, obj: Any, out_dict: Mapping[str, Any]) -> None:
        """A finished request: its parameters and its answer."""
        self._tap.take(obj, out_dict)


def fingerprint_of(server_args: Any, version: str | None) -> dict[str, Any]:
    """The engine's facts, from its resolved arguments; unknown ones are absent."""
    found = {NAMES.get(name, name): getattr(server_args, name, None) for name in ARGUMENTS}
    cached = found.pop("disable_radix_cache")
    original = os.environ.get("SGLANG_RETURN_ORIGINAL_LOGPROB", "").lower() in ("1", "true")
    found |= {
        "name": "sglang",
        "version": version,
        "prefix_caching": None if cached is None else not cached,
        "logprobs_mode": "raw_logprobs" if original else "sglang_default",
    }
    return {name: value for name, value in found.items() if value is not None}
