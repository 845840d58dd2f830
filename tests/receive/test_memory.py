"""Large bodies from several clients at once: all arrive, and memory follows the bytes in flight."""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from service_process import ServiceProcess, running_service

from twinscope import wire
from twinscope_service.memory import LARGE_BODY, give_back_after

CLIENTS, ROUNDS = 4, 2
BODY_BYTES = 64 << 20
ALLOWANCE = 300 << 20  # interpreter, libraries, compiled kernels


def _body(client: int, round_: int) -> bytes:
    """A paired batch of 64 MB: 256 samples, Δ = -0.125 on every token."""
    samples = 256
    length = BODY_BYTES // (samples * 12)
    tokens = samples * length
    q = np.full(tokens, -1.0, np.float32)
    tensors = {
        "offsets": np.arange(samples + 1) * length,
        "token_ids": np.zeros(tokens, np.int32),
        "rollout_logprobs": q,
        "train_logprobs": q - np.float32(0.125),
    }
    ids = [f"{client}-{round_}-{s}" for s in range(samples)]
    header = {"run": f"client-{client}", "step": round_, "sample_ids": ids}
    return b"".join(wire.encode(header, {name: (a, a.shape) for name, a in tensors.items()}))


def _post(service: ServiceProcess, body: bytes) -> dict[str, int]:
    address = urlsplit(service.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    headers = {"Content-Type": "application/x-safetensors"}
    connection.request("POST", "/v1/batches", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 202, text
    receipt: dict[str, int] = json.loads(text)
    return receipt


def _peak_bytes(service: ServiceProcess) -> int:
    """VmHWM of the service's process: the most memory it ever had resident."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def test_four_clients_with_64_megabytes_each(tmp_path: Path) -> None:
    """Peak memory stays below 2.5 times the bytes in flight plus 300 MB; nothing is lost."""
    receipts: list[dict[str, int]] = []
    with running_service(tmp_path, settings={"TWINSCOPE_ENGINE": "cpu"}) as service:

        def send_all(client: int) -> None:
            receipts.extend(_post(service, _body(client, round_)) for round_ in range(ROUNDS))

        threads = [threading.Thread(target=send_all, args=(c,)) for c in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        peak = _peak_bytes(service)
        assert [receipt["joined"] for receipt in receipts] == [256] * CLIENTS * ROUNDS
        for client in range(CLIENTS):
            steps = service.get(f"/v1/runs/client-{client}/steps")["steps"]
            assert [step["samples"] for step in steps] == [256] * ROUNDS
    assert peak <= 2.5 * CLIENTS * BODY_BYTES + ALLOWANCE, f"{peak >> 20} MiB"


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_a_large_body_leaves_in_the_middle_of_a_heap_is_given_back() -> None:
    """Objects of a worker thread are freed between those that stay."""
    kept: list[bytes] = []

    def work() -> None:
        made = [bytes(1000) for _ in range(200_000)]
        kept.extend(made[::1000])

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
        before = _resident_bytes()
        assert not give_back_after(LARGE_BODY - 1)
        assert give_back_after(LARGE_BODY)
        assert _resident_bytes() < before - (50 << 20)
    assert len(kept) == 200
