"""A tokenizer with a chat template that knows tools, made in a second: all of a model that a rehearsal needs.

There are no weights: the engine of a rehearsal says what a script says.
"""

import json
from pathlib import Path

from infra.demo.bpe import save_tokenizer, train_tokenizer

CONTEXT_TOKENS = 262_144
_VOCABULARY = 2000

TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'A call looks like this: <tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call><|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}\n<tool_call>\n"
    '{"name": {{ call.function.name | tojson }}, "arguments": '
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}}"
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_model(folder: Path, texts: Path) -> Path:
    """A model folder for a rehearsal, its vocabulary learnt from the Markdown files of `texts`."""
    pages = [page.read_text(encoding="utf-8") for page in sorted(texts.rglob("*.md"))]
    save_tokenizer(train_tokenizer(pages, vocabulary=_VOCABULARY), folder, context=CONTEXT_TOKENS)
    settings_file = folder / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text())
    settings_file.write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT_TOKENS, "eos_token_id": 2}))
    return folder
