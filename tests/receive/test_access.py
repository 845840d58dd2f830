"""Tokens: one for everything, one per run, none."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from twinscope import Probe
from twinscope_service.client import Client

BINARY = "application/x-safetensors"


@pytest.fixture
def guarded(start: Callable[..., Any]) -> Any:
    """A service with a token, and a second one that opens run `mine`."""
    return start(token="secret", run_tokens={"mine": "key"})


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_without_a_token_nothing_is_open_but_liveness(guarded: Any) -> None:
    """401 with a challenge everywhere, and no word about what exists."""
    paths = list(guarded.get("/openapi.json", headers=_bearer("secret")).json()["paths"])
    assert len(paths) > 10
    for path in [*paths, "/", "/openapi.json", "/no/such/thing"]:
        answer = guarded.get(path.replace("{run}", "mine").replace("{step}", "0"))
        if path in ("/healthz", "/readyz"):
            assert answer.status_code == 200
            assert len(answer.json()) == 1
            continue
        assert answer.status_code == 401
        challenges = answer.headers.get_list("www-authenticate")
        assert challenges == ['Basic realm="twinscope"', "Bearer"]  # a browser reads one each


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer", "Basic !!", "Basic é", "secret", "Bearer sécret"]
)
def test_a_wrong_token_opens_nothing(guarded: Any, header: str) -> None:
    """Nor does a malformed one."""
    answer = guarded.get("/v1/runs", headers={"authorization": header.encode()})
    assert answer.status_code == 401
    assert "secret" not in answer.text


def test_the_token_opens_everything(guarded: Any) -> None:
    """As a bearer token, or as the password that a browser asks for."""
    basic = base64.b64encode(b"any:secret").decode()
    for header in ("Bearer secret", "bearer  secret", f"Basic {basic}"):
        assert guarded.get("/metrics", headers={"authorization": header}).status_code == 200


def test_a_token_may_be_any_text(start: Callable[..., Any], batch: Callable[..., bytes]) -> None:
    """As the probe, the client and the drill send it, and as a browser does: UTF-8."""
    token = "Schlüssel 钥匙"
    service = start(token=token)
    with Probe(service.url, run="r", token=token) as probe:
        probe.rollout(logprobs=[[-1.0]], token_ids=[[1]])
        assert probe.flush(30)
        assert probe.stats().lost.batches == 0
    with Client(service.url, token=token) as client:
        assert client.runs()
    basic = base64.b64encode(f"any:{token}".encode()).decode()
    assert service.get("/metrics", headers={"authorization": f"Basic {basic}"}).status_code == 200


def test_a_run_token_opens_its_run_only(guarded: Any, batch: Callable[..., bytes]) -> None:
    """Reading and writing; the list shows that run alone; /metrics stays closed."""
    for run, token, status in (
        ("mine", "key", 202),
        ("other", "key", 403),
        ("other", "secret", 202),
    ):
        body = batch(q=[-1, -2], p=[-1, -2], run=run)
        headers = {"content-type": BINARY, **_bearer(token)}
        assert guarded.post("/v1/batches", content=body, headers=headers).status_code == status
    assert guarded.get("/v1/runs/mine/steps/0", headers=_bearer("key")).status_code == 200
    assert guarded.get("/v1/runs/other/steps/0", headers=_bearer("key")).status_code == 403
    assert guarded.post("/v1/runs/other/steps/0/close", headers=_bearer("key")).status_code == 403
    assert guarded.get("/metrics", headers=_bearer("key")).status_code == 403
    for token, names in (("key", ["mine"]), ("secret", ["mine", "other"])):
        runs = guarded.get("/v1/runs", headers=_bearer(token)).json()["runs"]
        assert [run["run"] for run in runs] == names


def test_a_page_of_another_site_cannot_post(guarded: Any) -> None:
    """A browser sends the origin of the page; programs send none."""
    path, headers = "/v1/runs/mine/steps/0/close", _bearer("secret")
    foreign = {**headers, "origin": "https://example.org"}
    assert guarded.post(path, headers=foreign).status_code == 403
    own = {**headers, "origin": guarded.url}
    assert guarded.post(path, headers=own).status_code == 404
