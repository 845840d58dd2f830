"""The service's answers as plain records, for notebooks and scripts.

>>> client = Client("http://127.0.0.1:8321")            # doctest: +SKIP
>>> [run.run for run in client.runs()]                  # doctest: +SKIP
>>> client.timeline("my-run").columns["k3_mean"]        # doctest: +SKIP
>>> client.evidence("my-run", 40).tensors["rollout_logprobs"]  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from twinscope.errors import TwinScopeError
from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode
from twinscope.wire.schema import CONTENT_TYPE
from twinscope_service.views import AlertView, GateView, RunView, StepView

__all__ = ["Client", "ServiceAnswer", "Timeline"]

TIMEOUT_S = 60.0
PAGE = 500
Record = TypeVar("Record", AlertView, GateView)


class ServiceAnswer(TwinScopeError):
    """The service could not be reached, or refused. `status`: 0 or that of HTTP."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Timeline:
    """Closed steps as columns of equal length; None in a column: not known in that step.

    `columns`: metrics and scalars by name. `baseline`: low, middle and high of the healthy band.
    """

    run: str
    step: tuple[int, ...]
    verdict: tuple[str, ...]
    closed_at: tuple[float, ...]  # seconds since the epoch
    counted: tuple[int, ...]  # tokens
    cause: tuple[str | None, ...]
    columns: Mapping[str, Sequence[float | None]]
    baseline: Mapping[str, Sequence[float | None]]
    alerts: tuple[AlertView, ...]
    events: tuple[Mapping[str, Any], ...]


class Client:
    """One service. Raises ServiceAnswer for whatever it refuses. Close it, or use `with`."""

    def __init__(self, url: str = "http://127.0.0.1:8321", *, token: str | None = None) -> None:
        headers = {b"authorization": f"Bearer {token}".encode()} if token else {}
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=TIMEOUT_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def runs(self) -> list[RunView]:
        """Every run, by name."""
        return [run_of(document) for document in self._pages("/v1/runs", "runs")]

    def run(self, run: str) -> RunView:
        """One run with its last closed step."""
        return run_of(self._get(_path(run)))

    def step(self, run: str, step: int) -> StepView:
        """One step."""
        return StepView.from_json(self._get(_path(run, "steps", step)))

    def steps(self, run: str, *, after: int = -1) -> Iterator[StepView]:
        """Every step beyond `after`, in order, fetched in pages."""
        for document in self._pages(_path(run, "steps"), "steps", after=after):
            yield StepView.from_json(document)

    def timeline(self, run: str, *, last: int = 5000) -> Timeline:
        """The latest `last` closed steps as columns."""
        found = self._get(_path(run, "timeline"), last=last)
        return Timeline(
            run=found["run"],
            **{name: tuple(found[name]) for name in ("step", "verdict", "closed_at", "counted")},
            cause=tuple(found["cause"]),
            columns={**found["metrics"], **found["scalars"]},
            baseline=found["baseline"],
            alerts=tuple(_record(AlertView, alert) for alert in found["alerts"]),
            events=tuple(found["events"]),
        )

    def statistics(self, run: str, step: int) -> dict[str, Any] | None:
        """Profiles, lags and the histogram of a step, as the API gives them; None: not kept."""
        found: dict[str, Any] | None = self._get(_path(run, "steps", step, "profiles"))[
            "statistics"
        ]
        return found

    def evidence(self, run: str, step: int) -> Batch | None:
        """The kept samples of a step with their token arrays; None: none are kept."""
        answer = self._answer(_path(run, "steps", step, "evidence"), accept=CONTENT_TYPE)
        return decode(answer.content) if CONTENT_TYPE in answer.headers["content-type"] else None

    def kept(self, run: str, step: int) -> dict[str, Any]:
        """Worst tokens and kept samples as the API gives them, with text where it knows any."""
        found: dict[str, Any] = self._get(_path(run, "steps", step, "evidence"))
        return found

    def alerts(self, run: str) -> list[AlertView]:
        """Alerts, newest first."""
        return [_record(AlertView, alert) for alert in self._get(_path(run, "alerts"), limit=1000)]

    def gate(self, run: str) -> GateView:
        """The verdict of the last closed step, for a trainer that pauses or masks by it."""
        return _record(GateView, self._get(_path(run, "gate")))

    def silence(self, *, seconds: float, **about: Any) -> dict[str, Any]:
        """Tell nobody for `seconds`. `about`: run or runs (a glob); kinds, series, reason."""
        asked = {"seconds": seconds, **about}
        found: dict[str, Any] = self._ask("POST", "/v1/silences", json=asked).json()
        return found

    def silences(self) -> list[dict[str, Any]]:
        """Open silences."""
        found: list[dict[str, Any]] = self._get("/v1/silences")
        return found

    def end_silence(self, number: int) -> dict[str, Any]:
        """A silence is over now."""
        found: dict[str, Any] = self._ask("DELETE", f"/v1/silences/{number}").json()
        return found

    def _pages(self, path: str, name: str, *, after: int | str | None = None) -> Iterator[Any]:
        while True:
            beyond = {} if after is None else {"after": after}
            page = self._get(path, limit=PAGE, **beyond)
            yield from page[name]
            after = page["next"]
            if after is None:
                return

    def _get(self, path: str, **query: Any) -> Any:
        return self._answer(path, **query).json()

    def _answer(self, path: str, *, accept: str = "*/*", **query: Any) -> httpx.Response:
        return self._ask("GET", path, params=query, headers={"accept": accept})

    def _ask(self, method: str, path: str, **parts: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **parts)
        except httpx.TransportError as error:
            raise ServiceAnswer(
                f"{self._http.base_url}: {error or type(error).__name__}; is the service running "
                "there? (twinscope serve; --url names another address)"
            ) from None
        if answer.is_success:
            return answer
        raise ServiceAnswer(_problem(answer), status=answer.status_code)


def run_of(document: Mapping[str, Any]) -> RunView:
    """A RunView from the API's JSON; fields that a later version adds are passed over."""
    known = {f.name: document[f.name] for f in fields(RunView) if f.name in document}
    last = known.get("last")
    known["open_steps"] = tuple(known["open_steps"])
    return RunView(**{**known, "last": None if last is None else StepView.from_json(last)})


def _record(kind: type[Record], document: Mapping[str, Any]) -> Record:
    known = {f.name: document[f.name] for f in fields(kind) if f.name in document}
    for name in ("causes", "reasons"):
        if name in known:
            known[name] = tuple(known[name])
    return kind(**known)


def _path(run: str, *parts: object) -> str:
    return "/".join(("/v1/runs", quote(run, safe=""), *map(str, parts)))


def _problem(answer: httpx.Response) -> str:
    """What the service said, or what stands between it and us."""
    try:
        said = answer.json()
        detail, fix = said.get("detail") or said["title"], said.get("fix", "")
        return detail if fix in detail else f"{detail}; {fix}"
    except (ValueError, KeyError, AttributeError):
        return f"{answer.request.url}: HTTP {answer.status_code}, and not from TwinScope"
