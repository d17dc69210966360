"""Temporal: how to reach it, how to start a development server, how our exceptions become its failures."""

from infra.temporal.client import connect
from infra.temporal.failures import FailureInterceptor, application_error

__all__ = ["FailureInterceptor", "application_error", "connect"]
