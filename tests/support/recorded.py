"""What hooks of trainers send, without a network, and a batch for them to send."""

from __future__ import annotations

from typing import Any

from twinscope import Probe
from twinscope.hosts import attach
from twinscope.testing import InMemorySink


def recorded(sink: InMemorySink, closing: list[Probe]) -> type[attach.Attachment]:
    """An Attachment whose probes send to `sink`; they are added to `closing`."""

    class Recorded(attach.Attachment):
        def __init__(self, host: attach.Host, **_: Any) -> None:
            super().__init__(host, make_probe=self._make)

        def _make(self) -> Probe:
            closing.append(Probe(sink=sink))
            return closing[-1]

    return Recorded


def paired_batch() -> dict[str, Any]:
    """[2,4] responses, right-padded; the second has a tool token in the middle."""
    import torch

    generator = torch.Generator().manual_seed(1)
    q = -torch.rand(2, 4, generator=generator)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]])
    return {
        "rollout_log_probs": q * (mask != 0),
        "old_log_probs": q + 0.01 * torch.randn(2, 4, generator=generator),
        "response_mask": mask,
        "responses": torch.arange(8).view(2, 4),
        "entropy": torch.rand(2, 4, generator=generator),
    }
