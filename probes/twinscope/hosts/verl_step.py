"""What verl's driver shows of one training step, put together: no verl is imported here.

    begin        a trainer starts to compute p: the trainer counts the steps, V1 has the versions
    computed     V0: the per-token entropy, which verl drops before it compares
    compare      q and p meet: everything but the reference and, in V1, the reward is there
    complete     the rest of the columns, before the update; the pair is sent, the step closed
    log          the step's metrics; a step that is still open is closed

What is held between `compare` and `complete` are references to verl's own tensors, not copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twinscope.errors import DidNotAttach
from twinscope.hosts.attach import Attachment
from twinscope.hosts.sampling import read_sampling
from twinscope.hosts.scalars import read_scalars
from twinscope.hosts.sides import choose, send

__all__ = ["Driver", "read_batch", "read_rollout", "read_tags"]


@dataclass
class _Held:
    """A compared batch whose other columns come later in the same step."""

    step: int
    fields: dict[str, Any]
    keys: list[str] | None  # V1: names of the rows, in order; None: V0
    real: list[int] | None  # rows that are samples; None: all


class Driver:
    """The steps of one process. All calls come from the thread that trains."""

    def __init__(self, attachment: Attachment, version: str | None) -> None:
        self._attachment = attachment
        self._version = version
        self._trainer: Callable[[], Any] = lambda: None  # None: none has computed p yet
        self._keys: list[str] | None = None
        self._tags: Sequence[Mapping[str, Any]] | None = None
        self._entropy: Any = None  # None: V1, whose batch has it; or nothing computed
        self._synced: tuple[Callable[[], Any], int] = (lambda: None, 0)  # the trainer and its step
        self._held: _Held | None = None
        self._open: int | None = None  # a step that was sent and not closed
        self._rounds = 0  # batches of that step that were sent

    def synced(self, trainer: Any) -> None:
        """A separated trainer gives its weights to the engines, numbered by its step."""
        self._synced = weakref.ref(trainer), int(trainer.global_steps)

    def begin(self, trainer: Any, batch: Any) -> None:
        """A trainer starts to compute p. V1's batch names its rows (`keys`) and has their tags."""
        self._send()
        self._trainer = weakref.ref(trainer)
        self._tags = getattr(batch, "tags", None)
        self._keys = None if self._tags is None else list(batch.keys)
        self._entropy = None

    def computed(self, answer: Any) -> None:
        """V0's answer, (DataProto, mfu), of which the entropy is dropped before the comparison."""
        columns = answer[0].batch if isinstance(answer, tuple) else {}
        if "entropys" in set(columns.keys()):
            self._entropy = columns["entropys"]

    def compare(self, data: Any) -> None:
        """q and p of a whole batch, as a DataProto. Held where more of it is to come."""
        trainer = self._trainer()
        step = self._step(trainer)
        if step is None:
            return
        given = read_batch(data.batch, data.non_tensor_batch)
        if self._entropy is not None:
            given.setdefault("entropy", self._entropy)
        real = None
        if self._tags is not None and self._keys is not None:
            tagged, real = read_tags(self._keys, self._tags)
            given |= tagged
        given["train_version"] = self._version_of_weights(trainer, step)
        given["train_fingerprint"] = {
            "name": "verl", "version": self._version, "temperature_applied": True,
        }  # fmt: skip
        nothing: dict[str, Any] = {}
        given |= self._attachment.guard.run(
            "settings", nothing, lambda: read_rollout(trainer.config)
        )
        self._held = _Held(step, given, self._keys, real)
        if self._keys is None and not getattr(trainer, "use_reference_policy", False):
            self._send()
        self._tags = self._keys = self._entropy = None  # of this comparison only

    def _version_of_weights(self, trainer: Any, step: int) -> int:
        """What verl calls the weights that p is computed with, in the numbers the engines report.

        V0 and V1 hand them over at the end of a step, under that step's number; one-step-off at
        the beginning of the next; the fully asynchronous trainer counts them apart.
        """
        if hasattr(trainer, "current_param_version"):
            return int(trainer.current_param_version)
        synced, number = self._synced
        return number if synced() is trainer else max(step - 1, 0)

    def complete(self, columns: Mapping[str, Any], keys: Sequence[str] | None = None) -> None:
        """The rest of the held batch: `ref_log_prob` and `rm_scores`, [B,T], where there are any.

        V1 tells the rows' names again: columns of other rows are left out.
        """
        held = self._held
        names = set(columns.keys())
        if held is not None and held.keys == (None if keys is None else list(keys)):
            if "ref_log_prob" in names:
                held.fields["ref_logprobs"] = columns["ref_log_prob"]
            if "rm_scores" in names:
                held.fields["reward"] = columns["rm_scores"].sum(-1)
        self._send()

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """What verl logs at the end of a step, or of a validation. Closes what is still open."""
        self._send()
        self._close()
        values = read_scalars(metrics)
        if values:
            self._attachment.probe().scalar(step=self._logged(step), values=values)

    def _logged(self, step: int) -> int:
        """The step that logged metrics are of.

        The fully asynchronous trainer counts its logs in weight versions, and logs a version's
        metrics in the step after the last that they contain.
        """
        trainer = self._trainer()
        if hasattr(trainer, "current_param_version"):
            return max(int(trainer.global_steps) - 1, 0)
        return int(step)

    def _step(self, trainer: Any) -> int | None:
        """The trainer's step; None, and a refusal that the run's history shows, without one."""
        step = getattr(trainer, "global_steps", None)
        if isinstance(step, int) and step >= 0:
            return step

        def refuse() -> None:
            raise DidNotAttach(
                f"verl {self._version}: {type(trainer).__name__} compares and counts no "
                "global_steps: which step it is in is not known"
            )

        if self._attachment.first("step"):
            self._attachment.attach(self._version, refuse)
        return None

    def _send(self) -> None:
        """Send what is held, if anything is; the last batch of a step closes it."""
        held, self._held = self._held, None
        if held is None:
            return
        if self._open != held.step:
            self._close()
            self._rounds = 0
        self._open = held.step
        send(self._attachment.probe(), choose(_only(held.fields, held.real)), step=held.step)
        self._rounds += 1
        # V1's separate-async trainer makes several rounds in one step.
        if self._rounds >= int(getattr(self._trainer(), "parameter_sync_step", 1)):
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._attachment.probe().close_step(self._open)
            self._open = None


def read_batch(
    batch: Mapping[str, Any], samples: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Arguments for `Probe.pair` from a DataProto's `batch` and `non_tensor_batch`.

    [B,T] right-padded responses: `rollout_log_probs` q (0.0 where padded), `old_log_probs` p,
    `response_mask` (0 also on tool output). V0 and the separated trainers have more: [B,P]
    `prompts`, padded on the left, `attention_mask` [B,P+T], `rm_scores` [B,T], and the weight
    version that each sample began with (`min_global_steps`; None where the engine did not say).
    """
    responses = batch["responses"]
    width = responses.shape[1]
    names = set(batch.keys())
    mask = batch["response_mask"] if "response_mask" in names else batch["attention_mask"]
    found: dict[str, Any] = {
        "rollout_logprobs": _column(batch, names, "rollout_log_probs"),
        "train_logprobs": _column(batch, names, "old_log_probs"),
        "ref_logprobs": _column(batch, names, "ref_log_prob"),
        "entropy": _column(batch, names, "entropy"),
        "mask": mask[:, -width:],
        "token_ids": responses,
    }
    if {"prompts", "attention_mask"} <= names:
        found["prompt_ids"] = batch["prompts"]
        found["prompt_mask"] = batch["attention_mask"][:, : batch["prompts"].shape[1]]
    if "rm_scores" in names:
        found["reward"] = batch["rm_scores"].sum(-1)
    if samples is not None and "min_global_steps" in samples:
        found["rollout_version"] = _versions(samples["min_global_steps"])
    return {name: value for name, value in found.items() if value is not None}


def read_tags(
    keys: Sequence[str], tags: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[int] | None]:
    """Arguments for `Probe.pair` from the names and tags of V1's rows, one of each per row.

    Also the rows that are samples: verl fills batches up with empty ones; None when all are.
    """
    found = {
        "sample_ids": list(keys),
        "rollout_version": _versions([tag.get("min_global_steps") for tag in tags]),
    }
    real = [n for n, tag in enumerate(tags) if not tag.get("is_padding", False)]
    return (
        {name: value for name, value in found.items() if value is not None},
        None if len(real) == len(tags) else real,
    )


def read_rollout(config: Any) -> dict[str, Any]:
    """Sampling parameters and the engine's fingerprint from verl's configuration."""
    rollout = config.actor_rollout_ref.rollout
    named = {"name": "name", "dtype": "dtype", "quantization": "quantization",
             "tp": "tensor_model_parallel_size"}  # fmt: skip
    engine = {ours: getattr(rollout, theirs, None) for ours, theirs in named.items()}
    if engine["name"] == "vllm":  # SGLang has no such setting
        engine["logprobs_mode"] = getattr(rollout, "logprobs_mode", None)
    return {
        "rollout_fingerprint": {name: value for name, value in engine.items() if value is not None},
        "sampling": read_sampling(rollout),
    }


def _versions(column: Sequence[Any]) -> list[int] | None:
    """One version per sample; None unless the engine told all of them."""
    known = [value is not None for value in column]
    return [int(value) for value in column] if known and all(known) else None


def _only(fields: Mapping[str, Any], rows: list[int] | None) -> dict[str, Any]:
    """`fields` with these rows of what is per sample; None: all of them."""
    if rows is None:
        return dict(fields)
    count = len(fields["token_ids"])

    def taken(value: Any) -> Any:
        if isinstance(value, Mapping) or not hasattr(value, "__len__") or len(value) != count:
            return value
        return [value[row] for row in rows] if isinstance(value, list) else value[rows]

    return {name: taken(value) for name, value in fields.items()}


def _column(batch: Mapping[str, Any], names: set[str], name: str) -> Any:
    """A column, or None. A TensorDict raises for unknown keys, and its `get` may warn."""
    return batch[name] if name in names else None
