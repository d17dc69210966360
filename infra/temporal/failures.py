"""Exceptions of activities become Temporal failures here, once for all of them.

    Permanent, InvalidInput   -> ApplicationError(type=<class name>, non_retryable=True)
    Transient, other GyreError, any other exception
                              -> ApplicationError(type=<class name>), retried by the step's policy

Texts are cut, because a failure is stored in the workflow's history and shown in the web UI; the traceback of the
place that raised is kept. Workflows tell failures apart by ``error.cause.type``.
"""

from typing import Any

from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from workflows.messages.errors import GyreError, InvalidInput, Permanent

TEXT_LIMIT = 2000
"""Longest failure text, in characters."""

_CUT = " ... [cut]"


def cut(text: str, limit: int = TEXT_LIMIT) -> str:
    """At most `limit` characters, saying so where something was left out. Lone surrogates become `?`."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - len(_CUT)] + _CUT


def application_error(error: Exception) -> ApplicationError:
    """The failure Temporal sees for `error`; ``details`` holds the field name of an InvalidInput."""
    details = (error.field,) if isinstance(error, InvalidInput) and error.field else ()
    mapped = ApplicationError(
        cut(str(error) or type(error).__name__),
        *details,
        type=type(error).__name__,
        non_retryable=isinstance(error, Permanent | InvalidInput),
    )
    return mapped.with_traceback(error.__traceback__)


class FailureInterceptor(Interceptor):
    """Give it to every Worker that hosts activities: ``Worker(..., interceptors=[FailureInterceptor()])``."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _MapFailures(next)


class _MapFailures(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await self.next.execute_activity(input)
        except FailureError:
            raise  # already Temporal's own: a cancellation, or an ApplicationError raised on purpose
        except GyreError as error:
            raise application_error(error) from None
        except Exception as error:
            # Not ours: a fault in a library or in our code. Retried, its type and place kept, its text cut.
            raise application_error(error) from None
