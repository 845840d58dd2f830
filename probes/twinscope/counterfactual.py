"""What the sampled tokens' log-probs would have been: one fused pass over the trainer's logits.

The trainer holds the logits anyway. Per sampled token this reduces a row of them to a few numbers
that make causes identifiable (docs/diagnosis.md): the entropy, log-sum-exp at other temperatures,
the probability mass that a truncation keeps, and the rank of the token. Rows are taken in chunks,
so no second [tokens, vocabulary] tensor ever exists; nothing is recorded for autograd.

Direction and units: z are the trainer's logits *before* any temperature, natural logarithms
everywhere, p = z[token]/T - logsumexp(z/T) for the trainer's own temperature T. All results are
float32 on the logits' device, named as in the wire format (wire/schema.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinscope.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# two more than are likely: the outermost nodes tell less about a temperature near them
DEFAULT_TEMPERATURES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
DEFAULT_CHUNK_BYTES = 64 << 20  # of float32 logits held at once; about 4x that at the worst moment


@dataclass(frozen=True)
class Truncation:
    """The rollout's truncation, in the engine's order: min-p, top-k, then top-p of what is left.

    `temperature` is the sampling temperature under which the engine decides what to keep.
    """

    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p is {self.top_p}; give a number in (0, 1]")
        if self.top_k < 0 or not 0.0 <= self.min_p <= 1.0 or not self.temperature > 0.0:
            raise ConfigError(
                f"top_k={self.top_k}, min_p={self.min_p}, temperature={self.temperature}; "
                "give top_k >= 0, min_p in [0, 1] and temperature > 0"
            )


@dataclass(frozen=True)
class Counterfactuals:
    """One value per token, float32 [N] unless said; the names are those of the wire format."""

    train_logprobs: Tensor  # p at the trainer's temperature, nats
    entropy: Tensor  # of the trainer's distribution, nats
    logsumexp_T: Tensor  # [K, N] logsumexp(z / temperatures[k]), nats
    sampled_rank: Tensor  # int32 [N]; 0: no other token is more likely
    kept_mass: Tensor | None  # None: no truncation was given
    temperatures: tuple[float, ...]

    def fields(self) -> dict[str, Any]:
        """Keyword arguments of `Probe.train` beside its own `logprobs`.

        probe.train(step=step, logprobs=p, mask=mask, token_ids=ids, **found.fields())
        """
        found: dict[str, Any] = {
            "entropy": self.entropy,
            "sampled_rank": self.sampled_rank,
            "logsumexp": dict(zip(self.temperatures, self.logsumexp_T, strict=True)),
        }
        return found if self.kept_mass is None else {**found, "kept_mass": self.kept_mass}


def counterfactuals(
    logits: Tensor,
    token_ids: Tensor,
    *,
    train_temperature: float = 1.0,
    divided_by: float = 1.0,
    temperatures: Sequence[float] = DEFAULT_TEMPERATURES,
    truncation: Truncation | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> Counterfactuals:
    """Reduce `logits` [N, V] (any float dtype) at the sampled `token_ids` [N].

    `train_temperature` is the T inside the trainer's own p; it joins `temperatures` if it is not
    among them, since a reader needs logsumexp there to get z[token] back from p. `divided_by`: the
    temperature that these logits have been divided by already, as TRL and verl do it in place;
    without it every number below would be of other temperatures than it says.
    """
    _check(len(logits), token_ids, (*temperatures, divided_by), train_temperature)
    return _chunked(
        lambda rows: logits[rows] if divided_by == 1.0 else logits[rows].float() * divided_by,
        token_ids,
        vocabulary=logits.shape[-1],
        plan=_plan(train_temperature, temperatures, truncation, chunk_bytes),
    )


def counterfactuals_from_hidden(
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    token_ids: Tensor,
    *,
    vocabulary: int,
    train_temperature: float = 1.0,
    temperatures: Sequence[float] = DEFAULT_TEMPERATURES,
    truncation: Truncation | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
) -> Counterfactuals:
    """The same from `hidden` [N, D] and the output `head` (hidden rows to logits), chunk by chunk.

    For trainers that never hold all logits (fused or chunked losses): no extra forward of the body.
    """
    _check(len(hidden), token_ids, temperatures, train_temperature)
    return _chunked(
        lambda rows: head(hidden[rows]),
        token_ids,
        vocabulary=vocabulary,
        plan=_plan(train_temperature, temperatures, truncation, chunk_bytes),
    )


@dataclass(frozen=True)
class _Plan:
    """What to compute, and how many bytes of float32 logits to hold at once."""

    train_temperature: float
    temperatures: tuple[float, ...]
    truncation: Truncation | None
    chunk_bytes: int


def _plan(
    own: float, temperatures: Sequence[float], truncation: Truncation | None, chunk_bytes: int
) -> _Plan:
    nodes = tuple(sorted({float(t) for t in temperatures} | {float(own)}))
    return _Plan(float(own), nodes, truncation, chunk_bytes)


def _check(rows: int, token_ids: Tensor, temperatures: Sequence[float], own: float) -> None:
    if rows != len(token_ids):
        raise ConfigError(
            f"{rows} rows of logits for {len(token_ids)} token_ids; give one row each"
        )
    wrong = [t for t in (*temperatures, own) if not t > 0.0]
    if wrong:
        raise ConfigError(f"temperatures contain {wrong[0]}; every temperature must be above 0")


def _chunked(
    rows_of: Callable[[slice], Tensor], token_ids: Tensor, *, vocabulary: int, plan: _Plan
) -> Counterfactuals:
    """Walk the rows in chunks of at most `chunk_bytes` float32 logits; write into the results."""
    import torch

    count, device = len(token_ids), token_ids.device
    out = _allocate(count, device, plan)
    step = max(1, plan.chunk_bytes // (4 * max(vocabulary, 1)))
    with torch.no_grad():
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            _reduce(rows_of(rows), token_ids[rows], rows, out, plan)
    return out


def _allocate(count: int, device: torch.device, plan: _Plan) -> Counterfactuals:
    import torch

    def empty(*shape: int, dtype: Any = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Counterfactuals(
        train_logprobs=empty(count),
        entropy=empty(count),
        logsumexp_T=empty(len(plan.temperatures), count),
        sampled_rank=empty(count, dtype=torch.int32),
        kept_mass=None if plan.truncation is None else empty(count),
        temperatures=plan.temperatures,
    )


def _reduce(raw: Tensor, ids: Tensor, rows: slice, out: Counterfactuals, plan: _Plan) -> None:
    """One chunk. The row maximum is taken off first: every exponent below is <= 0."""
    top = raw.amax(dim=-1, keepdim=True).float()
    centred = raw.float() - top  # [c, V]: the only full-width copy besides one temporary
    chosen = centred.gather(-1, ids.long().unsqueeze(-1))  # [c, 1]
    out.sampled_rank[rows] = (centred > chosen).sum(dim=-1).int()
    for index, temperature in enumerate(plan.temperatures):
        lse = _logsumexp(centred, temperature)
        out.logsumexp_T[index, rows] = lse + (top / temperature).squeeze(-1)
    if out.kept_mass is not None and plan.truncation is not None:
        out.kept_mass[rows] = _kept_mass(centred, plan.train_temperature, plan.truncation)
    lse = _logsumexp(centred, plan.train_temperature)
    out.train_logprobs[rows] = (chosen / plan.train_temperature).squeeze(-1) - lse
    out.entropy[rows] = _entropy_in_place(centred, lse, plan.train_temperature)


def _logsumexp(centred: Tensor, temperature: float) -> Tensor:
    """[c]: log Σ exp(centred / T), centred <= 0 with at least one 0 per row."""
    return (centred / temperature).exp_().sum(dim=-1).log_()


def _entropy_in_place(centred: Tensor, lse: Tensor, temperature: float) -> Tensor:
    """[c]: -Σ π log π. Uses `centred` up. A token of logit -inf adds 0, not NaN."""
    log_probs = centred.div_(temperature).sub_(lse.unsqueeze(-1))
    log_probs.clamp_(min=-1e4)  # e^-1e4 is 0 in float32; keeps 0 * -inf out
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def _kept_mass(centred: Tensor, own: float, truncation: Truncation) -> Tensor:
    """[c]: mass under the trainer's softmax(z / own) of the tokens that the truncation keeps.

    Decided on logits sorted by row, so that each rule is a prefix of the row.
    """
    import torch

    ordered = centred.sort(dim=-1, descending=True).values
    sampled = (ordered / truncation.temperature).exp_()  # unnormalised, the likeliest is 1
    keep = torch.ones_like(sampled, dtype=torch.bool)
    if truncation.min_p > 0.0:
        keep &= sampled >= truncation.min_p
    if truncation.top_k:
        keep[:, truncation.top_k :] = False
    if truncation.top_p < 1.0:
        share = (sampled * keep).div_((sampled * keep).sum(dim=-1, keepdim=True))
        keep &= share.cumsum(dim=-1) - share < truncation.top_p  # the mass before it is below P
    mass = ordered.div_(own).exp_()
    return (mass * keep).sum(dim=-1) / mass.sum(dim=-1)
