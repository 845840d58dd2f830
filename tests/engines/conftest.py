"""Real engines for the tests of this folder; they run in the environment of setup.sh.

vLLM and transformers warn about their own internals, which is not ours to fix: warnings are errors
only where they come from twinscope.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Two cores: no pinning of OpenMP threads, a small cache, nothing leaves the machine.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # a tiny model gains nothing from two, and they wait for each other
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the folder's tests; without vLLM they are skipped with the word that runs them."""
    absent = importlib.util.find_spec("vllm") is None
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.engines)
        # The first test of a module starts an engine; on a machine with other work that takes long.
        item.add_marker(pytest.mark.timeout(2400))
        item.add_marker(pytest.mark.filterwarnings("ignore"))
        item.add_marker(pytest.mark.filterwarnings("error:::twinscope"))
        if absent:
            item.add_marker(pytest.mark.skip(reason="no vLLM here: run `make test-engines`"))


@pytest.fixture(scope="session", autouse=True)
def engine_environment() -> Iterator[None]:
    """Settings of the engine processes, put back afterwards."""
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory, engine_environment: None) -> Path:
    """Folder of a random tiny Llama with tokenizer."""
    from tiny_llama import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))
