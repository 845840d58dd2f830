"""The JSON bodies of small posts, as pydantic models: unknown fields are refused by name."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from twinscope.wire.header import check_name, check_run, check_step
from twinscope.wire.strict_json import INT64_MAX, INT64_MIN

MOST_VALUES = 256
KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")


def _scalar_name(name: str) -> str:
    return check_name("values", name)


def _kind(kind: str) -> str:
    if not KIND.fullmatch(kind):
        raise ValueError("use lower-case letters, digits and underscores, such as weight_sync")
    return kind


def _encodable(fields: dict[str, Any]) -> dict[str, Any]:
    """Values that the store and JSON can carry: no lone surrogates, integers within int64."""
    pending: list[Any] = [fields]
    for item in pending:  # grows while it is walked; bounded by the size limit of the body
        if isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, str):
            _check_text(item)
        elif type(item) is int and not INT64_MIN <= item <= INT64_MAX:
            raise ValueError("send integers within the int64 range")
    return fields


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("send whole characters: half a surrogate pair has no UTF-8") from None


RunName = Annotated[str, AfterValidator(check_run)]
Step = Annotated[int, AfterValidator(check_step)]


class Post(BaseModel):
    """A small JSON body: strict types, no unknown field."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ScalarsPost(Post):
    """Scalars of one step: reward, baseline_reward, grad_norm, entropy, lr, kl_coef ..."""

    run: RunName = Field(description="name of the run")
    step: Step = Field(description="step of the trainer, an integer from 0")
    values: dict[Annotated[str, AfterValidator(_scalar_name)], float] = Field(
        min_length=1,
        max_length=MOST_VALUES,
        description='name to finite number, at least one: {"reward": 0.7}',
    )


class EventPost(Post):
    """Something that happened: weight_sync, cache_flush, restart, config_change, checkpoint ..."""

    run: RunName = Field(description="name of the run")
    kind: Annotated[str, AfterValidator(_kind)] = Field(
        description="a word such as weight_sync: lower case, digits, underscores"
    )
    step: Step | None = Field(
        default=None, description="step of the trainer; without it, tied to none"
    )
    fields: Annotated[dict[str, Any], AfterValidator(_encodable)] = Field(
        default_factory=dict, max_length=MOST_VALUES, description="anything more, a JSON object"
    )
