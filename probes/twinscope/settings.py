"""Every setting of a probe, declared once: arguments, environment variables and docs follow.

An argument wins over its environment variable, which wins over the default; an empty string is
not given (`os.environ.get("MY_URL", "")`). An unusable argument is a programmer's mistake and
raises ConfigError where the probe is made. An unusable environment variable comes from a launcher,
perhaps hours into a queue: it never stops the host. The probe takes the default instead (or
switches itself off where the address is the problem), logs the variable, the value and the fix
once, and lists them in `stats().config_problems`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from twinscope.errors import ConfigError

Kind = Literal["url", "name", "text", "pem", "flag", "bytes", "seconds"]
RUN_CHARACTERS = 200  # the same limit as the wire's `run`


@dataclass(frozen=True)
class Setting:
    """One setting: an argument of `Probe` and an environment variable."""

    name: str
    variable: str
    kind: Kind
    default: Any  # str | bool | int | float | None, by `kind`
    meaning: str


SETTINGS: tuple[Setting, ...] = (
    Setting("url", "TWINSCOPE_URL", "url", None, "address of the service, e.g. `http://127.0.0.1:8321`; without it the probe is off"),  # noqa: E501
    Setting("run", "TWINSCOPE_RUN", "name", "default", "name of the run; every rank and engine of a job must use the same"),  # noqa: E501
    Setting("token", "TWINSCOPE_TOKEN", "text", None, "bearer token, if the service asks for one"),
    Setting("disabled", "TWINSCOPE_DISABLED", "flag", False, "1: every call does nothing, whatever else is set"),  # noqa: E501
    Setting("buffer_bytes", "TWINSCOPE_BUFFER_BYTES", "bytes", 256 << 20, "most bytes of captured tensors held in memory; beyond it the oldest are dropped and counted"),  # noqa: E501
    Setting("post_bytes", "TWINSCOPE_POST_BYTES", "bytes", 8 << 20, "larger batches are sent as several posts, split between samples"),  # noqa: E501
    Setting("spool_dir", "TWINSCOPE_SPOOL_DIR", "text", None, "folder for trace files while the service is away; without it nothing touches the disk"),  # noqa: E501
    Setting("spool_bytes", "TWINSCOPE_SPOOL_BYTES", "bytes", 1 << 30, "most bytes one process keeps in the spool; beyond it the oldest files are dropped and counted"),  # noqa: E501
    Setting("timeout_s", "TWINSCOPE_TIMEOUT_S", "seconds", 30.0, "one post, from connecting to the last byte of the answer"),  # noqa: E501
    Setting("retry_s", "TWINSCOPE_RETRY_S", "seconds", 600.0, "how long a post is tried again that is answered with an error (5xx), or not as TwinScope answers"),  # noqa: E501
    Setting("exit_timeout_s", "TWINSCOPE_EXIT_TIMEOUT_S", "seconds", 2.0, "longest wait for pending data when the interpreter exits"),  # noqa: E501
    Setting("heartbeat_s", "TWINSCOPE_HEARTBEAT_S", "seconds", 60.0, "seconds between two signs of life of this process; 0: only the greeting at its start"),  # noqa: E501
    Setting("ca_file", "TWINSCOPE_CA_FILE", "pem", None, "PEM file of the authority that signed an https service's certificate"),  # noqa: E501
    Setting("send_hostname", "TWINSCOPE_SEND_HOSTNAME", "flag", False, "1: the greeting carries the host name"),  # noqa: E501
    Setting("raise_errors", "TWINSCOPE_RAISE", "flag", False, "1: the guard re-raises instead of counting; for tests of the probe, never in a run"),  # noqa: E501
)  # fmt: skip


@dataclass(frozen=True)
class ProbeSettings:
    """The settings of one probe, each already checked. Meanings: `SETTINGS`."""

    url: str | None = None  # None: no service, the probe is off
    run: str = "default"
    token: str | None = None  # None: the service asks for none
    disabled: bool = False
    buffer_bytes: int = 256 << 20
    post_bytes: int = 8 << 20
    spool_dir: str | None = None  # None: no spool
    spool_bytes: int = 1 << 30
    timeout_s: float = 30.0
    retry_s: float = 600.0
    exit_timeout_s: float = 2.0
    heartbeat_s: float = 60.0
    ca_file: str | None = None  # None: the system's authorities
    send_hostname: bool = False
    raise_errors: bool = False
    problems: tuple[str, ...] = ()  # environment variables that could not be used

    @property
    def off_because(self) -> str | None:
        """Why the probe does nothing; None when it is on."""
        if self.disabled:
            return "TWINSCOPE_DISABLED or disabled=True"
        if self.url is None:
            return "no address: pass url= or set TWINSCOPE_URL"
        return None


def resolve_settings(arguments: Mapping[str, Any], environment: Mapping[str, str]) -> ProbeSettings:
    """Settings from arguments (None or "": not given, unusable: ConfigError) and environment."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for setting in SETTINGS:
        given = arguments.get(setting.name)
        text = environment.get(setting.variable, "").strip()
        if given is not None and not (isinstance(given, str) and not given.strip()):
            values[setting.name] = read_value(setting, given, source=f"{setting.name}=")
        elif text:
            try:
                values[setting.name] = read_value(setting, text, source=setting.variable)
            except ConfigError as error:
                problems.append(str(error))
    return ProbeSettings(**values, problems=tuple(problems))


def read_value(setting: Setting, value: Any, *, source: str) -> Any:
    """The checked value of one setting. Raises ConfigError naming `source`, value and fix."""
    try:
        return _READERS[setting.kind](value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{source}: got {value!r}; {error}") from None


def _read_url(value: Any) -> str:
    from urllib.parse import urlsplit

    fix = "use http://host:port or https://host:port"
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        raise ValueError(fix)
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(fix)
    if parts.username or parts.password:
        raise ValueError("put the secret into the token, not into the address")
    if parts.query or parts.fragment:
        raise ValueError("leave out what follows ? or #")
    return value.rstrip("/")


def _read_name(value: Any) -> str:
    good = isinstance(value, str) and 1 <= len(value) <= RUN_CHARACTERS and value.isprintable()
    if not good or value in (".", ".."):
        raise ValueError(f"use 1 to {RUN_CHARACTERS} printable characters")
    return str(value)


def _read_text(value: Any) -> str:
    text = os.fspath(value) if isinstance(value, str) or hasattr(value, "__fspath__") else ""
    if not text or not text.isprintable():
        raise ValueError("use a string of printable characters")
    return text


def _read_pem(value: Any) -> str:
    """A file of certificates, loaded once here, so that it fails at start and not at midnight."""
    import ssl

    try:
        ssl.create_default_context(cafile=_read_text(value))
    except OSError as error:  # not there, not readable, or no certificate in it
        raise ValueError(f"use a readable PEM file ({error})") from None
    return _read_text(value)


def _read_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("use 1 or 0")


def _read_bytes(value: Any) -> int:
    number = int(value) if not isinstance(value, bool) else 0
    if not 1 <= number < 1 << 48:
        raise ValueError("use a whole number of bytes, at least 1")
    return number


def _read_seconds(value: Any) -> float:
    number = float(value) if not isinstance(value, bool) else -1.0
    if not 0 <= number <= 86_400:  # also refuses NaN
        raise ValueError("use seconds from 0 to 86400")
    return number


_READERS: Mapping[Kind, Callable[[Any], Any]] = {
    "url": _read_url,
    "name": _read_name,
    "text": _read_text,
    "pem": _read_pem,
    "flag": _read_flag,
    "bytes": _read_bytes,
    "seconds": _read_seconds,
}


def render_table() -> str:
    """The settings as a Markdown table: probes/README.md carries it, a test keeps it fresh."""
    rows = ["| variable | argument | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{s.variable}` | `{s.name}` | {_show(s.default)} | {s.meaning} |" for s in SETTINGS
    ]
    return "\n".join(rows)


def _show(default: Any) -> str:
    if default is None:
        return "none"
    return f"`{int(default) if isinstance(default, bool) else default}`"
