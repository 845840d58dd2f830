"""One data directory per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pipelines import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A pipeline on an empty directory."""
    bench = Bench(tmp_path / "data")
    yield bench
    bench.pipeline.close()


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """A pipeline with settings of the test's own."""
    made: list[Bench] = []

    def make(**settings: object) -> Bench:
        made.append(Bench(tmp_path / f"data{len(made)}", **settings))
        return made[-1]

    yield make
    for bench in made:
        bench.pipeline.close()
