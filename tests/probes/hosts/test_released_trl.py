"""hosts/trl.py against the source of every TRL it declares; tests/engines runs some of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from released import ASKED, WHEELS

from twinscope.hosts.trl import SEAM, TRL

READ = {
    "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages",
    "sampling_per_token_logps", "old_per_token_logps", "ref_per_token_logps",
}  # fmt: skip
FORWARDS = ("_per_token_logps_and_entropies", "_logits_logps")
SETTINGS = {
    "use_vllm", "vllm_mode", "vllm_importance_sampling_correction", "_last_loaded_step",
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
}  # fmt: skip


def _releases() -> dict[tuple[int, ...], Path]:
    found = (WHEELS / "trl-releases").glob("*/trl")
    return {tuple(int(n) for n in path.parent.name.split(".")[:2]): path for path in found}


@pytest.fixture(params=TRL.versions, ids=lambda version: ".".join(map(str, version)))
def release(request: pytest.FixtureRequest) -> Path:
    """The package of one declared minor version, unpacked."""
    path = _releases().get(request.param)
    if path is None:
        (pytest.fail if ASKED else pytest.skip)("no wheel of this TRL: run make test-hosts")
    return path


def _methods(release: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((release / "trainer/grpo_trainer.py").read_text(encoding="utf-8"))
    (trainer,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "GRPOTrainer"
    )
    return {node.name: node for node in trainer.body if isinstance(node, ast.FunctionDef)}


def _keys_of_output(method: ast.FunctionDef) -> Iterator[str]:
    """The keys of the dictionary `output`, from its literal and from later assignments."""
    for node in ast.walk(method):
        if not isinstance(node, ast.Assign):
            continue
        (target,) = node.targets
        if isinstance(node.value, ast.Dict) and ast.unparse(target) == "output":
            yield from (key.value for key in node.value.keys if isinstance(key, ast.Constant))
        if isinstance(target, ast.Subscript) and ast.unparse(target.value) == "output":
            yield ast.literal_eval(target.slice)


def test_batch_has_what_the_reader_takes(release: Path) -> None:
    """The seam returns every key that read_batch knows, and nothing renames one."""
    keys = set(_keys_of_output(_methods(release)[SEAM]))

    assert keys >= READ


def test_trainer_calls_the_seam_once_per_generation(release: Path) -> None:
    """On the instance, where the wrap is: a call of the class's function would pass it by."""
    calls = {
        name: ast.unparse(node.func)
        for name, method in _methods(release).items()
        for node in ast.walk(method)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(SEAM)
    }

    assert calls == {"_prepare_inputs": f"self.{SEAM}"}


def test_trainer_has_the_settings_that_name_its_density(release: Path) -> None:
    """Set by the constructor under the names that the hook reads."""
    constructor = _methods(release)["__init__"]

    stored = {node.attr for node in ast.walk(constructor) if isinstance(node, ast.Attribute)}
    assert stored >= SETTINGS


def test_colocated_engine_reports_the_density_that_was_sampled(release: Path) -> None:
    """The fingerprint says processed_logprobs for vllm_mode="colocate"."""
    text = (release / "generation/vllm_generation.py").read_text(encoding="utf-8")

    assert 'logprobs_mode="processed_logprobs"' in text


def test_temperature_is_applied_to_the_trainer_s_logits(release: Path) -> None:
    """The fingerprint says temperature_applied: in the forward, or in a head that replaces it."""
    methods = _methods(release)
    forward = "\n".join(ast.unparse(m) for name, m in methods.items() if name.endswith(FORWARDS))
    made = ast.unparse(methods["__init__"])

    applied = r"logits\.div_\(self\.temperature|logits / self\.temperature"
    applied += r"|selective_log_softmax\([^()]*temperature=self\.temperature"
    head = r"lm_head\([^()]*(\([^()]*\)[^()]*)*temperature=self\.temperature"
    assert re.search(applied, forward) or re.search(head, made)
