"""Following a folder: each finished step once, in order; what is unreadable is told and skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from twinscope import Probe
from twinscope.errors import TwinScopeError
from twinscope.hosts.sides import choose, send
from twinscope_service.tail.dumps import Format, Step, recognise
from twinscope_service.tail.place import Place, digest


@dataclass
class Follower:
    """What has been seen of one folder. `look()` again and again."""

    folder: Path
    form: Format | None = None  # None: recognised by what appears
    first: int = 0  # steps before it are left out
    place: Place = field(default_factory=Place)  # steps that the service has are left out too
    _done: dict[int, str] = field(default_factory=dict)  # step -> digest of its files
    _sizes: dict[int, int] = field(default_factory=dict)  # of unsettled steps, at the last look

    def look(self, *, finished: bool = False) -> Iterator[Step]:
        """Steps that became complete since the last look, in order.

        `finished`: the run is over, everything is complete.
        """
        self.form = self.form or recognise(self.folder)
        if self.form is None:
            return
        for step in self.form.find(self.folder):
            if step.number < self.first or self._knows(step):
                continue
            still = self._sizes.get(step.number) == step.size  # since the last look
            self._sizes[step.number] = step.size
            if not (step.settled or still or finished):
                return  # later steps wait for it
            self._done[step.number] = digest(step)
            self._sizes.pop(step.number)
            yield step

    def _knows(self, step: Step) -> bool:
        return self.place.has(step) or self._done.get(step.number) == digest(step)


def send_step(
    form: Format, step: Step, probe: Probe, *, tell: Callable[[str], None] = lambda _: None
) -> bool:
    """All of a step, then its end. False: nothing of it could be read, as told."""
    sent = False
    try:
        for fields in form.read(step):
            sent = send(probe, choose(fields), step=step.number) or sent
    except (TwinScopeError, KeyError, ValueError, OSError, RuntimeError) as error:
        tell(f"step {step.number}: {type(error).__name__}: {error}")
        probe.event("dump_unreadable", step=step.number, reason=str(error)[:500])
    probe.close_step(step.number)
    return sent
