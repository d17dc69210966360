"""What a model folder tells the paced engine: ids it may say, ids that end an answer, the weights' checksum."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from workflows.messages.errors import InvalidSpec


@dataclass(frozen=True)
class Vocabulary:
    """`ordinary`: ids of plain printable text. `ends`: ids that the folder says end a turn."""

    size: int
    ordinary: tuple[int, ...]
    ends: tuple[int, ...]
    tokenizer: Tokenizer | None


def read_vocabulary(folder: str, size: int) -> Vocabulary:
    """The vocabulary of `folder`; without one, ids 3..size-1 are ordinary and nothing ends an answer."""
    file = Path(folder) / "tokenizer.json"
    if not folder or not file.is_file():
        return Vocabulary(size, tuple(range(3, size)), (), None)
    tokenizer = Tokenizer.from_file(str(file))
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    words = {text: i for text, i in tokenizer.get_vocab().items() if text not in added}
    ordinary = sorted(i for text, i in words.items() if all(" " < char <= "~" or char == "Ġ" for char in text))
    config_file = Path(folder) / "config.json"
    config = json.loads(config_file.read_text()) if config_file.is_file() else {}
    declared = config.get("eos_token_id")
    ends = list(declared) if isinstance(declared, list) else [] if declared is None else [declared]
    marker = tokenizer.token_to_id("<|im_end|>")
    if marker is not None and marker not in ends:
        ends.append(marker)
    vocab = max(int(config.get("vocab_size") or 0), max(tokenizer.get_vocab().values()) + 1)
    return Vocabulary(vocab, tuple(ordinary), tuple(ends), tokenizer)


def weights_checksum(folder: str) -> str:
    """sha256 over the folder's safetensors files in order of name; of nothing, if it has none.

    Raises InvalidSpec if the folder does not exist.
    """
    digest = hashlib.sha256()
    if folder:
        if not Path(folder).is_dir():
            raise InvalidSpec(f"no such folder: {folder}", field="model_path")
        for file in sorted(Path(folder).glob("*.safetensors")):
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()
