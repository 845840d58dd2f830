"""The calls that bring data: batches, summaries, scalars, events, and closing a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel, ValidationError

from twinscope.wire.codec import decode, encode_batch
from twinscope.wire.header import check_name, check_run
from twinscope.wire.json_form import decode_json
from twinscope.wire.schema import CONTENT_TYPE
from twinscope.wire.strict_json import parse
from twinscope_service.memory import give_back_after
from twinscope_service.receive.access import Access
from twinscope_service.receive.answers import Answer, read_step
from twinscope_service.receive.body import content_type, received_body
from twinscope_service.receive.edge import Edge, access_of, edge_of
from twinscope_service.receive.models import EventPost, ScalarsPost
from twinscope_service.receive.problems import malformed
from twinscope_service.receive.refusals import UnsupportedBody

JSON_TYPE = "application/json"
BATCH_ID_HEADER = "X-TwinScope-Batch-Id"
MESSAGE_DEPTH = 8

Message = TypeVar("Message", bound=BaseModel)
router = APIRouter()


def body_of(*types: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """The requestBody part of an OpenAPI operation that reads its body itself."""
    content = {kind: {"schema": schema or {"type": "string", "format": "binary"}} for kind in types}
    return {"requestBody": {"required": True, "content": content}}


@router.post(
    "/v1/batches",
    status_code=202,
    openapi_extra=body_of(CONTENT_TYPE, JSON_TYPE),
    summary="One batch, one-sided or paired",
)
async def post_batch(request: Request) -> Answer:
    """Answers with ids and counts: what joined, what waits, what was seen before.

    Sent again with the same `X-TwinScope-Batch-Id` (or, without it, the same bytes), a batch
    changes nothing and gets the same answer.
    """
    edge, access, batch_id = edge_of(request), access_of(request), _batch_id(request)
    if _check_type(request, CONTENT_TYPE, JSON_TYPE) == JSON_TYPE:
        work, rules, threads = _accept_json, edge.json, edge.json_threads
    else:
        work, rules, threads = _accept, edge.binary, edge.ingest_threads
    async with received_body(request, rules=rules, inflight=edge.inflight) as body:
        return await to_thread.run_sync(work, edge, access, body, batch_id, limiter=threads)


def _accept(edge: Edge, access: Access, body: memoryview | bytes, batch_id: str | None) -> Answer:
    """Decode and hand over; runs on a worker thread."""
    try:
        return _ingest(edge, access, body, batch_id)
    finally:
        give_back_after(len(body))


def _ingest(edge: Edge, access: Access, body: memoryview | bytes, batch_id: str | None) -> Answer:
    """In a frame of its own: what it made is gone when memory is given back."""
    batch = decode(body, limits=edge.limits)
    access.require(batch.run)
    return Answer(edge.pipeline.ingest(body, batch, batch_id=batch_id).as_json(), 202)


def _accept_json(edge: Edge, access: Access, body: memoryview, batch_id: str | None) -> Answer:
    """JSON bodies go on as binary ones: the store keeps one format."""
    batch = decode_json(body, limits=edge.limits)
    return _accept(edge, access, b"".join(encode_batch(batch)), batch_id)


@router.post(
    "/v1/summaries",
    status_code=202,
    openapi_extra=body_of(CONTENT_TYPE),
    summary="A reduced summary of a rank that holds both sides",
)
async def post_summary(request: Request, run: str, step: str) -> Answer:
    """The body is what `measure.codec` writes; summaries of one step add up, in any order."""
    edge, batch_id = edge_of(request), _batch_id(request)
    name, number = check_run(run), read_step(step)
    access_of(request).require(name)
    _check_type(request, CONTENT_TYPE)
    async with received_body(request, rules=edge.binary, inflight=edge.inflight) as body:

        def work() -> Answer:
            from twinscope_service.measure.codec import decode_summary

            summary = decode_summary(body)
            receipt = edge.pipeline.ingest_summary(name, number, summary, batch_id=batch_id)
            return Answer(receipt.as_json(), 202)

        return await to_thread.run_sync(work, limiter=edge.ingest_threads)


@router.post(
    "/v1/scalars",
    status_code=202,
    openapi_extra=body_of(JSON_TYPE, schema=ScalarsPost.model_json_schema()),
    summary="Scalars of one step",
)
async def post_scalars(request: Request) -> Answer:
    """reward, baseline_reward, grad_norm, entropy, lr ... The last value of a name wins."""

    def work(edge: Edge, post: ScalarsPost) -> dict[str, Any]:
        edge.pipeline.scalars(post.run, post.step, post.values)
        return {"run": post.run, "step": post.step, "values": len(post.values)}

    return await take_message(request, ScalarsPost, work)


@router.post(
    "/v1/events",
    status_code=202,
    openapi_extra=body_of(JSON_TYPE, schema=EventPost.model_json_schema()),
    summary="Something that happened",
)
async def post_event(request: Request) -> Answer:
    """weight_sync, cache_flush, restart, config_change, checkpoint ...

    A `weight_sync` may carry `version` and a `digest` of the weights: two equal digests in a row
    are told.
    """

    def work(edge: Edge, post: EventPost) -> dict[str, Any]:
        edge.pipeline.event(post.run, step=post.step, kind=post.kind, fields=post.fields)
        return {"run": post.run, "step": post.step, "kind": post.kind}

    return await take_message(request, EventPost, work)


@router.post("/v1/runs/{run:path}/steps/{step}/close", summary="No more data for that step")
def close_step(request: Request, run: str, step: str) -> Answer:
    """Closes the step and answers with it. Again: the same answer."""
    name, number = check_run(run), read_step(step)
    access_of(request).require(name)
    return Answer(edge_of(request).pipeline.close_step(name, number).as_json())


async def take_message(
    request: Request,
    model: type[Message],
    work: Callable[[Edge, Message], dict[str, Any]],
    *,
    status: int = 202,
) -> Answer:
    """Read, check and hand over a small JSON post."""
    edge, access = edge_of(request), access_of(request)
    _check_type(request, JSON_TYPE)
    async with received_body(request, rules=edge.message, inflight=edge.inflight) as body:
        post = _read_message(model, bytes(body))
    access.require(getattr(post, "run", None))
    return Answer(await to_thread.run_sync(work, edge, post), status)


def _read_message(model: type[Message], text: bytes) -> Message:
    fields = parse(text, field="body", depth=MESSAGE_DEPTH)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise malformed(error, fields=model.model_fields) from None


def _check_type(request: Request, *types: str) -> str:
    kind = content_type(request)
    if kind not in types:
        raise UnsupportedBody(
            f"content type {kind or 'absent'!r} is not read here",
            field="Content-Type",
            value=kind,
            fix=f"send {' or '.join(types)}",
        )
    return kind


def _batch_id(request: Request) -> str | None:
    """The sender's name for the batch; None: the pipeline takes a hash of the body."""
    given = request.headers.get(BATCH_ID_HEADER)
    return None if given is None else check_name(BATCH_ID_HEADER, given)
