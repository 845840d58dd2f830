"""https: a certificate that is trusted carries data, one that is not costs data, never the host."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import numpy as np
import pytest
from waiting import eventually

from twinscope import Probe
from twinscope.testing import SinkServer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, and its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    return both


@pytest.fixture
def server(certificate: Path) -> SinkServer:
    """A recording service that speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = SinkServer()
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    return server


def test_a_trusted_service_gets_everything(server: SinkServer, certificate: Path) -> None:
    """Batches of several records, on a kept connection."""
    logprobs = -np.random.default_rng(0).random((16, 20_000), np.float32)
    with server, Probe(server.url.replace("http", "https"), ca_file=certificate) as probe:
        for step in range(3):
            probe.train(step=step, logprobs=logprobs, sample_ids=range(16))
        assert probe.flush(30)
        stats = probe.stats()

    assert [batch.step for batch in server.batches()] == [0, 1, 2]
    np.testing.assert_array_equal(server.batches()[2].tensors["train_logprobs"], logprobs.ravel())
    assert stats.retries == 0


def test_an_untrusted_service_gets_nothing(server: SinkServer) -> None:
    """Not even the token: the handshake fails before anything is sent."""
    with server:
        probe = Probe(server.url.replace("http", "https"), token="secret")
        probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
        assert eventually(lambda: probe.stats().retries > 0)
        probe.close(timeout=0.2)

    assert server.posts == []
    assert "CERTIFICATE_VERIFY_FAILED" in (probe.stats().last_error or "")
    assert probe.stats().balanced
