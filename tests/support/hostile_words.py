"""A tokenizer whose every word is markup that would run, and a service that shows words by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from looking import send
from service_process import ServiceProcess, running_service

from twinscope_service.config import load_settings
from twinscope_service.pipeline import open_pipeline
from twinscope_service.replay import recording, steps

RUN = "words"
FAULTY = "temperature_0.7_unrestored"


def word(token: int) -> str:
    """The text of a token: closes what it may stand in, then runs, if anything lets it."""
    return f"</td></script>\"'><img src=x onerror=\"window.hit='token {token}'\">"


@contextmanager
def service_of_hostile_words(folder: Path) -> Iterator[ServiceProcess]:
    """One faulty step of the run RUN, every token of it a `word`."""
    from tokenizers import Tokenizer, models

    ids = {int(token) for token in recording(FAULTY).tensors["token_ids"]}
    vocabulary = {word(token): token for token in ids}
    tokenizer = folder / "tokenizer.json"
    unknown = next(iter(vocabulary))
    Tokenizer(models.WordLevel(vocabulary, unk_token=unknown)).save(str(tokenizer))
    pipeline = open_pipeline(load_settings(data_dir=folder / "data"))
    for batch in steps([recording(FAULTY)], run=RUN, samples_per_step=24, seed=0):
        send(pipeline, batch)
    pipeline.close()
    with running_service(folder, settings={"TWINSCOPE_TOKENIZER": str(tokenizer)}) as process:
        yield process
