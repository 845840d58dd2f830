"""`twinscope drill`: a known fault sent into a running service, to prove that alerts arrive."""

from __future__ import annotations

import argparse
import re
import time
from contextlib import closing
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from twinscope_service.cli.address import add_service

if TYPE_CHECKING:
    from twinscope.wire.batch import Batch

RECORDING = "temperature_0.7_restored"
WITH_MORE = "healthy_bf16"  # has left padding and entropies too, and fewer sure tokens
LOUD = frozenset({"corrupt_weight_layout"})  # needs tokens that are not sure, in every sample
# Faults of which a recording exists: the thing itself, not numbers made to look like it.
RECORDED = {"temperature_not_restored": "temperature_0.7_unrestored"}
SHORT = {"temperature": "temperature_not_restored"}  # names that people type
BINARY = {"content-type": "application/x-safetensors"}
ARRIVAL_S = 60.0  # longest wait for the notifications


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "drill",
        help="prove that a known fault raises an alert and that everybody is told",
        description="Replays a recorded healthy run into a running service, then the same with a "
        "fault, and checks the whole chain: verdict, alert, notifications of every target. "
        "Exit status 0: all of it happened; 1: not all.",
    )
    parser.add_argument("--fault", metavar="NAME", default="temperature",
                        help="which fault (default: temperature); --list shows them")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="list the faults and stop")
    add_service(parser)
    parser.add_argument("--run", help="name of the run (default: drill-NAME and the time)",
                        dest="run_name")  # fmt: skip
    parser.add_argument("--healthy", type=int, default=30, help="healthy steps first, at least 25")
    parser.add_argument("--faulty", type=int, default=10, help="faulty steps after them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Drill, report, exit status."""
    from twinscope_service.lab.faults import FAULTS

    if args.list:
        for name, fault in sorted(FAULTS.items()):
            print(f"{name:<28} {fault.detail}")
        return 0
    args.fault = SHORT.get(args.fault, args.fault)
    _check(args, sorted(FAULTS))
    name = args.run_name or f"drill-{args.fault}-{int(time.time())}"
    with closing(Drill(args.url.rstrip("/"), name, token=args.token)) as drill:
        before = drill.notifications()
        drill.replay(plan(args.fault, healthy=args.healthy, faulty=args.faulty))
        return report(drill, args, before)


def _check(args: argparse.Namespace, known: list[str]) -> None:
    """Refuse what cannot work, with the fix."""
    from twinscope.errors import ConfigError

    if args.fault not in known:
        raise ConfigError(f"--fault: got {args.fault!r}; give one of {', '.join(known)}")
    if args.healthy < 25:
        raise ConfigError(f"--healthy: got {args.healthy}; the burn-in takes 20 steps, give >= 25")
    if args.faulty < 3:
        raise ConfigError(f"--faulty: got {args.faulty}; give at least 3")


def plan(fault: str, *, healthy: int, faulty: int) -> list[Batch]:
    """One recorded batch per step: healthy ones, then ones with the fault in them."""
    from twinscope_service.lab.faults import FAULTS, apply, before
    from twinscope_service.replay import before_and_after, recording

    if fault in RECORDED:
        good, bad = before_and_after(RECORDING, RECORDED[fault])
        return [good] * healthy + [bad] * faulty
    made = FAULTS[fault]
    plain = recording(RECORDING)
    if fault in LOUD or not set(made.needs) <= plain.tensors.keys():
        plain = recording(WITH_MORE)
    good, bad = before(made, plain, seed=1), apply(made, plain, seed=1)
    if not made.grows:
        return [good] * healthy + [bad] * faulty
    stages = [_mixed(good, bad, (i + 1) / faulty) for i in range(faulty)]
    return [_at_version(b, i) for i, b in enumerate([good] * healthy + stages)]


def _mixed(good: Batch, bad: Batch, share: float) -> Batch:
    """`bad` with only `share` of its change in the trainer's log-probs."""
    from dataclasses import replace

    p, q = good.tensors["train_logprobs"], bad.tensors["train_logprobs"]
    return replace(bad, tensors={**bad.tensors, "train_logprobs": p + (q - p) * share})


def _at_version(batch: Batch, version: int) -> Batch:
    """Both sides say that their weights are of this version."""
    from dataclasses import replace

    import numpy as np

    versions = np.full(batch.samples, version, np.int64)
    both = {"rollout_version": versions, "train_version": versions}
    return replace(batch, tensors={**batch.tensors, **both})


class Drill:
    """One run sent to one service, and what came of it."""

    def __init__(self, url: str, name: str, *, token: str | None) -> None:
        import httpx

        self.name = name
        headers = {b"Authorization": f"Bearer {token}".encode()} if token else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=120.0)

    def close(self) -> None:
        """Release the connection."""
        self._client.close()

    def replay(self, batches: list[Batch]) -> None:
        """Every step as one paired (or one-sided) batch, closed at once."""
        from rich.progress import track

        from twinscope.wire.codec import encode_batch
        from twinscope_service.replay import steps

        stream = steps(batches, run=self.name, samples_per_step=48, seed=0)
        for batch in track(stream, total=len(batches), description="replaying", transient=True):
            body = b"".join(bytes(piece) for piece in encode_batch(batch))
            self._post("/v1/batches", content=body, headers=BINARY)
            self._post(f"/v1/runs/{quote(self.name, safe='')}/steps/{batch.step}/close")

        # Or its quiet would raise an alarm of its own after a quarter of an hour.
        self._post("/v1/events", json={"run": self.name, "kind": "finished"})

    def _post(self, path: str, **body: Any) -> None:
        self._exchange("POST", path, **body)

    def _exchange(self, method: str, path: str, **body: Any) -> Any:
        import httpx

        from twinscope.errors import TwinScopeError

        try:
            answer = self._client.request(method, path, **body)
        except httpx.TransportError as error:
            raise TwinScopeError(
                f"{self._client.base_url}: {error}; is the service running? (twinscope serve)"
            ) from error
        if answer.status_code >= 400:
            raise TwinScopeError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer

    def get(self, path: str) -> Any:
        """A JSON answer about the run."""
        answer = self._client.get(f"/v1/runs/{quote(self.name, safe='')}{path}")
        answer.raise_for_status()
        return answer.json()

    def notifications(self) -> dict[str, Told]:
        """What became of each target's news so far, from /metrics."""
        return read_notifications(self._exchange("GET", "/metrics").text)

    def filters(self) -> dict[str, dict[str, Any]]:
        """Target -> its filter; empty for a service that does not tell."""
        answer = self._client.get("/v1/targets")
        return {each["name"]: each for each in answer.json()} if answer.is_success else {}


class Told(NamedTuple):
    """What became of the news for one target, counted since the service's start."""

    delivered: float
    waiting: float
    not_wanted: float = 0.0  # its filter does not let them pass

    def settled(self, before: Told) -> bool:
        """Nothing waits, and there was something since."""
        news = self.since(before)
        return not news.waiting and bool(news.delivered or news.not_wanted)

    def since(self, before: Told) -> Told:
        """What came after `before`; `waiting` as it is."""
        not_wanted = self.not_wanted - before.not_wanted
        return Told(self.delivered - before.delivered, self.waiting, not_wanted)


def read_notifications(text: str) -> dict[str, Told]:
    """Target -> what became of its news, from a page of /metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[tuple[str, str], float] = {}
    targets = []
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "twinscope_notifications_pending":
                targets.append(sample.labels["target"])
                found[targets[-1], "waiting"] = sample.value
            elif sample.name == "twinscope_notifications_total":
                found[sample.labels["target"], sample.labels["outcome"]] = sample.value
    return {t: Told(*(found.get((t, name), 0.0) for name in Told._fields)) for t in targets}


def report(drill: Drill, args: argparse.Namespace, before: dict[str, Told]) -> int:
    """Print each link of the chain and whether it held."""
    from rich.console import Console

    console = Console(highlight=False)
    last = drill.get(f"/steps/{args.healthy + args.faulty - 1}")
    alerts = [a for a in drill.get("/alerts") if (a["onset_step"] or 0) >= args.healthy - 1]
    good = True
    for name, held, detail in links(drill, args.fault, last, alerts, before):
        mark = {True: "[green]yes[/]", False: "[bold red]no[/]", None: "[dim]-[/]"}[held]
        good &= held is not False
        console.print(f"{mark:<12} {name:<28} ", end="")
        console.print(detail, markup=False)
    console.print(
        f"\nrun   {drill.name}\npage  {args.url.rstrip('/')}/#/runs/{quote(drill.name, safe='')}"
    )
    return 0 if good else 1


def links(
    drill: Drill, fault: str, last: Any, alerts: list[Any], before: dict[str, Told]
) -> list[tuple[str, bool | None, str]]:
    """(link of the chain, did it hold (None: nothing to hold), detail)."""
    from twinscope_service.lab.faults import FAULTS

    made = FAULTS[fault]
    cause = last["diagnosis"][0]["cause"] if last["diagnosis"] else "none"
    verdict: bool | None = last["verdict"] != "ok"
    level = ""
    if not verdict and (made.quiet or (alerts and cause == made.cause)):
        verdict, level = None, ": the level stays in its band; the alert speaks of the change"
    alerts = sorted(alerts, key=lambda alert: alert["series"] != "k3")  # else the newest
    newest = alerts[0]["message"] if alerts else "no alert since the onset"
    found: list[tuple[str, bool | None, str]] = [
        ("the verdict is not ok", verdict, f"{last['verdict']}, cause {cause}{level}"),
        ("the cause is named", *named(made.cause, last["diagnosis"])),
        ("an alert was raised", bool(alerts), newest),
    ]
    told = arrivals(drill, before) if alerts else {}
    filters = drill.filters() if not all(news.delivered for news in told.values()) else {}
    kinds = {alert["kind"] for alert in alerts}
    for target, news in told.items():
        why = ""
        if not news.delivered and news.not_wanted and not news.waiting:
            why = f": {unwanted(target, filters.get(target, {}), drill.name, kinds)}"
        elif not news.delivered:
            why = f": not within {ARRIVAL_S:.0f} s; the service's log has the reason"
        where = f"twinscope_notifications_total on /metrics{why}"
        found.append((f"{target} was told", bool(news.delivered and not news.waiting), where))
    if not told:
        found.append(("somebody was told", None, "no target is set: see alert_targets"))
    return found


def named(cause: str, diagnosis: list[Any]) -> tuple[bool | None, str]:
    """Is `cause` the first of the diagnosis? None: its data cannot tell it from the first."""
    first: Any = diagnosis[0] if diagnosis else {"cause": "none", "group": []}
    if first["cause"] == cause:
        return True, f"{cause}, confidence {first['confidence']:.2f}"
    if cause not in first["group"]:
        return False, f"{first['cause']} instead of {cause}"
    others = ", ".join(other for other in first["group"] if other != cause)
    return None, f"{cause} or {others}: what tells them apart is {first['separator']}"


def unwanted(target: str, filtered: dict[str, Any], run: str, kinds: set[str]) -> str:
    """Why the filter of a target kept the drill from it, and what would pass."""
    runs = filtered.get("runs", "*")
    if not fnmatchcase(run, runs):
        name = fitting(runs)
        fix = f"--run {name} fits it" if name else "give --run a name that fits it"
        if name == runs:
            fix = "no other name fits it: a drill would mix with that run"
        return f"{target} wants runs {runs!r} only, not {run!r}; {fix}"
    passed = filtered.get("kinds", [])
    if passed and not kinds & set(passed):
        fix = "a fault of another kind fits it, see --list"
        return f"{target} wants {', '.join(passed)} only, not {', '.join(sorted(kinds))}; {fix}"
    return f"the filter of {target} (runs, kinds, provisional in alert_targets) keeps it back"


def fitting(glob: str) -> str | None:
    """A name for a drill that matches `glob`; itself, if it is no glob; None: no easy one."""
    made = f"drill-{int(time.time())}"
    name = re.sub(r"\[(?!!)([^]])[^]]*\]", r"\1", glob.replace("?", "x").replace("*", made, 1))
    name = name.replace("*", "")
    return name if fnmatchcase(name, glob) else None


def arrivals(drill: Drill, before: dict[str, Told]) -> dict[str, Told]:
    """Target -> what became of this drill's news. Waits ARRIVAL_S at most."""
    deadline = time.monotonic() + ARRIVAL_S
    nothing = Told(0.0, 0.0)
    while True:
        now = drill.notifications()
        if time.monotonic() > deadline or all(
            news.settled(before.get(target, nothing)) for target, news in now.items()
        ):
            return {target: news.since(before.get(target, nothing)) for target, news in now.items()}
        time.sleep(0.5)
