"""verl: the driver compares q and p in one function; that is where both are read.

verl loads the entry point `verl.plugins: twinscope` in every process that imports it. With
TWINSCOPE_VERL=1 it wraps `verl.utils.debug.metrics.calculate_debug_metrics`, which the V1, V0 and
separated trainers (one-step-off, fully asynchronous) call in the driver after `old_log_probs` and
before the update, and around it:

    _compute_old_log_prob           which trainer it is, so the step; V1: versions; V0: entropy
    _compute_ref_log_prob           V0 and separated: the reference
    compute_advantage_for_...       V1: the reference and the reward, fetched for the advantage
    _fit_update_weights             separated: the number that the weights were given
    Tracking.log                    reward, grad_norm, entropy ...; the end of the step

Nothing is computed or fetched for us. Where verl skips the comparison nothing is compared: in
bypass mode (p is never computed) and with `rollout.calculate_log_probs=False`. Both are told, from
where the trainers decide it. What a step becomes is verl_step.py's affair.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from twinscope.errors import DidNotAttach
from twinscope.hosts.attach import Attachment, Host, when_imported, wrap
from twinscope.hosts.verl_step import Driver, read_batch

__all__ = ["read_batch", "register"]

VERL = Host("verl", "TWINSCOPE_VERL", versions=((0, 9),))
METRICS, COMPARE = "verl.utils.debug.metrics", "calculate_debug_metrics"
V0_TRAINER, V1_TRAINER = "verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.v1.trainer_base"
OLD, REF = "_compute_old_log_prob", "_compute_ref_log_prob"
V1_ADVANTAGE, ADVANTAGE = "verl.trainer.ppo.v1.utils", "compute_advantage_for_multi_trajectories"
SEPARATED, SYNC = "verl.experimental.separation.ray_trainer", "_fit_update_weights"
LOG, LOGGER = "verl.utils.tracking", "Tracking"
# Where the trainers copy q into p instead: V0 and the separated ones call a function, V1 does it.
BYPASS, BYPASS_FUNCTION = "verl.trainer.ppo.rollout_corr_helper", "apply_bypass_mode"
WHY_BYPASS = "algorithm.rollout_correction.bypass_mode: p is a copy of q, nothing is compared"
WHY_NO_Q = "actor_rollout_ref.rollout.calculate_log_probs=False: the engine is not asked"


def register() -> None:
    """What the entry point does (entry_verl.py)."""
    attachment = Attachment(VERL)
    if attachment.switch != "off":
        attachment.guard.run("register", None, lambda: _Hook(attachment).register())


class _Hook:
    """The wraps of one process. Every look at verl's objects is guarded."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        # The version is a file that verl reads before it loads plugins.
        self._version = getattr(sys.modules.get("verl"), "__version__", None)
        self._driver = Driver(attachment, self._version)
        self._refused = False

    def register(self) -> None:
        """Wrap each module right after its import; a process that needs none imports none."""
        needed = {METRICS: self._metrics, V0_TRAINER: self._v0, V1_TRAINER: self._v1}
        for name, patch in needed.items():
            when_imported(name, self._attaching(patch))
        # Without these columns, scalars or reasons are missing, and nothing else.
        more = {V1_ADVANTAGE: self._advantage, SEPARATED: self._separated, LOG: self._log,
                BYPASS: self._bypass}  # fmt: skip
        for name, patch in more.items():
            when_imported(name, self._adding(patch))

    def _attaching(self, patch: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        """`patch`; a refusal is told once, in the run's history."""

        def attach(module: ModuleType) -> None:
            self._refused = not self._attachment.attach(self._version, lambda: patch(module))

        def install(module: ModuleType) -> None:
            if not self._refused:
                self._attachment.guard.run("attach", None, lambda: attach(module))

        return install

    def _adding(self, patch: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        """`patch`, in silence where verl is another."""

        def add(module: ModuleType) -> None:
            with contextlib.suppress(DidNotAttach):
                VERL.check(self._version, self._attachment.switch)
                patch(module)

        return lambda module: self._attachment.guard.run("attach", None, lambda: add(module))

    def _look(self, look: Callable[..., None], *seen: Any, **named: Any) -> None:
        self._attachment.guard.run("verl", None, lambda: look(*seen, **named))

    def _need(self, owner: Any, name: str) -> None:
        if not callable(getattr(owner, name, None)):
            where = getattr(owner, "__name__", owner)
            raise DidNotAttach(f"verl {self._version}: {where} has no {name}")

    def _metrics(self, module: ModuleType) -> None:
        self._need(module, COMPARE)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def calculate_debug_metrics(data: Any) -> Any:
                self._look(self._compare, data)
                return original(data)

            return calculate_debug_metrics

        wrap(module, COMPARE, make)

    def _compare(self, data: Any) -> None:
        if self._attachment.first("seam"):  # the driver is known by its first call
            self._attachment.announce(self._version, seam=COMPARE)
        self._driver.compare(data)

    def _v0(self, module: ModuleType) -> None:
        """RayPPOTrainer, of which the separated trainers inherit both methods."""
        trainer = getattr(module, "RayPPOTrainer", None)
        self._need(trainer, OLD)

        def make_old(original: Callable[..., Any]) -> Callable[..., Any]:
            def compute(trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
                self._look(self._driver.begin, trainer, batch)
                answer = original(trainer, batch, *args, **kwargs)
                self._look(self._driver.computed, answer)
                return answer

            return compute

        def make_ref(original: Callable[..., Any]) -> Callable[..., Any]:
            def compute(trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
                answer = original(trainer, batch, *args, **kwargs)
                self._look(lambda: self._driver.complete(answer.batch))
                return answer

            return compute

        wrap(trainer, OLD, make_old)
        if hasattr(trainer, REF):
            wrap(trainer, REF, make_ref)

    def _v1(self, module: ModuleType) -> None:
        trainer = getattr(module, "PPOTrainer", None)
        self._need(trainer, OLD)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def compute(trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
                self._look(self._look_at_settings, trainer)
                self._look(self._driver.begin, trainer, batch)
                return original(trainer, batch, *args, **kwargs)

            return compute

        wrap(trainer, OLD, make)

    def _advantage(self, module: ModuleType) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def compute(data: Any, batch_keys: Any, *args: Any, **kwargs: Any) -> Any:
                self._look(lambda: self._driver.complete(data.batch, batch_keys))
                return original(data, batch_keys, *args, **kwargs)

            return compute

        self._need(module, ADVANTAGE)
        wrap(module, ADVANTAGE, make)

    def _separated(self, module: ModuleType) -> None:
        """One-step-off hands its weights over within the step, by this method.

        The manager that it calls is left alone: that looks whether its caller awaits it.
        """

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def update_weights(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                self._look(self._driver.synced, trainer)
                return original(trainer, *args, **kwargs)

            return update_weights

        self._need(trainer := getattr(module, "SeparateRayPPOTrainer", None), SYNC)
        wrap(trainer, SYNC, make)

    def _log(self, module: ModuleType) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def log(tracking: Any, data: Any, step: Any, *args: Any, **kwargs: Any) -> Any:
                answer = original(tracking, data, step, *args, **kwargs)
                self._look(self._driver.log, data, step)
                return answer

            return log

        self._need(tracking := getattr(module, LOGGER, None), "log")
        wrap(tracking, "log", make)

    def _bypass(self, module: ModuleType) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def apply(*args: Any, **kwargs: Any) -> Any:
                self._look(self._tell, "old_log_probs", WHY_BYPASS)
                return original(*args, **kwargs)

            return apply

        self._need(module, BYPASS_FUNCTION)
        wrap(module, BYPASS_FUNCTION, make)

    def _look_at_settings(self, trainer: Any) -> None:
        """V1 decides here whether there will be two sides."""
        config = trainer.config
        if (config.algorithm.get("rollout_correction") or {}).get("bypass_mode", False):
            self._tell("old_log_probs", WHY_BYPASS)
        elif not config.actor_rollout_ref.rollout.calculate_log_probs:
            self._tell("rollout_log_probs", WHY_NO_Q)

    def _tell(self, field: str, why: str) -> None:
        if self._attachment.first(field):
            self._attachment.probe().event("host_side_missing", host="verl", field=field, why=why)
