"""A View: the statistics of a Summary, or of some of its samples, as causes ask for them.

Everything additive lives in the per-sample rows, so a View can be narrowed to any subset of
samples and every statistic stays exact. The sample is the exchangeable unit: standard errors are
clustered by sample (tokens of one sample share a context and are not independent).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from twinscope_service.diagnose.context import Context, History
from twinscope_service.measure.formulas import LOG_EPSILON, noise_ratio
from twinscope_service.measure.records import (
    ATTRIBUTE,
    COLUMN,
    COVERAGE,
    F64,
    PROFILE_COLUMNS,
    SIDE_COLUMN,
    Summary,
)

Mask = NDArray[np.bool_]
TINY = 1e-300


@dataclass(frozen=True)
class Estimate:
    """A number with its clustered standard error. `se` is inf where it cannot be known."""

    value: float
    se: float

    @property
    def z(self) -> float:
        """value / se; 0 when nothing is known."""
        return self.value / self.se if 0.0 < self.se < inf else 0.0


@dataclass(frozen=True)
class View:
    """`summary` seen through the samples in `keep` (None: all of them)."""

    summary: Summary
    context: Context
    history: History | None = None
    keep: Mask | None = None  # [S] over summary.rows
    origin: View | None = field(default=None, repr=False, compare=False)  # the view of all samples

    @property
    def whole(self) -> bool:
        """True when no sample was left out: profiles, lags and histogram apply."""
        return self.keep is None

    def narrowed(self, keep: Mask) -> View:
        """The view of the samples where `keep` [samples of this view] is true."""
        chosen = np.zeros(len(self.summary.rows.keys), bool)
        chosen[np.flatnonzero(self._kept)[keep]] = True
        return replace(self, keep=chosen, origin=self.origin or self)

    @cached_property
    def _kept(self) -> Mask:
        if self.keep is None:
            return np.ones(len(self.summary.rows.keys), bool)
        return self.keep

    @cached_property
    def _columns(self) -> dict[str, F64]:
        """Columns and attributes that were asked for, contiguous: a row is 700 bytes wide."""
        return {}

    @cached_property
    def _known(self) -> NDArray[np.int64]:
        known = self.summary.rows.known
        return known if self.keep is None else known[self.keep]

    def _taken(self, table: F64, index: int, name: str) -> F64:
        """[S] column `index` of `table`, of the samples in view; taken once, not to be written."""
        found = self._columns.get(name)
        if found is None:
            if self.keep is None or self.origin is None:
                found = table[slice(None) if self.keep is None else self.keep, index].copy()
            else:
                found = self.origin._taken(table, index, name)[self.keep]
            found.flags.writeable = False
            self._columns[name] = found
        return found

    # ---- sums

    @property
    def samples(self) -> int:
        """Samples in the view that have at least one counted token."""
        return int(np.count_nonzero(self.column("n")))

    def told(self, rows: Mask) -> str:
        """Samples of this view [S] in words, of all samples of the step: "24 of 48 samples"."""
        some, every = int(rows.sum()), (self.origin or self).samples
        return f"{some} of {every} samples" if some < every else f"all {every} samples"

    @property
    def tokens(self) -> float:
        """Counted tokens."""
        return self.total("n")

    def column(self, name: str) -> F64:
        """[S] per-sample sums of one column of records.COLUMNS or SIDE_COLUMNS."""
        rows = self.summary.rows
        if name in COLUMN:
            return self._taken(rows.sums, COLUMN[name], name)
        if rows.side is None:
            return np.zeros(len(self._known))
        return self._taken(rows.side, SIDE_COLUMN[name], name)

    def total(self, name: str) -> float:
        """Sum over counted tokens."""
        if name in COLUMN and self.keep is None:
            return float(self.summary.sums[COLUMN[name]])
        return float(self.column(name).sum())

    def mean(self, name: str, per: str = "n") -> float:
        """Token mean; 0 without tokens (callers ask `tokens` first)."""
        return self.total(name) / max(self.total(per), TINY)

    def coverage(self, name: str) -> int:
        """A coverage count of the whole summary."""
        return int(self.summary.coverage[COVERAGE.index(name)])

    # ---- estimates with clustered errors

    def ratio(self, top: F64, bottom: F64) -> Estimate:
        """Σ top / Σ bottom over samples [S], linearised: residual = top − ratio · bottom."""
        total = float(bottom.sum())
        if total == 0.0 or len(top) < 2:
            return Estimate(0.0, inf)
        value = float(top.sum()) / total
        residual = top - value * bottom
        # no dot product: BLAS wakes its threads for it, which costs more than the sum
        spread = sqrt(float((residual * residual).sum()) * len(top) / (len(top) - 1))
        return Estimate(value, spread / abs(total))

    def token_mean(self, name: str, per: str = "n") -> Estimate:
        """Token mean of a column with its clustered standard error."""
        return self.ratio(self.column(name), self.column(per))

    def k3_of(self, rows: Mask, *, beyond: int = 0) -> float | None:
        """Token mean of k3 over some samples [S]; None unless they have more than `beyond`."""
        n = self.column("n")[rows].sum()
        return float(self.column("k3")[rows].sum() / n) if n > beyond else None

    # ---- per-sample attributes

    def attribute(self, name: str) -> tuple[F64, Mask]:
        """[S] values and where they are known."""
        index = ATTRIBUTE[name]
        values = self._taken(self.summary.rows.attributes, index, f"attribute {name}")
        return values, ((self._known >> index) & 1).astype(bool)

    def labels(self, group: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """The distinct labels of a group, "" for unknown, and [S] the index of each sample's."""
        labels = self.summary.rows.groups[group]
        index = {label: code for code, label in enumerate(dict.fromkeys(labels))}
        codes = np.fromiter(map(index.__getitem__, labels), np.int64, len(labels))
        return tuple(index), codes[self._kept]

    # ---- profiles of the whole summary

    def profile(self, name: str, column: str) -> F64:
        """[buckets] sums of one profile column, whole summary."""
        return self.summary.profiles[name][:, PROFILE_COLUMNS.index(column)]

    @cached_property
    def token_share(self) -> float | None:
        """Share of Var Δ that goes with the token id (hashed); None without ids or in a part.

        The intraclass correlation of one-way analysis of variance, unequal group sizes.
        """
        n, d, d2 = (self.profile("token", name) for name in ("n", "d", "d2"))
        enough = n >= 8
        n, d, d2 = n[enough], d[enough], d2[enough]
        if not self.whole or len(n) < 16:
            return None
        total, groups, mean = n.sum(), len(n), d / n
        within = float((d2 - n * mean**2).sum() / (total - groups))
        between = float((n * (mean - d.sum() / total) ** 2).sum() / (groups - 1))
        size = float((total - (n**2).sum() / total) / (groups - 1))
        return (between - within) / max(size * within + between - within, TINY)

    # ---- statistics that many causes ask for

    @cached_property
    def k3(self) -> float:
        """Token mean of k3."""
        return self.mean("k3")

    @cached_property
    def rho_excess(self) -> Estimate:
        """E[ρ] − 1: 0 if q is the sampled density; minus the lost mass under truncation."""
        return self.token_mean("rho_m1")

    @cached_property
    def inverse_excess(self) -> Estimate:
        """E[1/ρ] − 1: 0 if p is the density that was sampled."""
        return self.token_mean("inv_rho_m1")

    @cached_property
    def gibbs(self) -> float:
        """mean Δ / (½ mean Δ²): −1 for an honest q, +1 for an honest p, beyond ±2.5 lost mass."""
        return self.total("d") / max(0.5 * self.total("d2"), TINY)

    @cached_property
    def correlation(self) -> float:
        """Pearson correlation of q and p over tokens; 1 when both are constant."""
        n = max(self.tokens, TINY)
        q, p = self.total("q") / n, self.total("p") / n
        cov = self.total("qp") / n - q * p
        var = (self.total("qq") / n - q * q) * (self.total("pp") / n - p * p)
        return cov / sqrt(var) if var > 1e-24 else 1.0

    @cached_property
    def sample_correlation(self) -> F64:
        """[S] Pearson correlation of q and p inside each sample; 1 where it is not defined."""
        n = np.maximum(self.column("n"), 1.0)
        q, p = self.column("q") / n, self.column("p") / n
        cov = self.column("qp") / n - q * p
        var = (self.column("qq") / n - q * q) * (self.column("pp") / n - p * p)
        usable = (var > 1e-12) & (self.column("n") >= 8)
        return np.where(usable, cov / np.sqrt(np.where(usable, var, 1.0)), 1.0)

    @cached_property
    def noise_level(self) -> F64:
        """[S] mean of ln r: how loud a sample is, with its uncertainty taken out."""
        return self.column("lr") / np.maximum(self.column("n"), 1.0)

    @cached_property
    def position_slope(self) -> Estimate:
        """d ln r / d ln(1 + t) with a level per sample; clustered.

        Without the first token: samples of one prompt often share it, so that samples are not
        independent there, and it has the largest leverage.
        """
        q, known = self.attribute("head_q0")
        p, _ = self.attribute("head_p0")
        first = np.where(known, np.log(noise_ratio(p - q, q) + LOG_EPSILON), 0.0)
        n = np.maximum(self.column("n") - known, 1.0)
        lr = self.column("lr") - first  # the first token's x is 0: nothing else to take off
        xx = self.column("xx") - self.column("x") ** 2 / n
        xy = self.column("xlr") - self.column("x") * lr / n
        return self.ratio(xy, xx)

    @cached_property
    def rms_level(self) -> F64:
        """[S] ½ ln of mean Δ² per unit of uncertainty: a few loud tokens are enough to show."""
        scale = np.maximum(self.column("one_minus_eq"), 1e-9)
        level: F64 = 0.5 * np.log(np.maximum(self.column("d2") / scale, 1e-12))
        return level

    @cached_property
    def floor(self) -> float:
        """k3 that a healthy step of this run would have: the baseline's, else a typical 1.5e-3."""
        baseline = None if self.history is None else self.history.baseline
        if baseline is not None and baseline.sums[COLUMN["n"]] > 0:
            return float(baseline.sums[COLUMN["k3"]] / baseline.sums[COLUMN["n"]])
        return 1.5e-3


def compare(values: F64, a: Mask, b: Mask) -> tuple[float, float]:
    """(mean over a − mean over b, z) of per-sample values; Welch standard error."""
    x, y = values[a], values[b]
    if min(len(x), len(y)) < 2:
        return 0.0, 0.0
    se = sqrt(float(x.var(ddof=1)) / len(x) + float(y.var(ddof=1)) / len(y))
    gap = float(x.mean() - y.mean())
    return gap, gap / max(se, 1e-9)
