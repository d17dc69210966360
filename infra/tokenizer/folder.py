"""The tokenizer's files in a model folder: `tokenizer.json`, `tokenizer_config.json`, and where there are
`chat_template.jinja`, `config.json`, `generation_config.json`. Reads them, and knows nothing of how they are used."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflows.messages.errors import InvalidSpec


@dataclass(frozen=True)
class TokenizerFolder:
    """`spec` is `tokenizer.json`; `settings`, `model` and `generation` the other files, empty where missing."""

    spec: dict[str, Any]
    settings: dict[str, Any]
    model: dict[str, Any]
    generation: dict[str, Any]
    template: str

    @property
    def added(self) -> list[dict[str, Any]]:
        return self.spec.get("added_tokens") or []

    @property
    def max_context(self) -> int:
        """Tokens of prompt plus answer; 0 if the folder does not say."""
        limits = (self.model.get("max_position_embeddings"), self.settings.get("model_max_length"))
        known = [int(limit) for limit in limits if limit and limit < 1e9]
        return min(known) if known else 0

    @property
    def named_tokens(self) -> dict[str, Any]:
        """`bos_token` and the like, which templates may print."""
        named: dict[str, Any] = {}
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            value = self.settings.get(name)
            named[name] = value.get("content") if isinstance(value, Mapping) else value
        return named

    def declared_ends(self, ids: Mapping[str, int]) -> set[int]:
        """Ids that the files declare to end a turn; `ids` are those of the control tokens."""
        found: set[int] = set()
        for source in (self.settings, self.model, self.generation):
            declared = source.get("eos_token_id")
            found.update(declared if isinstance(declared, list) else [] if declared is None else [declared])
            name = source.get("eos_token")
            text = name.get("content") if isinstance(name, Mapping) else name
            if isinstance(text, str) and text in ids:
                found.add(ids[text])
        return found


def read_folder(folder: Path) -> TokenizerFolder:
    """Raises InvalidSpec if a file is missing or the tokenizer is not a byte-level one."""
    spec, settings = _json(folder / "tokenizer.json"), _json(folder / "tokenizer_config.json")
    if not _is_byte_level(spec.get("decoder")):
        raise InvalidSpec("only byte-level tokenizers are supported", field="tokenizer.json.decoder")
    return TokenizerFolder(
        spec,
        settings,
        _json(folder / "config.json", missing={}),
        _json(folder / "generation_config.json", missing={}),
        _template(folder, settings),
    )


def _json(path: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if not path.is_file():
        if missing is None:
            raise InvalidSpec(f"{path} is missing", field=path.name)
        return missing
    return json.loads(path.read_text(encoding="utf-8"))


def _is_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, Mapping):
        return False
    return decoder.get("type") == "ByteLevel" or any(_is_byte_level(item) for item in decoder.get("decoders") or [])


def _template(folder: Path, settings: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        template = next((item["template"] for item in template if item.get("name") == "default"), None)
    if not isinstance(template, str):
        raise InvalidSpec("no chat template", field="tokenizer_config.json.chat_template")
    return template
