"""Policy gradients in plain PyTorch on a toy task, with the probe attached: ten lines.

    make serve                                                   # in another terminal
    TWINSCOPE_URL=http://127.0.0.1:8321 TWINSCOPE_RUN=toy python examples/plain_pytorch_loop.py

The rollout policy is a bfloat16 copy of the trained one. `--no-sync-from 20` stops copying weights
at step 20: the mismatch then grows, and TwinScope says since when. Without TWINSCOPE_URL every
probe call does nothing.
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import nn

from twinscope import Probe

VOCABULARY, WIDTH, SAMPLES, LENGTH = 64, 64, 64, 32


class Policy(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(
        self, tokens: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(float32 log-probs [S,T,V] of the next token at every position, state to go on from)."""
        hidden, state = self.cell(self.embed(tokens), state)
        return self.head(hidden).float().log_softmax(-1), state


@torch.no_grad()
def sample(engine: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Token by token, as an engine decodes: tokens [S,1+T], the first one fixed, and q [S,T]."""
    tokens, q, state = [torch.zeros(SAMPLES, 1, dtype=torch.int64)], [], None
    for _ in range(LENGTH):
        table, state = engine(tokens[-1], state)
        tokens.append(torch.multinomial(table[:, -1].exp(), 1))
        q.append(table[:, -1].gather(-1, tokens[-1]))
    return torch.cat(tokens, 1), torch.cat(q, 1)


def rescore(policy: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """All positions at once, as a trainer does: p [S,T] of tokens[:, 1:], nats."""
    table, _ = policy(tokens[:, :-1])
    chosen: torch.Tensor = table.gather(-1, tokens[:, 1:, None])[..., 0]
    return chosen


def train(steps: int, *, no_sync_from: int | None) -> dict[str, object]:
    """Run the loop; the probe's books at the end."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is tiny
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    engine = copy.deepcopy(policy).bfloat16()
    probe = Probe()  # TWINSCOPE_URL, TWINSCOPE_RUN
    for step in range(steps):
        if no_sync_from is None or step < no_sync_from:
            engine.load_state_dict(policy.state_dict())
            probe.event("weight_sync", step=step)
        tokens, q = sample(engine)
        ids = [f"{step}-{s}" for s in range(SAMPLES)]
        probe.rollout(logprobs=q, token_ids=tokens[:, 1:], sample_ids=ids)

        with torch.no_grad():
            p = rescore(policy, tokens)
        probe.train(step=step, logprobs=p, token_ids=tokens[:, 1:], sample_ids=ids)

        reward = (tokens[:, 1:] % 2 == 0).float().mean(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        ratio = (rescore(policy, tokens) - p).exp()
        loss = -(ratio * advantage[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.scalar(step=step, reward=float(reward.mean()), loss=loss.item())
        probe.close_step(step)
    probe.flush(10)
    return {"reward": round(float(reward.mean()), 3), "probe": probe.stats()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--no-sync-from", type=int, metavar="STEP")
    arguments = parser.parse_args()
    print(train(arguments.steps, no_sync_from=arguments.no_sync_from))
