"""A Summary as bytes and back: what a rank posts to /v1/summaries and what the store keeps.

Columns travel by name. A reader takes the columns it knows and has 0 for those it misses, so that
summaries written by an older or a newer TwinScope can still be read and merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import WireError
from twinscope_service.measure.container import pack, unpack
from twinscope_service.measure.merge import sort_rows
from twinscope_service.measure.records import (
    ATTRIBUTES,
    BOUND_TEMPERATURES,
    COLUMN,
    COLUMNS,
    COVERAGE,
    EXTREMES,
    F64,
    HIST_BUCKETS,
    HIST_OCTAVE_HIGH,
    HIST_OCTAVE_LOW,
    LAG_COLUMNS,
    LAGS,
    PROFILE_COLUMNS,
    PROFILES,
    SIDE_COLUMNS,
    SampleRows,
    Summary,
    WorstToken,
)

SCHEMA = 1
KEY = "twinscope-summary"
AXES: dict[str, tuple[str, ...]] = {
    "coverage": COVERAGE,
    "sums": COLUMNS,
    "side": SIDE_COLUMNS,
    "extremes": EXTREMES,
    "profile": PROFILE_COLUMNS,
    "lag": LAG_COLUMNS,
    "attributes": ATTRIBUTES,
}
FIXED = {  # what a column's place means; a writer that differs here cannot be read
    "histogram": [HIST_OCTAVE_LOW, HIST_OCTAVE_HIGH, HIST_BUCKETS],
    "lags": list(LAGS),
    "bounds": list(BOUND_TEMPERATURES),
    "profiles": dict(PROFILES),
}
MOST_SAMPLES = 1 << 20
MOST_KEYS = 4096  # version lags, group labels, temperatures
MOST_WORST = 4096
MOST_NAME = 200  # characters of a name, label or sample id
LARGEST = 1e300  # magnitudes beyond cannot come from a measurement, and would overflow a merge


def encode_summary(summary: Summary) -> bytes:
    """The bytes of `summary`."""
    rows = summary.rows
    groups = sorted(summary.groups)
    lags, temperatures = sorted(summary.version_lag), sorted(summary.temperature)
    names = sorted(rows.groups)
    labels = {name: sorted(set(rows.groups[name])) for name in names}
    header = {
        "schema": SCHEMA,
        "axes": {name: list(columns) for name, columns in AXES.items()},
        "fixed": FIXED,
        "samples": summary.samples,
        "version_lag": lags,
        "groups": [list(key) for key in groups],
        "temperature": temperatures,
        "row_groups": [[name, labels[name]] for name in names],
        "worst": [_worst_out(token) for token in summary.worst],
    }
    arrays: dict[str, NDArray[Any]] = {
        "coverage": summary.coverage.astype(np.int64),
        "sums": summary.sums,
        "side": summary.side,
        "extremes": summary.extremes,
        "bounds": summary.bounds.astype(np.int64),
        "histogram": summary.histogram.astype(np.int64),
        "lags": summary.lags,
        **{f"profile.{name}": summary.profiles[name] for name in PROFILES},
        "version_lag": _stacked([summary.version_lag[lag] for lag in lags], len(PROFILE_COLUMNS)),
        "groups": _stacked([summary.groups[key] for key in groups], len(PROFILE_COLUMNS)),
        "temperature": _stacked([summary.temperature[t] for t in temperatures], 3),
        "rows.keys": rows.keys,
        "rows.sums": rows.sums,
        "rows.max_abs": rows.max_abs,
        "rows.attributes": rows.attributes,
        "rows.known": rows.known.astype(np.int64),
    }
    if rows.side is not None:
        arrays["rows.side"] = rows.side
    for i, name in enumerate(names):
        places = {label: place for place, label in enumerate(labels[name])}
        codes = [places[label] for label in rows.groups[name]]
        arrays[f"rows.group.{i}"] = np.array(codes, np.int32)
    return pack(KEY, header, arrays)


def decode_summary(body: bytes | memoryview) -> Summary:
    """The Summary of `body`; a WireError names what is wrong. Fit for bytes from a network."""
    header, arrays = unpack(KEY, body)
    reader = _Reader(header, arrays)
    reader.check_header()
    samples = reader.count("samples", MOST_SAMPLES)
    summary = Summary(
        coverage=reader.counts("coverage", "coverage"),
        samples=samples,
        sums=reader.named("sums", "sums"),
        side=reader.named("side", "side"),
        extremes=reader.named("extremes", "extremes", lowest=True),
        bounds=reader.counts("bounds", None, (len(BOUND_TEMPERATURES),)),
        histogram=reader.counts("histogram", None, (2, HIST_BUCKETS)),
        profiles={
            name: reader.named(f"profile.{name}", "profile", size)
            for name, size in PROFILES.items()
        },
        lags=reader.named("lags", "lag", len(LAGS)),
        version_lag=reader.keyed("version_lag", _whole, "profile"),
        groups=reader.keyed("groups", _pair, "profile"),
        temperature=reader.keyed("temperature", _positive, None),
        rows=reader.rows(samples),
        worst=reader.worst(),
    )
    _check_sums(summary)
    return summary


def _stacked(vectors: list[F64], width: int) -> F64:
    return np.array(vectors, np.float64).reshape(len(vectors), width)


def _worst_out(token: WorstToken) -> list[Any]:
    return [
        token.sample_key, token.position, token.q, token.p, token.token_id, token.sample_id,
    ]  # fmt: skip


@dataclass(frozen=True)
class _Reader:
    """Checked access to what was unpacked."""

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    def check_header(self) -> None:
        """The parts without which nothing else can be read."""
        if self.header.get("schema") != SCHEMA:
            raise WireError("schema", self.header.get("schema"), f"send schema {SCHEMA}")
        if self.header.get("fixed") != FIXED:
            fix = "histogram, lags, bounds or profiles differ: use the same TwinScope on both sides"
            raise WireError("fixed", self.header.get("fixed"), fix)
        axes = self.header.get("axes")
        if not isinstance(axes, dict) or set(axes) != set(AXES):
            raise WireError("axes", axes, f"send the column names of {', '.join(AXES)}")
        for name, columns in axes.items():
            good = isinstance(columns, list) and all(isinstance(c, str) for c in columns)
            if not good or len(set(columns)) != len(columns):
                raise WireError(f"axes.{name}", columns, "send different column names")

    def array(self, name: str, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
        """The array `name`, of this type and shape."""
        array = self.arrays.get(name)
        if array is None:
            raise WireError(name, None, "send it: the summary is incomplete")
        if array.dtype != dtype or array.shape != shape:
            found = f"{array.dtype} {list(array.shape)}"
            raise WireError(name, found, f"send {np.dtype(dtype)} {list(shape)}")
        return array

    def count(self, name: str, most: int) -> int:
        """A count in the header."""
        value = self.header.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise WireError(name, value, f"send an integer from 0 to {most}")
        return value

    def counts(self, name: str, axis: str | None, shape: tuple[int, ...] = ()) -> NDArray[np.int64]:
        """An array of counts; with `axis`, its columns are found by name."""
        written = self.header["axes"][axis] if axis else ()
        array = self.array(name, np.int64, (len(written),) if axis else shape)
        if array.size and (array.min() < 0 or array.max() > 1 << 62):
            raise WireError(name, int(array.min()), "send counts from 0 to 2^62")
        return self._by_name(array, axis) if axis else array

    def named(self, name: str, axis: str, rows: int | None = None, *, lowest: bool = False) -> F64:
        """A float array whose last axis is named; `lowest`: -inf may stand for "nothing"."""
        columns = len(self.header["axes"][axis])
        shape = (columns,) if rows is None else (rows, columns)
        array = self.array(name, np.float64, shape)
        self._check_finite(name, array, lowest=lowest)
        return self._by_name(array, axis, -np.inf if lowest else 0.0)

    def keyed(self, name: str, read_key: Any, axis: str | None) -> dict[Any, F64]:
        """A mapping: keys in the header, one row of the array for each."""
        keys = self.header.get(name)
        if not isinstance(keys, list) or len(keys) > MOST_KEYS:
            raise WireError(name, keys, f"send a list of at most {MOST_KEYS} keys")
        found = [read_key(name, key) for key in keys]
        if len(set(found)) != len(found):
            raise WireError(name, keys, "send every key once")
        if axis is None:
            table = self.array(name, np.float64, (len(keys), 3))
            self._check_finite(name, table)
        else:
            table = self.named(name, axis, len(keys))
        return dict(zip(found, table, strict=True))

    def rows(self, samples: int) -> SampleRows:
        """The rows; none at all where the writer gave them up."""
        keys = self.arrays.get("rows.keys")
        count = 0 if keys is None or not keys.ndim else len(keys)
        if count not in (0, samples):
            raise WireError("rows.keys", count, f"send {samples} rows, or none")
        known = self.counts("rows.known", None, (count,))
        max_abs = self.array("rows.max_abs", np.float64, (count,))
        self._check_finite("rows.max_abs", max_abs)
        return sort_rows(
            SampleRows(
                keys=self.array("rows.keys", np.uint8, (count, 16)),
                sums=self.named("rows.sums", "sums", count),
                side=self.named("rows.side", "side", count) if "rows.side" in self.arrays else None,
                max_abs=max_abs,
                attributes=self.named("rows.attributes", "attributes", count),
                known=self._known(known),
                groups=self._row_groups(count),
            )
        )

    def worst(self) -> tuple[WorstToken, ...]:
        """The worst tokens, worst first."""
        listed = self.header.get("worst")
        if not isinstance(listed, list) or len(listed) > MOST_WORST:
            raise WireError("worst", listed, f"send a list of at most {MOST_WORST} tokens")
        return tuple(sorted(_worst_in(item) for item in listed))

    def _known(self, known: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bit mask over ATTRIBUTES, from the writer's order of attributes."""
        found = np.zeros_like(known)
        for bit, name in enumerate(self.header["axes"]["attributes"]):
            if name in ATTRIBUTES and bit < 63:
                found |= ((known >> bit) & 1) << ATTRIBUTES.index(name)
        return found

    def _row_groups(self, count: int) -> dict[str, tuple[str, ...]]:
        listed = self.header.get("row_groups")
        if not isinstance(listed, list) or len(listed) > 64:
            raise WireError("row_groups", listed, "send a list of at most 64 [name, labels]")
        found = {}
        for i, item in enumerate(listed):
            if not isinstance(item, list) or len(item) != 2 or not isinstance(item[1], list):
                raise WireError("row_groups", item, "send [name, labels]")
            name = _text("row_groups", item[0])
            labels = [_text(f"row_groups.{name}", label) for label in item[1]]
            codes = self.array(f"rows.group.{i}", np.int32, (count,))
            if codes.min(initial=0) < 0 or codes.max(initial=0) >= max(len(labels), 1):
                raise WireError(f"rows.group.{i}", int(codes.max()), f"{len(labels)} labels")
            found[name] = tuple(labels[code] for code in codes.tolist())
        return found

    def _by_name(self, array: NDArray[Any], axis: str, missing: float = 0.0) -> NDArray[Any]:
        """The last axis in our order; columns that the writer did not know hold `missing`."""
        written = self.header["axes"][axis]
        if tuple(written) == AXES[axis]:
            return array
        places = {name: i for i, name in enumerate(written)}
        ours = np.full((*array.shape[:-1], len(AXES[axis])), missing, array.dtype)
        for i, name in enumerate(AXES[axis]):
            if name in places:
                ours[..., i] = array[..., places[name]]
        return ours

    def _check_finite(self, name: str, array: F64, *, lowest: bool = False) -> None:
        good = np.abs(array) <= LARGEST
        if lowest:
            good |= array == -np.inf
        if not good.all():
            raise WireError(name, float(array[~good][0]), "send finite numbers")


def _whole(name: str, key: Any) -> int:
    if type(key) is not int or abs(key) > 1 << 62:
        raise WireError(name, key, "send integers")
    return key


def _positive(name: str, key: Any) -> float:
    if isinstance(key, bool) or not isinstance(key, int | float) or not 0 < key < LARGEST:
        raise WireError(name, key, "send temperatures above 0")
    return float(key)


def _pair(name: str, key: Any) -> tuple[str, str]:
    if not isinstance(key, list) or len(key) != 2:
        raise WireError(name, key, "send [group, label]")
    return _text(name, key[0]), _text(name, key[1])


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_NAME:
        raise WireError(name, value, f"send text of at most {MOST_NAME} characters")
    return value


def _worst_in(item: Any) -> WorstToken:
    """One worst token, every part of the right type."""
    if not isinstance(item, list) or len(item) != 6:
        raise WireError("worst", item, "send [sample_key, position, q, p, token_id, sample_id]")
    key, position, q, p, token_id, sample_id = item
    for value in (position, token_id):
        if type(value) is not int or not -1 <= value < 1 << 53:
            raise WireError("worst", value, "send an integer from -1 to 2^53")
    for value in (q, p):
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e4:
            raise WireError("worst", value, "send log-probs")
    return WorstToken(
        minus_abs=-abs(float(p) - float(q)),
        sample_key=_text("worst", key),
        position=position,
        q=float(q),
        p=float(p),
        token_id=token_id,
        sample_id=_text("worst", sample_id),
    )


def _check_sums(summary: Summary) -> None:
    """The counts agree with one another: a summary that does not add up is refused."""
    count = dict(zip(COVERAGE, summary.coverage.tolist(), strict=True))
    classes = ("counted", "masked_out", "nonfinite", "sentinel", "positive")
    if count["received"] != sum(count[name] for name in classes):
        raise WireError("coverage", count, "received is the sum of the five classes")
    if summary.sums[COLUMN["n"]] != count["counted"]:
        raise WireError("sums.n", float(summary.sums[COLUMN["n"]]), f"counted: {count['counted']}")
    moved = count["counted"] - count["delta_zero"]
    if int(summary.histogram.sum()) != moved:
        raise WireError("histogram", int(summary.histogram.sum()), f"{moved} tokens have Δ ≠ 0")
    rows = summary.rows.sums[:, COLUMN["n"]]
    if len(rows) and rows.sum() != count["counted"]:
        raise WireError("rows.sums", float(rows.sum()), f"rows count {count['counted']} tokens")
