"""Tiny models that load in a moment, random ones and ones that recite, and replies from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from fsd_chat.engine.inbox import ReplyControl
from fsd_chat.engine.messages import (
    Event,
    Finished,
    Generate,
    Knob,
    LoadPair,
    Message,
    ModelSource,
    Role,
    Round,
    Sampling,
    Started,
)
from fsd_chat.engine.session import Session, load

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


GREEDY = Sampling(temperature=0.0)
ROLES: tuple[Role, Role] = ("user", "assistant")
Hook = Callable[[Event, ReplyControl], None]
Action = Callable[[ReplyControl], None]
OpenPair = Callable[..., Session]


def open_pair(target: Path, draft: Path | str | None = None) -> Session:
    def source(location: Path | str) -> ModelSource:
        return ModelSource(location=str(location), device="cpu", dtype="float32")

    command = LoadPair(name="tiny", target=source(target), draft=source(draft) if draft else None)
    return load(command, lambda stage, fraction: None)


class Reply:
    """What `session` says to a conversation in which user and assistant take turns."""

    def __init__(
        self,
        session: Session,
        *turns: str,
        knob: Knob | None = None,
        sampling: Sampling = GREEDY,
        plain: bool = False,
        draft_lengths: tuple[int, ...] = (),
        after: tuple[int, Action] | None = None,
        hook: Hook | None = None,
    ) -> None:
        """after: what to do, and when so many rounds have been told; hook: what to do at events."""
        self.session = session
        self.events: list[Event] = []
        self._after = after
        self._hook = hook
        messages = tuple(Message(role=ROLES[i % 2], content=turn) for i, turn in enumerate(turns))
        self.control = ReplyControl(
            Generate(
                request=1,
                messages=messages,
                knob=knob or Knob(rule="exact", lookahead="3"),
                sampling=sampling,
                plain=plain,
                draft_lengths=draft_lengths,
            )
        )
        self.events.append(session.generate(self.control, self._emit))
        assert_caches_hold_the_text(session)

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        if self._hook:
            self._hook(event, self.control)
        if self._after and isinstance(event, Round) and len(self.rounds) == self._after[0]:
            self._after[1](self.control)

    @property
    def started(self) -> Started:
        assert isinstance(self.events[0], Started)
        return self.events[0]

    @property
    def finished(self) -> Finished:
        assert isinstance(self.events[-1], Finished)
        return self.events[-1]

    @property
    def rounds(self) -> list[Round]:
        return [event for event in self.events if isinstance(event, Round)]

    @property
    def tokens(self) -> list[int]:
        return [token.id for round in self.rounds for token in round.tokens]

    @property
    def origins(self) -> set[str]:
        return {token.origin for round in self.rounds for token in round.tokens}

    @property
    def text(self) -> str:
        return "".join(round.text for round in self.rounds) + self.finished.text

    @property
    def reasoning(self) -> str:
        return "".join(round.reasoning for round in self.rounds) + self.finished.reasoning

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def assert_caches_hold_the_text(session: Session) -> None:
    caches = session.caches
    assert caches.target.length <= max(0, len(caches.committed) - 1)
    if caches.draft is not None:
        assert caches.draft.length <= max(0, len(caches.committed) - 1)


@pytest.fixture
def pair() -> OpenPair:
    """Opens a session on a target and, if there is one, a draft."""
    return open_pair


@pytest.fixture
def say() -> type[Reply]:
    """Lets a session reply to a conversation."""
    return Reply


@pytest.fixture(scope="session")
def letters(tiny: TinyModels) -> Path:
    """Says the alphabet for ever."""
    return tiny.circling("letters", "abcdefghijklmnopqrstuvwxyz", context=100_000)


@pytest.fixture(scope="session")
def random_pair(tiny: TinyModels) -> tuple[Path, Path]:
    return tiny.random("random-target", seed=1), tiny.random("random-draft", seed=2)
