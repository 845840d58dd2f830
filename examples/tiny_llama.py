"""A tiny Llama with a word-level tokenizer, made from a seed: no download, any machine, one second.

Default initialisation would give near-uniform distributions, in which nothing that can go wrong
shows. The scales here are chosen so that next-token entropies spread from under 1 to over 4 nats
(ln 512 = 6.2) and depend on the context.
"""

from __future__ import annotations

from pathlib import Path

from prompts import QUESTIONS, RULES

VOCABULARY = 512
SPECIAL = ("<s>", "</s>", "<unk>")  # ids 0, 1, 2
EOS = 1
MAX_POSITIONS = 512


def make_tiny_llama(folder: Path, *, seed: int = 0) -> Path:
    """Write config, safetensors weights (bfloat16) and tokenizer to `folder`; returns it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=0,
        eos_token_id=EOS,
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _fill(name, weight)
    model.to(torch.bfloat16).save_pretrained(folder)
    _make_tokenizer().save_pretrained(folder)
    return folder


def _fill(name: str, weight) -> None:  # type: ignore[no-untyped-def]
    """Draw one parameter: matrices keep their input's variance, norms spread it over features."""
    if "norm" in name:
        weight.copy_((weight.new_empty(weight.shape).normal_(std=0.6)).exp())
    elif "embed" in name:
        weight.normal_(std=1.0)
    elif "lm_head" in name:
        weight.normal_(std=1.6 / weight.shape[1] ** 0.5)
    else:
        weight.normal_(std=1.0 / weight.shape[1] ** 0.5)


def _make_tokenizer():  # type: ignore[no-untyped-def]
    """One word per id: the special ones, t3, t4 ..., then the words of the examples' prompts."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted(set(" ".join([RULES, *QUESTIONS]).split()))
    plain = [f"t{i}" for i in range(len(SPECIAL), VOCABULARY - len(words))]
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *plain, *words])}
    begin, end, unknown = SPECIAL
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        pad_token=begin,
        unk_token=unknown,
    )
