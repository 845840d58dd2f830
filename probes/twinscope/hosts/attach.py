"""How a hook gets into a host: switched on by name, at the right moment, or not at all.

A hook for a framework is installed with the probes and does nothing until its variable is set:

    TWINSCOPE_VLLM=1          attach to the versions that the hook was tested against
    TWINSCOPE_VLLM=untested   attach to other versions too, if the hook's own check passes

Switched on, it either attaches and says so (event `host_attached`), or refuses with the reason
(DidNotAttach: logged, event `host_refused`). Neither ever stops the host. A run without either
event is one in which the hook was never loaded.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from twinscope.errors import DidNotAttach
from twinscope.guard import Guard
from twinscope.probe import Probe

logger = logging.getLogger("twinscope")
Switch = Literal["off", "on", "untested"]
MARK = "__twinscope_original__"  # of a wrapped function: what it was before


@dataclass(frozen=True)
class Host:
    """A framework that a hook knows.

    `versions`: the releases it was written against, (major, minor) for all patches of one or
    (major, minor, patch) for those from that patch on.
    """

    name: str
    variable: str
    versions: tuple[tuple[int, ...], ...]

    def switch(self, environment: Mapping[str, str]) -> Switch:
        """What the user chose; a word that means nothing is off, and said so."""
        word = environment.get(self.variable, "").strip().lower()
        if word in ("", "0", "false", "no", "off"):
            return "off"
        if word in ("1", "true", "yes", "on"):
            return "on"
        if word == "untested":
            return "untested"
        logger.warning("twinscope: %s=%s: use 1, 0 or untested; taken as 0", self.variable, word)
        return "off"

    def check(self, version: str | None, switch: Switch) -> None:
        """Raise DidNotAttach unless this version was tested or the user insists."""
        if switch == "untested" or self._knows(version or ""):
            return
        raise DidNotAttach(
            f"{self.name} {version}: the hook was tested with {spell(self.versions)}; to try it "
            f"all the same set {self.variable}=untested"
        )

    def _knows(self, version: str) -> bool:
        found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
        if found is None:
            return False
        major, minor, patch = int(found[1]), int(found[2]), int(found[3] or 0)
        return any(
            known[:2] == (major, minor) and patch >= (*known, 0)[2] for known in self.versions
        )


def minors(major: int, first: int, last: int) -> tuple[tuple[int, int], ...]:
    """For `Host.versions`: every minor version from `first` to `last`, both included."""
    return tuple((major, minor) for minor in range(first, last + 1))


def spell(versions: Sequence[tuple[int, ...]]) -> str:
    """For people: "0.23 to 0.33", "1.7, 1.16", or "0.5 (from 0.5.11)"."""
    runs: list[list[tuple[int, ...]]] = []
    for known in versions:
        follows = runs and len(known) == 2 and runs[-1][-1] == (known[0], known[1] - 1)
        runs = [*runs[:-1], [*runs[-1], known]] if follows else [*runs, [known]]
    return ", ".join(_spell_run(run) for run in runs)


def _spell_run(run: Sequence[tuple[int, ...]]) -> str:
    words = [".".join(map(str, known[:2])) for known in (run[0], run[-1])]
    if len(run) > 1:
        return (" to " if len(run) > 2 else ", ").join(words)
    return words[0] + (f" (from {'.'.join(map(str, run[0]))})" if run[0][2:] else "")


class Attachment:
    """One hook in this process: its guard, and a probe that is made at first need."""

    def __init__(
        self,
        host: Host,
        *,
        environment: Mapping[str, str] | None = None,
        make_probe: Callable[[], Probe] = Probe,
    ) -> None:
        self.host = host
        self.environment = os.environ if environment is None else environment
        raising = self.environment.get("TWINSCOPE_RAISE", "") == "1"
        self.guard = Guard(raise_errors=raising)
        self._make_probe = make_probe
        self._probe: Probe | None = None  # None: not needed yet
        self._said: set[str] = set()
        self._lock = threading.Lock()

    @property
    def switch(self) -> Switch:
        """What the user chose."""
        return self.host.switch(self.environment)

    def probe(self) -> Probe:
        """The process's probe for this host."""
        with self._lock:
            if self._probe is None:
                self._probe = self._make_probe()
            return self._probe

    def first(self, what: str) -> bool:
        """Whether this is the first time: what a host shows at every step is told once."""
        with self._lock:
            known = what in self._said
            self._said.add(what)
            return not known

    def attach(self, version: str | None, install: Callable[[], None]) -> bool:
        """Check the version, install the hook; a refusal is told, not raised. True: attached."""
        try:
            self.host.check(version, self.switch)
            install()
        except DidNotAttach as refusal:
            logger.warning("twinscope did not attach: %s", refusal)
            self.guard.run("refuse", None, functools.partial(self._tell, version, str(refusal)))
            return False
        return True

    def _tell(self, version: str | None, reason: str) -> None:
        self.probe().event("host_refused", host=self.host.name, version=version, reason=reason)

    def announce(self, version: str | None, **facts: Any) -> None:
        """Tell the service that the hook is in place and what it will see."""
        self.probe().event("host_attached", host=self.host.name, version=version, **facts)


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace `owner.name` by `make(original)`, once however often it is called."""
    original = getattr(owner, name)
    if hasattr(original, MARK):
        return
    wrapped = functools.wraps(original)(make(original))
    setattr(wrapped, MARK, original)
    setattr(owner, name, wrapped)


def unwrap(owner: Any, name: str) -> None:
    """Put back what `wrap` replaced."""
    original = getattr(getattr(owner, name), MARK, None)
    if original is not None:
        setattr(owner, name, original)


def is_wrapped(owner: Any, name: str) -> bool:
    """Whether `wrap` was here."""
    return hasattr(getattr(owner, name, None), MARK)


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """`action(module)`: now if the module is loaded, else right after its import.

    Frameworks load plugins in processes that never need the module (workers, data loaders):
    importing it there for the hook's sake would cost them seconds and memory.
    """
    module = sys.modules.get(name)
    if module is not None:
        action(module)
    else:
        sys.meta_path.insert(0, _ImportWatch(name, action))


class _ImportWatch(importlib.abc.MetaPathFinder):
    """Lets the import of one module run as ever, then acts. Goes away with the first import."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the others find, with a loader that acts afterwards."""
        if fullname != self._name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec.loader, self._action)
        return spec


class _ActingLoader(importlib.abc.Loader):
    """A loader that calls `action(module)` once the module has been executed."""

    def __init__(self, loader: Any, action: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the loader does."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does, which then takes its place again."""
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
