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
    """A recurrent language model: logits [S,T,V] for tokens [S,T]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """float32 logits of the next token at every position."""
        logits: torch.Tensor = self.head(self.cell(self.embed(tokens))[0])
        return logits.float()


def sampled_logprobs(policy: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs [S,T-1] of tokens[:, 1:] given what comes before them, nats."""
    table = policy(tokens[:, :-1]).log_softmax(-1)
    return table.gather(-1, tokens[:, 1:, None])[..., 0]


@torch.no_grad()
def sample(engine: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [S,1+T], the first one fixed, and the engine's log-probs [S,T]."""
    tokens = torch.zeros(SAMPLES, 1, dtype=torch.int64)
    for _ in range(LENGTH):
        probabilities = engine(tokens)[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], 1)
    return tokens, sampled_logprobs(engine, tokens)


def train(steps: int, *, no_sync_from: int | None) -> dict[str, object]:
    """Run the loop; the probe's books at the end."""
    torch.manual_seed(0)
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
            p = sampled_logprobs(policy, tokens)
        probe.train(step=step, logprobs=p, token_ids=tokens[:, 1:], sample_ids=ids)

        reward = (tokens[:, 1:] % 2 == 0).float().mean(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        ratio = (sampled_logprobs(policy, tokens) - p).exp()
        loss = -(ratio * advantage[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.scalar(step=step, reward=float(reward.mean()), loss=float(loss))
        probe.close_step(step)
    probe.flush(10)
    return {"reward": round(float(reward.mean()), 3), "probe": probe.stats()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--no-sync-from", type=int, metavar="STEP")
    arguments = parser.parse_args()
    print(train(arguments.steps, no_sync_from=arguments.no_sync_from))
