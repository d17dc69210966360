"""Dialects: how a harness' wire format becomes a ModelRequest, and how a call is told back in it.

`DIALECTS` holds one `Dialect` per wire format; nothing outside this package knows one. Requests are checked against,
and answers built from, the types of the openai and anthropic packages, which are imported when first needed.
"""

from workers.proxy.dialect.dialect import DIALECTS, Dialect, Writer

__all__ = ["DIALECTS", "Dialect", "Writer"]
