"""The JSON API: shapes, pages, evidence, gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from twinscope import wire

BINARY = "application/x-safetensors"
STEP_KEYS = {"run", "step", "state", "sides", "waiting", "tokens", "samples", "coverage"}
STEP_KEYS |= {"metrics", "verdict", "reasons", "diagnosis"}


def _paired(run: str, step: int, *, samples: int = 4, length: int = 5) -> bytes:
    """`samples` samples of `length` tokens; Δ grows with the sample."""
    total = samples * length
    q = np.full(total, -1.0, np.float32)
    p = q - np.repeat(np.arange(samples), length).astype(np.float32) / 8
    tensors = {
        "offsets": np.arange(samples + 1) * length,
        "token_ids": np.arange(total, dtype=np.int32),
        "rollout_logprobs": q,
        "train_logprobs": p,
    }
    ids = [f"{step}-{s}" for s in range(samples)]
    header = {"run": run, "step": step, "sample_ids": ids}
    return b"".join(wire.encode(header, {name: (a, a.shape) for name, a in tensors.items()}))


@pytest.fixture
def filled(start: Callable[..., Any]) -> Iterator[Any]:
    """Run `a/b` with steps 0, 1 (closed) and 2 (open); run `z` with one open step."""
    service = start()
    for run, step in (("a/b", 0), ("a/b", 1), ("a/b", 2), ("z", 7)):
        answer = service.send(_paired(run, step))
        assert answer.status_code == 202, answer.text
        assert answer.json()["joined"] == 4
    for step in (0, 1):
        service.post(f"/v1/runs/a/b/steps/{step}/close")
    return service


def test_runs_come_in_pages(filled: Any) -> None:
    """By name, with a cursor; the last closed step is in each."""
    first = filled.get("/v1/runs?limit=1").json()
    assert [run["run"] for run in first["runs"]] == ["a/b"]
    assert first["runs"][0]["last_step"] == 1
    second = filled.get(f"/v1/runs?limit=1&after={first['next']}").json()
    assert [run["run"] for run in second["runs"]] == ["z"]
    assert second["next"] is None
    assert second["runs"][0]["last_step"] is None
    assert filled.get("/v1/runs/a/b").json()["last"]["step"] == 1


def test_steps_come_in_pages(filled: Any) -> None:
    """In order of the step; following `next` visits each once."""
    seen: list[int] = []
    after = ""
    while True:
        page = filled.get(f"/v1/runs/a/b/steps?limit=2{after}").json()
        seen += [step["step"] for step in page["steps"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == sorted(set(seen))
    assert {0, 1} <= set(seen)


def test_a_step_has_the_keys_of_analyze_and_its_state(filled: Any) -> None:
    """Closed and open; closing again changes nothing."""
    closed = filled.get("/v1/runs/a/b/steps/1").json()
    assert set(closed) >= STEP_KEYS
    assert closed["state"] == "closed"
    assert closed["tokens"] == 20
    assert closed["metrics"]["k1_mean"] == pytest.approx(1.5 / 8)
    assert filled.get("/v1/runs/a/b/steps/2").json()["state"] == "open"
    assert filled.post("/v1/runs/a/b/steps/1/close").json() == closed


def test_a_timeline_up_to_a_step_ends_there(filled: Any) -> None:
    """The latest `last` of those; without `until`, of all closed ones."""
    path = "/v1/runs/a/b/timeline"
    assert filled.get(path).json()["step"] == [0, 1]
    assert filled.get(f"{path}?until=0").json()["step"] == [0]
    assert filled.get(f"{path}?until=1&last=1").json()["step"] == [1]
    assert filled.get(f"{path}?until=99").json()["step"] == [0, 1]
    for wrong in ("-1", str(1 << 53), "x"):
        answer = filled.get(f"{path}?until={wrong}")
        assert answer.status_code == 422
        assert "until" in answer.json()["field"]


def test_unknown_steps_and_runs_are_404(filled: Any) -> None:
    """With the call that lists what exists."""
    for path in ("/v1/runs/a/b/steps/99", "/v1/runs/nobody/steps/0", "/v1/runs/nobody/gate"):
        answer = filled.get(path)
        assert answer.status_code == 404
        assert "GET /v1/runs" in answer.json()["fix"]
    assert filled.post("/v1/runs/nobody/steps/0/close").status_code == 404


def test_evidence_shows_the_worst_tokens(filled: Any) -> None:
    """Sample 3 has the largest Δ; as JSON and as a trace file."""
    path = "/v1/runs/a/b/steps/1/evidence"
    evidence = filled.get(path).json()
    worst = evidence["worst_tokens"][0]
    assert (worst["sample_id"], worst["abs"]) == ("1-3", pytest.approx(0.375))
    assert "1-3" in {sample["sample_id"] for sample in evidence["samples"]}
    trace = wire.decode(filled.get(path, headers={"accept": BINARY}).content)
    assert trace.side == "paired"
    assert trace.samples == len(evidence["samples"])


def test_profiles_and_diagnosis_and_alerts_have_their_shapes(filled: Any) -> None:
    """What the page and the dashboards read."""
    profiles = filled.get("/v1/runs/a/b/steps/1/profiles").json()["statistics"]
    assert len(profiles["profiles"]["position"][0]) == len(profiles["columns"])
    diagnosis = filled.get("/v1/runs/a/b/steps/1/diagnosis").json()
    assert isinstance(diagnosis["diagnosis"], list)
    assert filled.get("/v1/runs/a/b/alerts").json() == []


def test_the_gate_answers_with_a_verdict_and_bounds(filled: Any) -> None:
    """Twenty tokens are too few for a verdict."""
    gate = filled.get("/v1/runs/a/b/gate").json()
    assert gate["verdict"] == "unknown"
    assert gate["reasons"]
    assert gate["ratio_low"] < 1 < gate["ratio_high"]


def test_a_batch_sent_again_changes_nothing(filled: Any) -> None:
    """By the batch id, and by the bytes."""
    before = filled.get("/v1/runs/a/b/steps/2").json()
    again = filled.send(_paired("a/b", 2))
    assert again.status_code == 202
    assert again.json()["duplicate"] is True
    assert filled.get("/v1/runs/a/b/steps/2").json() == before


def test_another_value_for_the_same_sample_is_409(filled: Any, batch: Callable[..., bytes]) -> None:
    """One side twice with different values: a problem document, nothing stored."""
    assert filled.send(batch(q=[-1.0, -2.0], run="c", side="rollout")).status_code == 202
    before = filled.get("/v1/runs/c").json()
    answer = filled.send(batch(q=[-1.0, -2.5], run="c", side="rollout"))
    assert answer.status_code == 409
    assert answer.json()["fix"]
    after = filled.get("/v1/runs/c").json()
    assert after["waiting_samples"] == before["waiting_samples"] == 1


def test_scalars_and_events_are_taken(filled: Any) -> None:
    """Scalars appear with their step."""
    fields = {"run": "a/b", "step": 2, "values": {"reward": 0.5, "lr": 1e-6}}
    assert filled.post("/v1/scalars", json=fields).status_code == 202
    assert filled.get("/v1/runs/a/b/steps/2").json()["scalars"] == fields["values"]
    event = {"run": "a/b", "kind": "weight_sync", "step": 2, "fields": {"version": 3}}
    assert filled.post("/v1/events", json=event).status_code == 202


def test_the_same_batch_as_json_gives_the_same_step(filled: Any) -> None:
    """The JSON form is re-encoded, joined and measured like any other."""
    fields = {
        "schema": 1,
        "run": "json",
        "step": 0,
        "sample_ids": ["a", "b"],
        "rollout_logprobs": [[-1, -2], [-3]],
        "train_logprobs": [[-1, -2.5], [-3]],
    }
    receipt = filled.post("/v1/batches", json=fields)
    assert receipt.status_code == 202
    assert receipt.json()["tokens"] == 3
    step = filled.get("/v1/runs/json/steps/0").json()
    assert step["metrics"]["k1_mean"] == pytest.approx(0.5 / 3)


def test_the_page_and_the_documentation_are_served(filled: Any) -> None:
    """The page asks for no other host."""
    page = filled.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for name in ("main.js", "style.css"):
        assert filled.get(f"/{name}").status_code == 200
    assert filled.get("/docs").status_code == 200


def test_every_promised_call_is_in_the_openapi_document(filled: Any) -> None:
    """DESIGN.md §4."""
    paths = filled.get("/openapi.json").json()["paths"]
    run, step = "/v1/runs/{run}", "/v1/runs/{run}/steps/{step}"
    promised = {"/v1/batches", "/v1/summaries", "/v1/scalars", "/v1/events", "/v1/runs", run, step}
    promised |= {f"{run}/steps", f"{run}/alerts", f"{run}/gate", "/metrics", "/healthz", "/readyz"}
    promised |= {f"{step}/close", f"{step}/evidence", f"{step}/diagnosis"}
    assert promised <= set(paths)
