# ruff: noqa: E501  (one declaration per line reads as the table it is)
"""Every setting of the service, once: type, default, bounds, meaning; docs/settings.md follows.

A setting comes, in this order, from the command line, the environment (`TWINSCOPE_` and the name in
capitals), the TOML file of `--config`, the default. All are checked before anything starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import tomllib
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from twinscope.errors import ConfigError
from twinscope_service.alert.target import parse_targets, parse_windows

ENV_PREFIX = "TWINSCOPE_"
MODEL_CLASSES = ("aligned", "dense", "dense_fp16", "moe", "moe_replay", "fp8", "hybrid")
EngineName = Literal["cpu", "torch", "cuda", "reference", "fpga", "fpga-emulator"]


class Settings(BaseSettings):
    """The service's settings, frozen."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", protected_namespaces=()
    )

    # fmt: off
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on. Loopback unless told otherwise; set `token` before opening it.")
    published: str = Field(default="", description="Address at which others reach the port, where that is not `host`: a container's. If it is not loopback, the service does not start without a token.")
    port: int = Field(default=8321, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    data_dir: Path = Field(default=Path("twinscope-data"), description="Folder of the database and of the bodies that wait. One service per folder.")
    token: str | None = Field(default=None, min_length=1, repr=False, description="Bearer token for every call. Unset: no authentication.")
    run_tokens: dict[str, str] = Field(default_factory=dict, repr=False, description='Bearer tokens that open one run each: {"run": "token"} (JSON in the environment).')

    engine: EngineName = Field(default="cpu", description="Measure engine: cpu, torch, cuda, reference, fpga or fpga-emulator.")
    clamp: float = Field(default=20.0, gt=0, le=80, description="Bound of |log ratio| in aggregates, nats; what is beyond is counted.")
    clip: tuple[float, float] = Field(default=(0.8, 1.2), description="Ratio range of the trainer's PPO clip, for the share of tokens clipped before any update.")
    block_tokens: int = Field(default=4_000_000, ge=1000, description="Tokens measured at a time: bounds the memory of one measurement.")

    step_grace_s: float = Field(default=30.0, gt=0, description="A step closes this long after its last train-side data, seconds, if it was neither complete nor closed by a call.")
    max_pending_tokens: int = Field(default=128_000_000, ge=1, description="Tokens that may wait for their other side, all runs together; beyond it batches get 429.")
    max_pending_samples: int = Field(default=2_000_000, ge=1, description="Samples that may wait for their other side, all runs together; beyond it batches get 429.")
    pending_ttl_s: float = Field(default=3600.0, gt=0, description="A sample without its other side is given up after this time, seconds, and counted.")
    remember_steps: int = Field(default=64, ge=1, le=10_000, description="Closed steps per run whose samples are remembered, to tell a late or repeated sample from a new one.")
    max_runs: int = Field(default=1000, ge=1, description="Runs with data in memory at a time; beyond it a new run gets 429.")

    max_body_bytes: int = Field(default=1 << 30, ge=1024, description="Largest binary body, bytes; beyond it 413.")
    max_json_bytes: int = Field(default=16 << 20, ge=1024, description="Largest JSON body, bytes; beyond it 413.")
    max_header_bytes: int = Field(default=8 << 20, ge=1024, description="Largest header of a batch, bytes.")
    max_samples: int = Field(default=1 << 17, ge=1, description="Most samples in one batch.")
    max_tokens: int = Field(default=1 << 28, ge=1, description="Most tokens in one batch.")
    max_inflight_bytes: int = Field(default=2 << 30, ge=1024, description="Bytes of bodies being received at a time; beyond it 429.")
    body_timeout_s: float = Field(default=60.0, gt=0, description="A body that stalls this long, seconds, ends with 408.")

    durability: Literal["process", "power"] = Field(default="process", description="What an acknowledged batch survives: `process` the death of the process, `power` also of the machine (fsync per batch).")
    retention_age_s: float = Field(default=90 * 86400.0, gt=0, description="Closed steps older than this, seconds, are removed.")
    retention_bytes: int = Field(default=20 << 30, ge=1 << 20, description="Size of the database beyond which the oldest evidence, then rows, then steps are removed, bytes.")
    rows_retention_steps: int = Field(default=5000, ge=0, description="Latest steps per run whose per-sample rows are kept.")
    evidence_retention_steps: int = Field(default=500, ge=0, description="Latest steps per run whose evidence is kept.")
    resend_memory_s: float = Field(default=86400.0, gt=0, description="The id of a finished batch is remembered this long, seconds; sent again within it, it is a duplicate.")
    run_retention_s: float = Field(default=6 * 3600.0, gt=0, description="A run that is quiet this long, seconds, leaves /metrics and memory; its history stays.")

    min_tokens: int = Field(default=1000, ge=1, description="Counted tokens that a verdict needs. A smaller step is judged together with up to 31 small steps before it; if all of them are too few, it is `unknown`.")
    min_coverage: float = Field(default=0.5, ge=0, le=1, description="Share of the train side's samples that must have been joined; below it a step is never `ok`.")
    max_unusable: float = Field(default=0.05, ge=0, le=1, description="Share of unmasked tokens that may be non-finite, sentinels or positive; above it a step is never `ok`.")
    model_class: Literal["auto", "aligned", "dense", "dense_fp16", "moe", "moe_replay", "fp8", "hybrid"] = Field(default="auto", description="Class of the level bands; `auto` reads it from the fingerprints, `dense` if they say nothing.")
    k3_warn: dict[str, float] = Field(default_factory=dict, description="Per class: rollout_train_kl above which a reason is given. Unset: our synthesis of published figures.")
    k3_bound: dict[str, float] = Field(default_factory=dict, description="Per class: rollout_train_kl above which a step is `inconsistent`. Unset: our synthesis of published figures.")

    detect_target_arl: float = Field(default=10_000.0, gt=0, description="Healthy steps between two false alarms of one watched series, on average; the thresholds follow from it.")
    detect_min_ratio: float = Field(default=1.15, ge=1, description="A certain shift by a smaller factor is learnt, not reported.")
    detect_min_change: float = Field(default=0.005, ge=0, description="The same for series that are watched on a linear scale.")
    detect_spike_ratio: float = Field(default=2.0, ge=1, description="A spike exceeds the run's median at least by this factor.")
    detect_growth_doubling_steps: float = Field(default=500.0, ge=1, description="Growth that needs more steps to double is not reported.")
    detect_resolve_steps: int = Field(default=20, ge=1, description="Steps back at the old level before a shift is resolved.")
    detect_bypass_steps: int = Field(default=2, ge=1, description="Steps with identical log-probs on all tokens before `bypass` fires.")
    detect_silence_steps: int = Field(default=3, ge=1, description="Steps in a row without a side or a metric before `silence` fires.")
    detect_silence_periods: float = Field(default=3.0, ge=1, description="And this many median step times without any step before `silence` fires.")
    detect_silence_seconds: float = Field(default=900.0, ge=1, description="But `silence` never fires before so many seconds without a step.")

    tokenizer: Path | None = Field(default=None, description="A tokenizer.json with which the page shows tokens as text. Unset: as ids.")

    alert_targets: list[dict[str, Any]] = Field(default_factory=list, repr=False, description="Who is told of alerts: tables with name, type (webhook, alertmanager, apprise) and url; see docs/alerts.md (JSON in the environment).")
    alert_silences: list[dict[str, Any]] = Field(default_factory=list, description="When nobody is told: tables with runs, kinds and either start and end or daily; see docs/alerts.md (JSON in the environment).")
    alert_repeat_s: float = Field(default=4 * 3600.0, ge=60, le=366 * 86400.0, description="A firing alert is told again after this time, seconds.")
    external_url: str = Field(default="", description="Address of this service in links of alerts. Unset: http://host:port.")
    runbook_url: str = Field(default="", description="Where the runbooks are, in links of alerts: a copy of docs/ with runbooks/ and causes/. Unset: the service's own pages.")
    # fmt: on

    @field_validator("clip")
    @classmethod
    def _clip_brackets_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] < 1 < value[1]:
            raise ValueError("give (low, high) with 0 < low < 1 < high")
        return value

    @field_validator("k3_warn", "k3_bound")
    @classmethod
    def _known_classes(cls, value: dict[str, float]) -> dict[str, float]:
        for name, bound in value.items():
            if name not in MODEL_CLASSES or not bound > 0:
                raise ValueError(f"{name}={bound}: positive numbers for {', '.join(MODEL_CLASSES)}")
        return value

    @field_validator("alert_targets")
    @classmethod
    def _known_targets(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        parse_targets(value)  # here too, so that its errors are told together with all others
        return value

    @field_validator("alert_silences")
    @classmethod
    def _known_windows(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        parse_windows(value)
        return value

    @model_validator(mode="after")
    def _bodies_fit_in_flight(self) -> Settings:
        if self.max_inflight_bytes < self.max_body_bytes:
            raise ValueError("max_inflight_bytes must be at least max_body_bytes")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The command line, then the environment; the file is laid under them by `load_settings`."""
        return (init_settings, env_settings)


def load_settings(*, config: Path | None = None, **overrides: Any) -> Settings:
    """Read and check the settings. `overrides`: from the command line; they win over everything.

    Raises ConfigError that names each unusable setting, its value and the fix.
    """
    environment = _environment_names()
    file = {} if config is None else _read_file(config)
    beneath = {key: value for key, value in file.items() if key not in environment}
    try:
        return Settings(**{**beneath, **overrides})
    except ValidationError as error:
        raise ConfigError(_explain(error)) from error
    except ValueError as error:  # the environment held something that is no JSON
        raise ConfigError(f"{error}; dictionaries are given as JSON") from error


def _environment_names() -> set[str]:
    import os

    present = {name.upper() for name in os.environ}
    return {name for name in Settings.model_fields if f"{ENV_PREFIX}{name}".upper() in present}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}; give a readable file") from error
    except ValueError as error:
        raise ConfigError(f"--config {path}: {error}; give TOML") from error


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        name = str(problem["loc"][0]) if problem["loc"] else "settings"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{name}: no such setting; docs/settings.md lists them")
            continue
        own = problem["msg"].removeprefix("Value error, ")
        if own.startswith(f"{name}["):  # names the entry and the key by itself
            lines.append(own)
            continue
        secret = name in ("token", "run_tokens", "alert_targets")
        value = "(not shown)" if secret or name == "settings" else repr(problem["input"])[:120]
        said = f"got {value}; {own}{_meaning(name)}"
        lines.append(f"{name} ({ENV_PREFIX}{name.upper()}): {said}")
    return "unusable settings:\n  " + "\n  ".join(lines)


def _meaning(name: str) -> str:
    """What a setting is for and what it is if unset, for whoever must correct it."""
    field = Settings.model_fields.get(name)
    if field is None:
        return ""
    plain = isinstance(field.default, str | int | float) and field.default != ""
    default = f"default {field.default}: " if plain else ""
    return f" ({default}{field.description})"
