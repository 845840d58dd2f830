"""Silences: who is woken asks for peace, for a while. Guarded as every call that brings data."""

from __future__ import annotations

import functools
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from fastapi import Path as PathNumber
from pydantic import AfterValidator, Field, model_validator

from twinscope.wire.header import check_name
from twinscope_service.alert.target import KINDS
from twinscope_service.receive.answers import Answer
from twinscope_service.receive.edge import Edge, access_of, edge_of
from twinscope_service.receive.models import Post, RunName
from twinscope_service.receive.posts import body_of, take_message
from twinscope_service.store.silences import LONGEST_S, Silence, Silences

router = APIRouter()


def _kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"use some of {', '.join(KINDS)}")
    return kind


def _name(field: str) -> AfterValidator:
    return AfterValidator(functools.partial(check_name, field))


class SilencePost(Post):
    """Nobody is told about a run (or runs by a glob) for `seconds` from now on."""

    run: RunName | None = Field(default=None, description="one run, by its name")
    runs: Annotated[str, _name("runs")] | None = Field(
        default=None, description="or every run that matches this glob"
    )
    kinds: list[Annotated[str, AfterValidator(_kind)]] = Field(
        default_factory=lambda: list(KINDS),
        min_length=1,
        max_length=len(KINDS),
        description=f"only these kinds: {', '.join(KINDS)}",
    )
    series: Annotated[str, _name("series")] = Field(
        default="*", description="only series that match this glob"
    )
    seconds: float = Field(gt=0, le=LONGEST_S, description="how long from now on; at most 30 days")
    reason: Annotated[str, _name("reason")] = Field(
        default="", description="for whoever looks next"
    )

    @model_validator(mode="after")
    def _run_or_runs(self) -> SilencePost:
        if (self.run is None) == (self.runs is None):
            raise ValueError("give either run (one, by its name) or runs (a glob)")
        return self


def _book(request: Request) -> Silences:
    found: Silences = request.app.state.silences
    return found


@router.post(
    "/v1/silences",
    status_code=201,
    openapi_extra=body_of("application/json", schema=SilencePost.model_json_schema()),
    summary="Tell nobody for a while",
)
async def post_silence(request: Request) -> Answer:
    """`run` or `runs`, `seconds`; optionally `kinds`, `series` (a glob), `reason`.

    The end of a trouble that was told is told all the same; what still fires when the silence is
    over is told then. The token of one run silences that run only.
    """
    book = _book(request)

    def work(edge: Edge, post: SilencePost) -> dict[str, Any]:
        now = edge.pipeline.now()
        asked = Silence(
            0, post.run, post.runs or "", tuple(post.kinds), post.series,
            now, now + post.seconds, post.reason,
        )  # fmt: skip
        return book.add(asked).as_json()

    return await take_message(request, SilencePost, work, status=201)


@router.get("/v1/silences", summary="Open silences")
def list_silences(
    request: Request, run: Annotated[str | None, Query(description="only what names it")] = None
) -> Answer:
    """In the order in which they were asked for; those of the settings are not among them."""
    access, found = access_of(request), _book(request).open(now=edge_of(request).pipeline.now())
    return Answer(
        [
            silence.as_json()
            for silence in found
            if access.run in (None, silence.run) and run in (None, silence.run)
        ]
    )


@router.delete("/v1/silences/{number}", summary="End a silence")
async def end_silence(
    request: Request, number: Annotated[int, PathNumber(ge=1, lt=1 << 53)]
) -> Answer:
    """It is over at once, and what fires is told. Again: the same answer."""
    book, edge, access = _book(request), edge_of(request), access_of(request)

    def work() -> dict[str, Any]:
        access.require(book.find(number).run)
        return book.end(number, now=edge.pipeline.now()).as_json()

    return Answer(await to_thread.run_sync(work))
