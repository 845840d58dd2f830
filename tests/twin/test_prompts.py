"""What the twin test asks: the fixed prompts, a long one where it fits, or a file of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinscope.errors import ConfigError
from twinscope_service.twin.prompts import LONG_TOKENS, PROMPTS, built_in, own, read_prompts

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own

CHAT = (
    "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant{% endif %}"
)
QUESTION = {"role": "user", "content": "t3 t4 t5"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One id per word t3 ... t511, id 0 for <s>; with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<s>", "user", "assistant", *(f"t{i}" for i in range(3, 512))]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<s>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<s>")
    made.chat_template = CHAT
    return made


def _file(folder: Path, name: str, *lines: object) -> Path:
    path = folder / name
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def test_the_long_prompt_is_asked_where_it_fits(tokenizer: Any) -> None:
    """Room for it and a response: there, in every copy. A token less: left out, and said."""
    wide = built_in(tokenizer, copies=2, context=4096, response=64)
    longest = max(len(row) for row in wide.rows)
    exact = built_in(tokenizer, copies=2, context=longest + 64, response=64)
    narrow = built_in(tokenizer, copies=2, context=longest + 63, response=64)

    assert 1500 < longest <= LONG_TOKENS
    assert len(wide.rows) == len(exact.rows) == 2 * (len(PROMPTS) + 1)
    assert wide.left_out == exact.left_out == ()
    assert len(narrow.rows) == 2 * len(PROMPTS)
    (said,) = narrow.left_out
    assert f"the context is {longest + 63} tokens; rotary scaling" in said


def test_an_unknown_context_leaves_the_long_prompt_out(tokenizer: Any) -> None:
    """Rather than a request that the engine refuses; it is said."""
    asked = built_in(tokenizer, copies=1, context=None, response=64)

    assert len(asked.rows) == len(PROMPTS)
    assert "the context is not known" in asked.left_out[0]


def test_a_text_per_line_is_a_prompt_per_line(tokenizer: Any, tmp_path: Path) -> None:
    """Empty lines pass; a line that looks like JSON is a text like any other."""
    path = _file(tmp_path, "p.txt", "t3 t4", "", '["t5"]')
    asked = own(path, tokenizer, copies=2, context=100, response=10)

    assert asked.rows[:2] == [[3, 4], [3, 4]]
    assert len(asked.rows) == 4
    assert asked.sentence() == "4 samples of prompts of 1 to 2 tokens"


@pytest.mark.parametrize("line", [[QUESTION], {"messages": [QUESTION]}, {"prompt": [QUESTION]}])
def test_messages_go_through_the_chat_template(
    line: object, tokenizer: Any, tmp_path: Path
) -> None:
    """With the beginning of the answer, and without a second begin-of-text of the tokenizer."""
    asked = own(_file(tmp_path, "p.jsonl", line), tokenizer, copies=1, context=100, response=10)

    assert asked.rows == [[0, 1, 3, 4, 5, 0, 2]]


def test_texts_of_json_lines_stay_as_they_are(tmp_path: Path) -> None:
    """As a string, or under `text` or `prompt`, with line breaks and all; lines are counted."""
    path = _file(tmp_path, "p.jsonl", '"a\\nb"', "", {"text": "c"}, {"prompt": "d", "answer": 1})

    assert list(read_prompts(path)) == [(1, "a\nb"), (3, "c"), (4, "d")]


@pytest.mark.parametrize(
    "line", ["{", "7", "[]", '{"question": "x"}', '[{"role": "user"}]', '""', '{"prompt": null}']
)
def test_a_line_that_holds_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    """File, line, what is there, what to give."""
    path = _file(tmp_path, "p.jsonl", '"fine"', line)

    with pytest.raises(ConfigError, match=r"p\.jsonl, line 2: .*give JSON"):
        list(read_prompts(path))


def test_messages_without_a_chat_template_are_refused(tokenizer: Any, tmp_path: Path) -> None:
    """A guessed template would be another prompt than the run's."""
    path = _file(tmp_path, "p.jsonl", [QUESTION])
    plain = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)

    with pytest.raises(ConfigError, match=r"line 1: messages, but .* no chat template"):
        own(path, plain, copies=1, context=100, response=10)


def test_a_prompt_that_does_not_fit_is_left_out_and_named(tokenizer: Any, tmp_path: Path) -> None:
    """The others are asked; none left is an error."""
    path = _file(tmp_path, "p.txt", "t3", "t3 t4 t5")
    asked = own(path, tokenizer, copies=1, context=12, response=10)

    assert asked.rows == [[3]]
    assert (
        "line 2 was left out: its 3 tokens and a response of 10 do not fit into 12"
        in (asked.left_out[0])
    )
    with pytest.raises(ConfigError, match=r"line 1 was left out.*line 2 was left out"):
        own(path, tokenizer, copies=1, context=10, response=10)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """With the option."""
    with pytest.raises(ConfigError, match=r"--prompts .*absent\.txt"):
        list(read_prompts(tmp_path / "absent.txt"))
