"""The one call that waits: a verdict to halt on, and `unknown` for any trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faulty_services import answer_by_the_byte, faulty_service, never_answer, reset

from twinscope import Gate, Probe


def test_the_verdict_of_the_last_closed_step_is_the_services(start: Callable[..., Any]) -> None:
    """Before any step, after an ok one, after one that is far off."""
    service = start(min_tokens=1)
    with Probe(service.url, run="r/1") as probe:
        assert probe.flush(30)
        assert probe.gate().step is None
        assert probe.gate().verdict == "unknown"
        for step, shift in ((3, 0.001), (4, 1.0)):
            q = [[-1.0 - 0.01 * i for i in range(50)]]
            p = [[value - shift * (-1) ** i for i, value in enumerate(q[0])]]
            probe.pair(step=step, rollout_logprobs=q, train_logprobs=p, token_ids=[list(range(50))])
            probe.close_step(step)
            assert probe.flush(30)
            gate = probe.gate()
            assert gate.step == step
            assert gate.verdict == ("ok" if step == 3 else "inconsistent")
        assert any("rollout_train_kl" in reason for reason in gate.reasons)
        assert gate.ratio_low is not None
        assert gate.ratio_high is not None
        assert gate.ratio_low < 1.0 < gate.ratio_high


@pytest.mark.parametrize("behaviour", [never_answer, answer_by_the_byte, reset])
def test_a_service_in_trouble_is_unknown_and_holds_nobody(behaviour: Any) -> None:
    """It hangs, drips or hangs up: the call comes back and says so."""
    with faulty_service(behaviour) as url:
        probe = Probe(url, run="r", exit_timeout_s=0.1)
        gate = probe.gate(timeout=0.3)
        probe.close()
    assert gate.verdict == "unknown"
    assert "no verdict from" in gate.reasons[0]


def test_refusals_and_a_probe_that_is_off_are_unknown(start: Callable[..., Any]) -> None:
    """A wrong token, and no address at all."""
    service = start(token="right")
    with Probe(service.url, run="r", token="wrong", exit_timeout_s=0.1) as probe:
        assert "401" in probe.gate().reasons[0]
    assert Probe(run="r").gate() == Gate(reasons=("the probe is off",))
