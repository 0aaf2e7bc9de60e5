"""What the interface and the engine say to each other.

One definition for both sides. Everything is a frozen, typed struct; commands travel to the engine,
events come back. A frame on the pipe is a 4-byte big-endian length and that many bytes of
MessagePack. `PROTOCOL_VERSION` changes whenever a message changes its meaning.

This module imports neither torch nor textual, so both processes can afford it.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

PROTOCOL_VERSION = 1

RuleName = Literal[
    "fsd",
    "fsd-paper",
    "exact",
    "target-only",
    "lenient",
    "typical",
    "cactus",
    "cascade-token",
]
DivergenceName = Literal["js", "kl-draft-target", "kl-target-draft", "tv", "js-as-released"]
DivergenceForm = Literal["full", "top-k", "top-p", "random"]
Origin = Literal["accepted", "fuzzy", "recovered", "bonus", "target"]
FinishReason = Literal["end", "stop-string", "length", "context", "stopped"]
FailureKind = Literal[
    "not-found",
    "vocabulary",
    "template",
    "context",
    "memory",
    "non-finite",
    "unsupported",
    "bad-request",
    "internal",
]
Role = Literal["system", "user", "assistant"]
Quantization = Literal["none", "int8", "int4"]

QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
RULES: tuple[RuleName, ...] = get_args(RuleName)
DIVERGENCES: tuple[DivergenceName, ...] = get_args(DivergenceName)
FORMS: tuple[DivergenceForm, ...] = get_args(DivergenceForm)
ORIGINS: tuple[Origin, ...] = get_args(Origin)

DRAFTED: frozenset[Origin] = frozenset({"accepted", "fuzzy"})
"""Origins of tokens that the draft proposed and the verification let through."""
VERIFIED: frozenset[Origin] = frozenset({"accepted", "fuzzy", "recovered"})
"""Origins of tokens at positions where a drafted token was judged."""


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every message part."""


class Knob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may be turned while a reply is written; read by the engine once per round."""

    rule: RuleName = "fsd"
    divergence: DivergenceName = "js"
    threshold: float = 0.1
    form: DivergenceForm = "full"
    """Whole rows, the `form_k` likeliest tokens, the nucleus of `form_p`, or the random control."""
    form_k: int = 50
    form_p: float = 0.9
    on_processed: bool = False
    """Divergence of the processed distributions instead of the raw ones."""
    lookahead: str = "adaptive"
    """`adaptive`, `paper`, `heuristic`, or a number of tokens to draft each round."""


class Sampling(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one reply is sampled; fixed from its first token to its last."""

    temperature: float = 0.7
    top_k: int = 0
    """0 leaves the distribution as it is."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """None lets the engine pick one; the one used is in `Started`."""
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    exact_prefix: int = 0
    """The first so many tokens of a reply follow exact speculative decoding whatever the rule."""
    greedy_draft: bool = False
    """Draft the likeliest token instead of a sample; its Q is then a point mass."""


class Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Role
    content: str


class ModelSource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where one model comes from."""

    location: str
    """A local folder, a GGUF file, a hub id, `smol` or `smol-draft` for the embedded models,
    or `prompt-lookup` for a draft that copies from the conversation and needs no model."""
    revision: str | None = None
    trust_remote_code: bool = False
    device: str | None = None
    """None: CUDA, then MPS, then CPU."""
    dtype: str | None = None
    """`float32`, `bfloat16`, `float16`; None lets the engine choose what is fast and safe."""
    quantize: Quantization = "none"
    """The weights; activations keep the dtype."""


class TokenRecord(msgspec.Struct, frozen=True, array_like=True):
    """One committed token, and what was known at its position."""

    id: int
    text: str
    """What the token added to the text; empty while a character is incomplete."""
    origin: Origin
    divergence: float | None = None
    """D(P, Q) that was compared with the threshold; None where nothing was drafted. May be inf."""
    exact: float | None = None
    """Chance that exact speculative decoding would have accepted here."""
    target_probability: float | None = None
    draft_probability: float | None = None
    rejected: int | None = None
    """For a recovered token, the drafted id it replaces."""
    spectrum: tuple[float, ...] = ()
    """The five whole-row divergences at this position, in the order of `DIVERGENCES`."""


# --- commands ---------------------------------------------------------------------------------


class LoadPair(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    name: str
    target: ModelSource
    draft: ModelSource | None = None
    """None: the target alone."""


class Generate(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    request: int
    """Chosen by the caller; every event about this reply carries it."""
    messages: tuple[Message, ...]
    """The conversation. A trailing assistant message is continued rather than answered."""
    knob: Knob = Knob()
    sampling: Sampling = Sampling()
    plain: bool = False
    """No chat template: the contents are joined as they are (for base models)."""
    draft_lengths: tuple[int, ...] = ()
    """For a replay: how many tokens each round drafted."""


class SetKnob(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    request: int
    knob: Knob


class Stop(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    request: int


class Shutdown(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    pass


Command = LoadPair | Generate | SetKnob | Stop | Shutdown


# --- events -----------------------------------------------------------------------------------


class Hello(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The engine is up; nothing is loaded yet."""

    version: int
    process: int


class Loading(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    stage: str
    """For people: `downloading`, `converting the target`, `loading the draft`…"""
    fraction: float | None = None
    """0 to 1 over the whole load; None while unknown."""


class Ready(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    name: str
    target: str
    draft: str | None
    device: str
    dtype: str
    vocabulary: int
    context: int
    """Tokens the pair can hold."""
    target_revision: str | None = None
    draft_revision: str | None = None
    thinking: bool = False
    """The template knows `<think>`."""
    notices: tuple[str, ...] = ()
    """For people: why there is no drafting, which special tokens differ, …"""


class Started(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The prompt is tokenised; reading it begins."""

    request: int
    prompt_tokens: int
    cached_tokens: int
    """Of those, already in the target's cache."""
    seed: int
    dropped_turns: int = 0
    """Oldest messages left out so that the prompt fits the context."""


class Prefill(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    request: int
    done: int
    total: int


class Round(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """One draft → verify → commit."""

    request: int
    index: int
    """Index of the first of `tokens` in the reply, counted from 0."""
    tokens: tuple[TokenRecord, ...]
    text: str
    """Answer text that became certain in this round."""
    reasoning: str = ""
    """The same, for text inside `<think>`."""
    drafted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0


class KnobSet(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """`knob` governs every token from `index` on. Also sent, with index 0, when a reply starts."""

    request: int
    index: int
    knob: Knob


class Finished(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    request: int
    reason: FinishReason
    text: str = ""
    """Text held back until now (an incomplete character, the possible start of a stop string)."""
    reasoning: str = ""
    stop_string: str | None = None


class Failed(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Something went wrong; with a request the reply is over, and what was sent of it stands."""

    kind: FailureKind
    message: str
    """One line: what was wrong, where, and what to do."""
    request: int | None = None


Event = Hello | Loading | Ready | Started | Prefill | Round | KnobSet | Finished | Failed

command_encoder = event_encoder = msgspec.msgpack.Encoder()
command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
