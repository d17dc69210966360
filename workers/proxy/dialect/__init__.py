"""Dialects: how a harness' wire format becomes a ModelRequest, and how a call is told back in it.

A dialect is a module with `parse(body) -> ModelRequest`, `answer(...)` for a whole reply, `stream(...)` for its events
and `error_body(...)`. Nothing outside this package knows a wire format.
"""
