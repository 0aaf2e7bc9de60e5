"""Tiny models that load in a moment: random ones, and ones that recite a given text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""
PIECES = ["<think>", "</think>", "<th", "ink>", "</th", "ST", "OP"]
"""Tokens of several characters; every other token is one byte."""
END = "<|im_end|>"


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte, so that text and tokens always agree."""
    vocabulary = {byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", END])
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in PIECES])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END, chat_template=chat_template
    )


class TinyModels:
    """Writes models of two layers into folders below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = byte_tokenizer()

    def ids(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        assert isinstance(ids, list)
        return ids

    def random(self, name: str, seed: int, context: int = 4096) -> Path:
        """A model that says anything, but never comes to an end."""
        model = self._model(seed, context)
        with torch.no_grad():
            model.lm_head.weight.mul_(40)
            model.lm_head.weight[self.ids(END)[0]] = 0
        return self._save(name, model)

    def reciting(
        self,
        name: str,
        tokens: Sequence[str],
        slips: Mapping[str, str] | None = None,
        chat_template: str | None = CHAT_TEMPLATE,
    ) -> Path:
        """A model that answers with `tokens` and then ends, each token calling for the next.

        No id may occur twice. `slips` are tokens that are followed
        by another one than they should: what makes it a draft that errs.
        """
        ids = [self.ids(token) for token in tokens]
        chain = [self.ids("\n")[0], *(one for many in ids for one in many), self.ids(END)[0]]
        assert len(set(chain)) == len(chain)
        following = dict(pairwise(chain))
        for token, wrong in (slips or {}).items():
            following[self.ids(token)[-1]] = self.ids(wrong)[0]
        return self._save(name, self._follow(following), chat_template)

    def circling(self, name: str, tokens: str, context: int = 4096) -> Path:
        """A model that answers with the characters of `tokens` over and over."""
        ids = self.ids(tokens)
        following = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
        following[self.ids("\n")[0]] = ids[0]
        return self._save(name, self._follow(following, context))

    def _follow(self, following: Mapping[int, int], context: int = 4096) -> LlamaForCausalLM:
        """Layers that add nothing, embeddings that tell tokens apart, and a head that maps each
        to its follower."""
        model = self._model(0, context)
        size = len(self.tokenizer)
        with torch.no_grad():
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
            model.model.embed_tokens.weight.copy_(torch.eye(size, model.config.hidden_size))
            model.lm_head.weight.zero_()
            for token, follower in following.items():
                model.lm_head.weight[follower, token] = 2.0
        return model

    def _model(self, seed: int, context: int) -> LlamaForCausalLM:
        torch.manual_seed(seed)
        end = self.ids(END)[0]
        config = LlamaConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=272,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=context,
            eos_token_id=end,
            bos_token_id=None,
            tie_word_embeddings=False,
        )
        assert config.hidden_size >= config.vocab_size
        model = LlamaForCausalLM(config)
        model.generation_config.eos_token_id = end
        return model

    def broken(self, name: str) -> Path:
        """A model whose every row is NaN."""
        model = self._model(0, context=4096)
        with torch.no_grad():
            model.lm_head.weight.fill_(torch.nan)
        return self._save(name, model)

    def _save(
        self, name: str, model: LlamaForCausalLM, chat_template: str | None = CHAT_TEMPLATE
    ) -> Path:
        folder = self.folder / name
        model.save_pretrained(folder)
        byte_tokenizer(chat_template).save_pretrained(folder)
        return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("models"))
