"""Labelled cases: cutting, mixing, baring; and the tables of an evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from twinscope_service.lab.cases import Case, bare, mixed, part, summarise
from twinscope_service.lab.draft import LabError
from twinscope_service.lab.evaluate import fit_curves, main
from twinscope_service.lab.tables import calibration_table, confusion_table, write_between
from twinscope_service.measure.engine import build_engine
from twinscope_service.replay import recording

CUT = Path(__file__).resolve().parents[1] / "vectors/traces"


@pytest.fixture(scope="module")
def healthy() -> Case:
    """A recording that ships."""
    return Case("h", ("numerical_noise",), recording("healthy_bf16"), "h")


def test_a_part_has_whole_samples_and_at_least_the_tokens_asked_for(healthy: Case) -> None:
    """Tokens of a sample stay together and in order."""
    smaller = part(healthy, tokens=2000, seed=4).batch
    q = healthy.batch.tensors["rollout_logprobs"].tobytes()

    assert 2000 <= smaller.tokens < 2300
    for begin, end in zip(smaller.offsets[:-1], smaller.offsets[1:], strict=True):
        assert smaller.tensors["rollout_logprobs"][begin:end].tobytes() in q


def test_a_mixture_has_no_sample_twice(healthy: Case) -> None:
    """A quarter from one case, the rest from the other, none of the same index."""
    batch = mixed(healthy, healthy, share=0.25, seed=1).batch
    firsts = [batch.tensors["rollout_logprobs"][b:e].tobytes() for b, e in zip(
        batch.offsets[:-1], batch.offsets[1:], strict=True)]  # fmt: skip

    assert batch.samples == healthy.batch.samples
    assert len(set(firsts)) == len(firsts)


def test_a_bare_case_says_nothing_but_its_numbers(healthy: Case) -> None:
    """No sampling parameters, no fingerprints; the same summary."""
    engine = build_engine("reference")
    summary, context = summarise(bare(healthy).batch, engine)

    assert (context.sampling, context.rollout, context.train) == (None, None, None)
    assert np.array_equal(summary.sums, summarise(healthy.batch, engine)[0].sums)


def test_tables_count_what_was_said() -> None:
    """Right answers, what was said instead, and the share right by confidence."""
    confusion = confusion_table([("a", "a"), ("a", "b"), ("c", "c")])
    calibration = calibration_table([(0.95, True), (0.92, False), (0.3, False)])

    assert "| `a` | 2 | 1 | `b` 1 |" in confusion
    assert "| `c` | 1 | 1 |  |" in confusion
    assert "| 0.9 to 1.0 | 2 | 50 % |" in calibration
    assert "| 0.0 to 0.5 | 1 | 0 % |" in calibration


def test_a_page_is_rewritten_between_its_markers_only(tmp_path: Path) -> None:
    """Text around stays; a page without markers is refused."""
    page = tmp_path / "page.md"
    page.write_text("head\n<!-- t:begin -->\nold\n<!-- t:end -->\ntail\n")
    write_between(page, "t", "new")

    assert page.read_text() == "head\n<!-- t:begin -->\nnew\n<!-- t:end -->\ntail\n"
    with pytest.raises(LabError, match="markers"):
        write_between(page, "other", "new")


def test_an_evaluation_of_a_small_folder_prints_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One healthy trace, with every exact fault on it, cut to sizes."""
    name = "healthy_bf16.safetensors"
    (tmp_path / name).write_bytes((CUT / name).read_bytes())
    (tmp_path / "index.json").write_text(f'[{{"file": "{name}", "cause": "numerical_noise"}}]')

    assert main(["--held-out", str(tmp_path), "--engine", "reference", "--fit", "--wrong"]) == 0
    printed = capsys.readouterr().out
    assert "| label | cases | right | said instead |" in printed
    assert "| held out, identifiable | 8" in printed
    assert "| 0 of 3 |" in printed  # whole and in two sizes: not accused
    assert "fitted on the cases seen: {}" in printed
    assert fit_curves([]) == {}
