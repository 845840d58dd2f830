"""A vLLM engine without a server, driven over pipes. Runs by its path in the engine's interpreter.

That interpreter has vLLM and need not have TwinScope: this file imports neither it nor anything
that vLLM does not bring. One JSON line in, one JSON line out:

    {"op": "start", "model": ..., "arguments": {...}}           -> {"version", "context"}
    {"op": "sample", "prompts", "params", "salt", "alone"}      -> {"ids", "logprobs", "cached"}
    {"op": "prefill", "prompts", "responses"}                   -> {"logprobs"}
    {"op": "forced", "prompts", "responses"}                    -> {"logprobs", "how"}

Anything that goes wrong is {"error": text}. What the engine prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Rows = list[list[int]]


class Engine:
    """The operations on one `vllm.LLM`."""

    def __init__(self, *, model: str, arguments: dict[str, Any]) -> None:
        import vllm

        self._vllm = vllm
        defaults = {"generation_config": "vllm"}  # what the run asks for, and nothing else
        self._llm = vllm.LLM(model=model, **{**defaults, **arguments})

    def start(self) -> dict[str, Any]:
        """What is running."""
        context = self._llm.llm_engine.model_config.max_model_len
        return {"version": self._vllm.__version__, "context": context}

    def sample(
        self, *, prompts: Rows, params: dict[str, Any], salt: str, alone: bool
    ) -> dict[str, Any]:
        """One completion per prompt, at `params`; log-probs as the engine reports them."""
        given = self._vllm.SamplingParams(**params, logprobs=0, detokenize=False)
        groups = [[prompt] for prompt in prompts] if alone else [prompts]
        outputs = [out for group in groups for out in self._generate(group, given, salt)]
        first = [out.outputs[0] for out in outputs]
        return {
            "ids": [list(done.token_ids) for done in first],
            "logprobs": [_of(done.logprobs, done.token_ids) for done in first],
            "cached": [out.num_cached_tokens or 0 for out in outputs],
        }

    def prefill(self, *, prompts: Rows, responses: Rows) -> dict[str, Any]:
        """The scores of the responses as parts of prompts, at temperature 1."""
        params = self._vllm.SamplingParams(
            max_tokens=1, prompt_logprobs=0, temperature=0.0, detokenize=False
        )
        whole = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        outputs = self._generate(whole, params, None)
        return {"logprobs": [
            _of(out.prompt_logprobs[len(prompt):], response)
            for out, prompt, response in zip(outputs, prompts, responses, strict=True)
        ]}  # fmt: skip

    def forced(self, *, prompts: Rows, responses: Rows) -> dict[str, Any]:
        """The scores of the responses as decoded tokens, at temperature 1."""
        if getattr(self._llm.llm_engine.model_config, "enable_trace_replay", False):
            return {"logprobs": self._replayed(prompts, responses), "how": "trace replay"}
        rows: list[list[float]] = [[] for _ in responses]
        for t in range(max(map(len, responses), default=0)):
            live = [s for s, response in enumerate(responses) if t < len(response)]
            asked = [self._one_token(responses[s][t]) for s in live]
            outputs = self._generate([[*prompts[s], *responses[s][:t]] for s in live], asked, None)
            for s, out in zip(live, outputs, strict=True):
                rows[s] += _of(out.outputs[0].logprobs, [responses[s][t]])
        return {"logprobs": rows, "how": "token by token"}

    def _replayed(self, prompts: Rows, responses: Rows) -> list[list[float]]:
        """vLLM's own forced decoding: `LLM(enable_trace_replay=True)`, its second model runner."""
        params = [
            self._vllm.SamplingParams(
                trace_decode_token_ids=response, max_tokens=len(response), logprobs=0,
                temperature=1.0, detokenize=False, ignore_eos=True,
            )
            for response in responses
        ]  # fmt: skip
        outputs = self._generate(prompts, params, None)
        return [_of(out.outputs[0].logprobs, r) for out, r in zip(outputs, responses, strict=True)]

    def _one_token(self, token: int) -> Any:
        """One decoded token, whatever it is, and the log-prob of the given one."""
        return self._vllm.SamplingParams(
            max_tokens=1, temperature=1.0, logprob_token_ids=[token], detokenize=False
        )

    def _generate(self, prompts: Rows, params: Any, salt: str | None) -> list[Any]:
        salted = {} if salt is None else {"cache_salt": salt}
        given = [{"prompt_token_ids": prompt, **salted} for prompt in prompts]
        outputs: list[Any] = self._llm.generate(given, params, use_tqdm=False)
        return outputs


def _of(table: Any, tokens: Any) -> list[float]:
    """The log-prob of each token out of vLLM's dictionaries."""
    return [float(entry[token].logprob) for entry, token in zip(table, tokens, strict=True)]


def _end_with(parent: int) -> None:
    """A check that is killed must not leave an engine at work: vLLM's processes end with this."""
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)


def main() -> None:
    """Answer until the input ends."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the engine and its children print to stdout
    engine: Engine | None = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            operation = request.pop("op")
            if engine is None:
                engine = Engine(**request)
                request = {}
            call: Callable[..., dict[str, Any]] = getattr(engine, operation)
            answer = call(**request)
        except Exception as error:  # noqa: BLE001 - told to the other side, which decides
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
