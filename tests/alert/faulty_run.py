"""A recorded run that goes wrong, posted to a service as a trainer would."""

from __future__ import annotations

from collections.abc import Iterator

import httpx

from twinscope.wire.codec import encode_batch
from twinscope_service import replay

BINARY = "application/x-safetensors"
HEALTHY, FAULTY = "healthy_bf16", "temperature_0.7_unrestored"


def bodies(run: str, *, healthy: int, faulty: int) -> Iterator[tuple[int, bytes]]:
    """(step, body of a paired batch) of `healthy` steps and then `faulty` ones."""
    good, bad = (replay.recording(name) for name in (HEALTHY, FAULTY))
    batches = [good] * healthy + [bad] * faulty
    for batch in replay.steps(batches, run=run, samples_per_step=24, seed=1):
        assert batch.step is not None
        yield batch.step, b"".join(bytes(piece) for piece in encode_batch(batch))


def post(url: str, run: str, *, healthy: int, faulty: int) -> None:
    """All steps, each closed after its data."""
    with httpx.Client(base_url=url, timeout=120) as client:
        for step, body in bodies(run, healthy=healthy, faulty=faulty):
            client.post(
                "/v1/batches", content=body, headers={"content-type": BINARY}
            ).raise_for_status()
            client.post(f"/v1/runs/{run}/steps/{step}/close").raise_for_status()
