"""The statistics that causes ask for, against hand-worked values and plain numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.alignment import spearman
from twinscope_service.diagnose.context import Context
from twinscope_service.diagnose.mixture import loud_samples
from twinscope_service.diagnose.view import View
from twinscope_service.lab.cases import Case, summarise
from twinscope_service.lab.draft import Draft
from twinscope_service.measure.engine import build_engine

ENGINE = build_engine("reference")


def view_of(batch: Batch) -> View:
    """Measured with the reference engine, no headers."""
    return View(summarise(batch, ENGINE)[0], Context())


def deltas(batch: Batch) -> list[np.ndarray]:
    """Δ per sample, float64."""
    d = batch.tensors["train_logprobs"].astype(np.float64) - batch.tensors["rollout_logprobs"]
    return [d[b:e] for b, e in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]


def test_a_ratio_and_its_error_by_hand() -> None:
    """Two samples: Σ top 1 + 5, Σ bottom 1 + 3: ratio 1.5, residuals ∓0.5, error sqrt(2·0.5)/4."""
    view = view_of(Batch("r", "paired", 0, {
        "offsets": np.array([0, 1]),
        "rollout_logprobs": np.array([-1.0], np.float32),
        "train_logprobs": np.array([-1.5], np.float32),
    }))  # fmt: skip
    found = view.ratio(np.array([1.0, 5.0]), np.array([1.0, 3.0]))

    assert found.value == 1.5
    assert found.se == pytest.approx(np.sqrt(2 * (0.25 + 0.25)) / 4)
    assert found.z == pytest.approx(1.5 / 0.25)


def test_clustered_errors_agree_with_a_bootstrap_over_samples(healthy: Case) -> None:
    """E[ρ] − 1: the linearised error against 400 resamplings of whole samples."""
    view, parts = view_of(healthy.batch), deltas(healthy.batch)
    random = np.random.default_rng(0)
    sums = np.array([[np.expm1(d).sum(), len(d)] for d in parts])
    draws = [sums[random.integers(0, len(sums), len(sums))].sum(axis=0) for _ in range(400)]
    means = [top / bottom for top, bottom in draws]

    assert view.rho_excess.value == pytest.approx(np.expm1(np.concatenate(parts)).mean(), rel=1e-9)
    assert view.rho_excess.se == pytest.approx(np.std(means), rel=0.15)


def test_a_narrowed_view_is_the_view_of_those_samples(healthy: Case) -> None:
    """Twice narrowed too; means, correlation and k3 are those of the samples that stay."""
    view, parts = view_of(healthy.batch), deltas(healthy.batch)
    narrowed = view.narrowed(view.column("n") >= 60)
    again = narrowed.narrowed(narrowed.column("n") < 128)
    kept = [d for d in parts if 60 <= len(d) < 128]

    assert not narrowed.whole
    assert narrowed.samples == sum(len(d) >= 60 for d in parts)
    assert again.tokens == sum(len(d) for d in kept)
    assert again.mean("d") == pytest.approx(np.concatenate(kept).mean(), rel=1e-9)


def test_rank_correlation_takes_ties_by_average() -> None:
    """By hand: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3."""
    a, b = np.array([1.0, 2.0, 2.0, 5.0]), np.array([10.0, 20.0, 30.0, 40.0])

    assert spearman(a, b) == pytest.approx(4.5 / np.sqrt(4.5 * 5.0))
    assert spearman(a, -b) == pytest.approx(-spearman(a, b))
    assert spearman(np.ones(4), b) == 0.0


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_a_loud_part_is_found_and_only_it(share: float, healthy: Case) -> None:
    """Samples with strong noise, all of them and no other."""
    draft = Draft.of(healthy.batch, 5)
    loud = np.zeros(draft.samples, bool)
    loud[draft.some_samples(share)] = True
    draft.disturb_train(draft.per_token(np.where(loud, 1.2, 0.0)))
    view = view_of(draft.finish())
    found = loud_samples(view)

    assert found is not None
    assert found.sum() == loud.sum()
    assert view.column("d2")[found].min() > view.column("d2")[~found].mean()


def test_one_population_has_no_loud_part(healthy: Case) -> None:
    """Healthy, and evenly disturbed."""
    draft = Draft.of(healthy.batch, 5)
    draft.disturb_train(0.5)

    assert loud_samples(view_of(healthy.batch)) is None
    assert loud_samples(view_of(draft.finish())) is None


def test_the_share_of_token_ids_is_an_intraclass_correlation(healthy: Case) -> None:
    """0 for noise that knows no ids, high when each id has its own Δ."""
    batch = healthy.batch
    draft = Draft.of(batch, 5)
    draft.disturb_train(0.5)
    by_id = np.random.default_rng(1).standard_normal(1 << 16) * 0.5
    ids = batch.tensors["token_ids"]
    shifted = np.minimum(batch.tensors["train_logprobs"] + by_id[ids], 0.0).astype(np.float32)
    tensors = {**batch.tensors, "train_logprobs": shifted}
    plain, told = view_of(draft.finish()).token_share, view_of(replace(batch, tensors=tensors))

    assert plain is not None
    assert abs(plain) < 0.03
    assert told.token_share is not None
    assert told.token_share > 0.3
