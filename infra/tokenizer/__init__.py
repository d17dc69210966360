"""Tokenizer and chat template of the policy, without importing transformers (the proxy starts in a blink)."""

from infra.tokenizer.chat import ChatTokenizer
from infra.tokenizer.conversation import canonical
from infra.tokenizer.detokenizer import Detokenizer

__all__ = ["ChatTokenizer", "Detokenizer", "canonical"]
