"""What the API says of an alert beside its numbers: did a level fall, and how does it stand."""

from __future__ import annotations

from typing import Any

import pytest

from twinscope_service.views import AlertView

SHIFT: dict[str, Any] = {"kind": "level_shift", "state": "firing", "series": "k3", "before": 1.0,
                         "after": 5.0}  # fmt: skip
FALL = {"before": 5.0, "after": 1.0}


@pytest.mark.parametrize(
    ("alert", "came_down", "standing"),
    [
        ({}, False, "firing"),
        ({"state": "provisional"}, False, "provisional"),
        ({"state": "resolved"}, False, "over"),
        (FALL, True, "fell"),
        ({**FALL, "state": "resolved"}, True, "over"),
        ({**FALL, "state": "provisional"}, True, "provisional"),
        ({"series": "rho_excess", "before": -0.2, "after": 0.1}, True, "fell"),
        ({**FALL, "series": "k3{replica=3}"}, False, "firing"),
        ({**FALL, "kind": "growth"}, False, "firing"),
        ({"kind": "spike"}, False, "one step, over"),
        ({"kind": "spike", "state": "resolved"}, False, "one step, over"),
        ({"kind": "silence", "before": None, "after": None}, False, "firing"),
    ],
)
def test_an_alert_says_whether_it_fell_and_how_it_stands(
    alert: dict[str, Any], came_down: bool, standing: str
) -> None:
    """Nearer to zero is a fall; a group is compared with the others, so it has none."""
    fields = {**SHIFT, **alert}
    told = AlertView(1, step=9, onset_step=5, ratio=None, message="", **fields).as_json()

    assert told["came_down"] is came_down
    assert told["standing"] == standing
    assert told["state"] == fields["state"]
