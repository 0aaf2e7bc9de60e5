"""Pairs by name: those known to share a vocabulary, and whatever the user adds to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from fsd_chat.engine.messages import Knob, LoadPair, ModelSource, Quantization
from fsd_chat.limits import check_knob
from fsd_chat.toml_file import Key, TomlFile

Dtype = Literal["float32", "bfloat16", "float16"]


class PairChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of the catalogue, or one `[pairs.NAME]` of the configuration."""

    name: str
    target: str
    """A folder, a GGUF file, a hub id, or an embedded model."""
    draft: str | None = None
    """The same, or `prompt-lookup`; none: the target alone."""
    device: str | None = None
    dtype: Dtype | None = None
    quantize: Quantization = "none"
    """The weights of both, on a CPU."""
    trust_remote_code: bool = False
    target_revision: str | None = None
    draft_revision: str | None = None
    target_device: str | None = None
    draft_device: str | None = None
    target_dtype: Dtype | None = None
    draft_dtype: Dtype | None = None
    knob: dict[str, Any] = {}
    """Knob defaults of this pair."""
    target_bytes: int | None = None
    """Of the weights in bfloat16."""
    draft_bytes: int | None = None
    licence: str = ""
    note: str = ""

    def load(self) -> LoadPair:
        target = ModelSource(
            location=self.target,
            revision=self.target_revision,
            trust_remote_code=self.trust_remote_code,
            device=self.target_device or self.device,
            dtype=self.target_dtype or self.dtype,
            quantize=self.quantize,
        )
        return LoadPair(name=self.name, target=target, draft=self._draft_source())

    def _draft_source(self) -> ModelSource | None:
        if not self.draft:
            return None
        return ModelSource(
            location=self.draft,
            revision=self.draft_revision,
            trust_remote_code=self.trust_remote_code,
            device=self.draft_device or self.device,
            dtype=self.draft_dtype or self.dtype,
            quantize=self.quantize,
        )


def catalogue() -> dict[str, PairChoice]:
    """The pairs that come with the package."""
    place = Path(__file__).with_name("catalogue.toml")
    file = TomlFile(place, place.read_text(encoding="utf-8"))
    return {name: read_pair(file, (name,), entry) for name, entry in file.content.items()}


def read_pair(file: TomlFile, where: Key, entry: object) -> PairChoice:
    """The pair at `where`, named by the last part of it. Raises ConfigError."""
    given = file.table(where, entry, PairChoice, without=["name"])
    if not given.get("target"):
        raise file.error(where, "needs a target: a folder, a GGUF file or a hub id")
    if "knob" in given:
        given["knob"] = read_knob(file, (*where, "knob"), given["knob"])
    return PairChoice(name=where[-1], **given)


def read_knob(file: TomlFile, where: Key, entry: dict[str, Any]) -> dict[str, Any]:
    """Knob settings, checked, and only those that are given. Raises ConfigError."""
    drafts = entry.get("lookahead")
    if isinstance(drafts, int) and not isinstance(drafts, bool):
        entry = {**entry, "lookahead": str(drafts)}
    given = file.table(where, entry, Knob)
    for key, value in given.items():
        try:
            check_knob(Knob(**{key: value}))
        except ValueError as error:
            raise file.error((*where, key), f"cannot be used: {error}") from error
    return given
