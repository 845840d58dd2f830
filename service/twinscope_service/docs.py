"""The generated pages of docs/: `make docs` writes them, a test keeps them fresh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from twinscope.wire import render as wire
from twinscope_service.config import ENV_PREFIX, Settings
from twinscope_service.expose import catalogue


def render_settings() -> str:
    """docs/settings.md: every setting of the service."""
    schema = Settings.model_json_schema()["properties"]
    rows = [
        f"| `{name}` | `{ENV_PREFIX}{name.upper()}` | {_default(name)} | {about['description']} |"
        for name, about in schema.items()
    ]
    return "\n".join(
        (
            "# Settings of the service\n",
            "Generated from `twinscope_service/config.py`; do not edit. A setting comes from the",
            "command line, the environment, the TOML file of `--config`, or the default, in this",
            "order; all are checked before anything starts. The probe has its own:",
            "[probes/README.md](../probes/README.md).\n",
            "| setting | environment | default | meaning |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        )
    )


def _default(name: str) -> str:
    field = Settings.model_fields[name]
    value = field.default if field.default_factory is None else {}
    return "none" if value is None or value == {} else f"`{value}`"


def render_api() -> str:
    """docs/api.md: every endpoint, from the application itself."""
    from twinscope_service.app import build_app

    paths = build_app(Settings()).openapi()["paths"]
    parts = [
        "# HTTP API, version 1\n",
        "Generated from the application; do not edit. `GET /docs` of a running service shows the",
        "schemas too. Bodies of batches: [wire-format.md](wire-format.md). Errors are problem",
        "documents (RFC 9457) that name `field`, `value` and `fix`: 400, 413, 415, 422 for bad",
        "input (nothing is stored), 401 and 403 for tokens, 404, 408 for a stalled body, 409 for a",
        "contradicting re-send, 429 with Retry-After at a limit, 507 when the disk is full.\n",
    ]
    for path, calls in sorted(paths.items()):
        parts += [_call(path, method, call) for method, call in calls.items()]
    return "\n".join((*parts, ""))


def _call(path: str, method: str, call: dict[str, Any]) -> str:
    lines = [f"## {method.upper()} {path.replace(':path', '')}\n", call.get("description", "")]
    for parameter in call.get("parameters", []):
        if parameter["in"] == "query":
            meaning = parameter.get("description", "")
            lines.append(f"- `{parameter['name']}`: {meaning}")
    return "\n".join((*lines, *_body_fields(call), ""))


def _body_fields(call: dict[str, Any]) -> list[str]:
    """The fields of a JSON body whose schema says them; binary bodies have a page of their own."""
    content = call.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    needed = schema.get("required", [])
    return [
        f"- body `{name}`{' (required)' if name in needed else ''}: {about['description']}"
        for name, about in schema.get("properties", {}).items()
    ]


PAGES: dict[str, Callable[[], str]] = {
    "docs/wire-format.md": wire.render,
    "docs/metrics.md": catalogue.render_page,
    "docs/settings.md": render_settings,
    "docs/api.md": render_api,
}


def main() -> None:
    """Write every page, in the current directory's docs/."""
    for path, render in PAGES.items():
        Path(path).write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
