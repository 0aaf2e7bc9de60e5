"""Between the protocol's words and the decoding package's, checked on the way."""

from __future__ import annotations

import secrets

import fsd_chat.decoding.settings as decoding
from fsd_chat.decoding.lookahead import lookahead
from fsd_chat.decoding.records import Token
from fsd_chat.engine.failures import EngineError
from fsd_chat.engine.messages import Generate, Knob, Sampling, TokenRecord

SEEDS = 2**63
"""Seeds are below this, which every torch generator takes."""


def decoding_knob(knob: Knob) -> decoding.Knob:
    """Raises EngineError ("bad-request") for a value that cannot be."""
    try:
        lookahead(knob.lookahead)
        return decoding.Knob(
            rule=knob.rule,
            threshold=knob.threshold,
            divergence=knob.divergence,
            form=knob.form,
            form_k=knob.form_k,
            form_p=knob.form_p,
            on_processed=knob.on_processed,
            lookahead=knob.lookahead,
        )
    except ValueError as error:
        raise EngineError("bad-request", _sentence(error)) from error


def decoding_sampling(sampling: Sampling) -> decoding.Sampling:
    """Raises EngineError ("bad-request") for a value that cannot be."""
    try:
        return decoding.Sampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=sampling.logit_bias,
            greedy_draft=sampling.greedy_draft,
        )
    except ValueError as error:
        raise EngineError("bad-request", _sentence(error)) from error


def check(command: Generate) -> None:
    """What decoding does not check itself. Raises EngineError ("bad-request")."""
    sampling = command.sampling
    problems = {
        "there is no message to reply to": not command.messages,
        f"max_tokens must be 1 or more, not {sampling.max_tokens}": sampling.max_tokens < 1,
        f"exact_prefix must be 0 or more, not {sampling.exact_prefix}": sampling.exact_prefix < 0,
        "a stop string cannot be empty": "" in sampling.stop,
        f"the seed must be from 0 to 2^63 - 1, not {sampling.seed}": not (
            0 <= (sampling.seed or 0) < SEEDS
        ),
    }
    for problem, present in problems.items():
        if present:
            raise EngineError("bad-request", problem)


def seed_of(sampling: Sampling) -> int:
    """The one asked for or a new one, small enough to be exact in any reader of JSON."""
    return secrets.randbits(53) if sampling.seed is None else sampling.seed


def token_record(token: Token, text: str) -> TokenRecord:
    return TokenRecord(
        id=token.id,
        text=text,
        origin=token.origin,
        divergence=token.divergence,
        exact=token.exact,
        target_probability=token.target_probability,
        draft_probability=token.draft_probability,
        rejected=token.rejected,
        spectrum=token.spectrum,
    )


def _sentence(error: ValueError) -> str:
    return f"these settings cannot be used: {error}"
