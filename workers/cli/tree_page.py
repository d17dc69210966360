"""The page of `gyre tree --html`: one file, nothing loaded from anywhere, texts shown as text and never as markup."""

import json
from pathlib import Path

from workers.cli.tree_view import TreeView

_TEMPLATE = Path(__file__).with_name("tree.html")


def page(shown: TreeView) -> str:
    """The page as HTML."""
    data = json.dumps(shown.as_dict()).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return _TEMPLATE.read_text(encoding="utf-8").replace("/*DATA*/null", data)
