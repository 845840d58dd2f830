"""`twinscope doctor`: what is installed, what would attach, what it would see, what arrived."""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import importlib.util
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from twinscope.hosts.known import HOST_VARIABLES, KNOWN, Known

Mark = Literal["good", "note", "bad"]
SIGNS: dict[Mark, str] = {"good": "ok", "note": "--", "bad": "!!"}
EVENTS = 1000
REFUSED = {
    401: "set TWINSCOPE_TOKEN to the service's token, or to the one of this run",
    403: "this token opens another run: check TWINSCOPE_RUN (--run)",
}
MOST_LOST = 5  # processes without a sign of life that are named
# Framework -> the group of entry points it loads, and its variable that can leave some out.
ENTRY_GROUPS = {
    "vLLM": ("vllm.general_plugins", "VLLM_PLUGINS"),
    "SGLang": ("sglang.srt.plugins", "SGLANG_PLUGINS"),
    "verl": ("verl.plugins", "VERL_USE_EXTERNAL_PLUGINS"),
}


# Read by tests and by the FPGA tools only.
TOOL_VARIABLES = (
    "TWINSCOPE_FPGA_DEVICE", "TWINSCOPE_RTL_CACHE", "TWINSCOPE_SERVICE_PYTHON",
    "TWINSCOPE_SIM_SEEDS", "TWINSCOPE_TRACES", "TWINSCOPE_WHEELS",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    area: str  # probe, host, service, run
    mark: Mark
    text: str


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "doctor",
        help="what is installed here, what would attach, what the service has heard",
        description="Run it in the environment of the engine or the trainer. Imports no framework. "
        "Exit status: 0 nothing is in the way, 1 something is.",
    )
    parser.add_argument("--url", help="the service (default: TWINSCOPE_URL)")
    parser.add_argument("--run", dest="run_name", help="ask what arrived for this run")
    parser.add_argument("--json", action="store_true", help="a list of findings")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look, print, and turn what is in the way into the exit status."""
    url = args.url or os.environ.get("TWINSCOPE_URL")
    name = args.run_name or os.environ.get("TWINSCOPE_RUN")
    findings = [*probe_findings(os.environ), *variable_findings(os.environ)]
    findings += host_findings(os.environ)
    findings += service_findings(url, os.environ.get("TWINSCOPE_TOKEN"), name)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    return 1 if any(finding.mark == "bad" for finding in findings) else 0


def _print(findings: list[Finding]) -> None:
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            print(area)
        print(f"  {SIGNS[finding.mark]}  {finding.text}")


def probe_findings(environment: Mapping[str, str]) -> list[Finding]:
    """The probe's own settings, as a probe made here would read them."""
    import twinscope
    from twinscope.settings import resolve_settings

    settings = resolve_settings({}, environment)
    found = [
        Finding(
            "probe",
            "good",
            f"twinscope {twinscope.__version__}, Python {platform.python_version()}",
        )
    ]
    found += [Finding("probe", "bad", problem) for problem in settings.problems]
    if settings.off_because:
        found.append(Finding("probe", "bad", f"off here: {settings.off_because}"))
    else:
        found.append(Finding("probe", "good", f"run {settings.run!r} to {settings.url}"))
    spool = settings.spool_dir or "none: what the service misses beyond the buffer is lost"
    return [*found, Finding("probe", "note", f"spool {spool}")]


def known_variables() -> set[str]:
    """Every environment variable that some part of TwinScope reads."""
    from twinscope.settings import SETTINGS

    switches = {name for known in KNOWN for name in (known.switch, known.insist) if name}
    probe = {setting.variable for setting in SETTINGS}
    return switches | probe | service_variables() | {*HOST_VARIABLES, *TOOL_VARIABLES}


def service_variables() -> set[str]:
    """Those of the service; none where it is not installed, as beside a trainer."""
    if importlib.util.find_spec("pydantic_settings") is None:
        return set()
    from twinscope_service.config import ENV_PREFIX, Settings

    return {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}


def variable_findings(environment: Mapping[str, str]) -> list[Finding]:
    """Variables that nobody reads: a misspelt one looks like a setting that has no effect.

    Where the service is not installed its variables are not known: only what resembles one of the
    probes' is told, and as a note.
    """
    known, whole = known_variables(), bool(service_variables())
    found: list[Finding] = []
    if not whole:
        unknown = "the service is not installed here: its variables are not checked"
        found.append(Finding("probe", "note", unknown))
    for name in sorted(environment):
        if not name.upper().startswith("TWINSCOPE") or name in known:
            continue
        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
        if near or whole:
            text = f"{name} is not a variable of TwinScope and has no effect"
            hint = f": did you mean {near[0]}?" if near else ""
            found.append(Finding("probe", "bad" if near and whole else "note", text + hint))
    return found


def host_findings(environment: Mapping[str, str]) -> list[Finding]:
    """Each framework that is installed: whether its hook would attach, and what q or p is there."""
    found: list[Finding] = []
    for known in KNOWN:
        version = _version(known.packages)
        if version is None or not _is_it(known):
            continue
        found += [_hook(known, version, environment), *_entry_point(known.name, environment)]
        meanings = {"q": known.q, "p": known.p}
        found += [
            Finding("hosts", "note", f"{known.name}: {letter} is {meaning}")
            for letter, meaning in meanings.items()
            if meaning
        ]
    names = ", ".join(known.name for known in KNOWN)
    return found or [Finding("hosts", "note", f"none of {names} is installed here")]


def _version(packages: tuple[str, ...]) -> str | None:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _is_it(known: Known) -> bool:
    """False for another project's distribution of the same name, or a placeholder's.

    Looks where the package lies; importing nothing.
    """
    if known.folder is None:
        return True
    package, inner = known.folder.split("/")
    spec = importlib.util.find_spec(package)
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return any(Path(place, inner).is_dir() for place in places)


def _hook(known: Known, version: str, environment: Mapping[str, str]) -> Finding:
    from twinscope import DidNotAttach
    from twinscope.hosts.attach import Host

    title = f"{known.name} {version}"
    host = Host(known.name, known.switch or known.insist or "", known.versions)
    switch = host.switch(environment)
    if known.switch is None and switch != "untested":
        switch = "on"  # called by hand: being there is being on
    try:
        if known.versions:
            host.check(version, switch)
    except DidNotAttach as refusal:
        return Finding("hosts", "bad" if switch != "off" else "note", f"{title}: {refusal}")
    if switch == "off":
        return Finding("hosts", "note", f"{title}: supported, not switched on; {known.attach}")
    return Finding("hosts", "good", f"{title}: {known.attach}")


def _entry_point(name: str, environment: Mapping[str, str]) -> list[Finding]:
    """Frameworks can be told to skip plugins: then a hook is installed, switched on, and silent."""
    if name not in ENTRY_GROUPS:
        return []
    group, variable = ENTRY_GROUPS[name]
    if "twinscope" not in {entry.name for entry in importlib.metadata.entry_points(group=group)}:
        text = f"{name}: entry point {group} is missing: reinstall twinscope"
        return [Finding("hosts", "bad", text)]
    allowed = environment.get(variable)
    if allowed not in (None, "auto") and "twinscope" not in str(allowed).split(","):
        text = f"{name}: {variable}={allowed} keeps the hook out: add twinscope to it"
        return [Finding("hosts", "bad", text)]
    return []


def service_findings(url: str | None, token: str | None, run_name: str | None) -> list[Finding]:
    """Whether the service answers, and what it has heard of the run."""
    if url is None:
        return [Finding("service", "note", "no address: set TWINSCOPE_URL or pass --url")]
    try:
        status, answer = _ask(url, "/readyz", token)
        allowed, _ = _ask(url, _path(run_name) if run_name else "/v1/runs?limit=1", token)
    except (OSError, ValueError) as error:
        return [Finding("service", "bad", f"{url}: {error or type(error).__name__}")]
    text = f"{url} answers {status} on /readyz"
    if isinstance(answer, dict) and answer.get("reason"):
        text += f": {answer['reason']}; {answer['fix']}"
    found = [Finding("service", "good" if status == 200 else "bad", text)]
    if allowed in REFUSED:
        given = "the token of TWINSCOPE_TOKEN" if token else "no token"
        text = f"{url} answers {allowed} to {given}, and will to every batch: {REFUSED[allowed]}"
        return [*found, Finding("service", "bad", text)]
    return found + (_run_findings(url, token, run_name) if run_name else [])


def _path(run: str) -> str:
    """The address of a run."""
    from urllib.parse import quote

    return f"/v1/runs/{quote(run, safe='')}"


def _ask(url: str, path: str, token: str | None) -> tuple[int, Any]:
    """Status and JSON, if it is any, of one GET; the standard library, as beside a trainer."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    request = Request(url.rstrip("/") + path)
    if token:
        request.add_header("Authorization", f"Bearer {token}".encode().decode("latin-1"))
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status, _json(answer.read())
    except HTTPError as error:
        return error.code, _json(error.read())


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _run_findings(url: str, token: str | None, name: str) -> list[Finding]:
    """'The hook was never loaded' and 'it is loaded and sees nothing' are different faults."""
    path = _path(name)
    status, answer = _ask(url, f"{path}/events?limit={EVENTS}", token)
    if status != 200:
        text = f"{name!r}: nothing has arrived, not even a probe's greeting: no probe was made, or "
        return [Finding("run", "bad", text + "it has another run name, address or token")]
    events = [(event["kind"], event.get("fields", {})) for event in answer]
    kinds = [kind for kind, _ in events]
    found = [Finding("run", "good", f"{name!r}: {kinds.count('probe_attached')} probes greeted")]
    for kind, fields in events:
        if kind in READ:
            lost = kind == "probe_detached" and fields.get("dropped")  # the farewell tells it too
            mark, text = READ["probe_loss" if lost else kind]
            told = text.format_map(_Fields(fields))
            if isinstance(fields.get("not_seen"), list):
                told += f"; this version does not tell {', '.join(map(str, fields['not_seen']))}"
            found.append(Finding("run", mark, told))
    _, run = _ask(url, path, token)
    found += process_findings((run or {}).get("processes") or [])
    _, steps = _ask(url, f"{path}/steps?limit=1", token)
    if not (steps or {}).get("steps"):
        found.append(Finding("run", "bad", "no step yet: one side, or both, have sent nothing"))
    return found


def process_findings(processes: list[dict[str, Any]]) -> list[Finding]:
    """An idle process and a dead one: the former is still heard from, once a minute."""
    alive = [process for process in processes if process["state"] == "alive"]
    lost = [process for process in processes if process["state"] == "lost"]
    found: list[Finding] = []
    if alive:
        latest = min(process["last_heard_s"] for process in alive)
        text = f"{len(alive)} processes alive, last heard from {latest:.0f} s ago"
        found.append(Finding("run", "good", text))
    for process in sorted(lost, key=lambda process: process["last_heard_s"])[:MOST_LOST]:
        rank = "" if process["rank"] is None else f" (rank {process['rank']})"
        text = f"pid {process['pid']}{rank}: no sign of life for {process['last_heard_s']:.0f} s"
        found.append(Finding("run", "note" if alive else "bad", text))
    if len(lost) > MOST_LOST:
        found.append(Finding("run", "note", f"and {len(lost) - MOST_LOST} more like these"))
    return found


class _Fields(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


READ: dict[str, tuple[Mark, str]] = {
    "host_attached": ("good", "attached to {host} {version}"),
    "host_refused": ("bad", "did not attach: {reason}"),
    "host_no_logprobs": (
        "bad",
        "{host}: requests end, but none asked for log-probs (logprobs=0)",
    ),
    "host_side_missing": ("bad", "{host}: no {field}: {why}"),
    "probe_loss": ("bad", "a probe lost data: {dropped}"),
    "probe_detached": ("note", "a probe closed"),
}
