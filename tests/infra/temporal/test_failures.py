import pytest
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from infra.temporal.failures import TEXT_LIMIT, FailureInterceptor, application_error
from workflows.messages import errors


def every_error(root=errors.GyreError):
    return [root, *(found for child in root.__subclasses__() for found in every_error(child))]


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_only_permanent_and_invalid_input_are_final(kind):
    error = kind(1, 2, 3) if kind is errors.ContextOverflow else kind("went wrong")
    mapped = application_error(error)
    assert mapped.type == kind.__name__
    assert mapped.non_retryable == issubclass(kind, errors.Permanent | errors.InvalidInput)
    assert str(error) in mapped.message


def test_the_field_of_an_invalid_input_is_a_detail():
    assert application_error(errors.InvalidSpec("too hot", field="sampling.temperature")).details == (
        "sampling.temperature",
    )


def test_a_huge_text_is_cut_and_stays_valid():
    mapped = application_error(errors.TransferFailed("\udcff" + "x" * 5_000_000))
    assert len(mapped.message) == TEXT_LIMIT
    assert mapped.message.endswith("[cut]")
    mapped.message.encode()


class Activity(ActivityInboundInterceptor):
    """The end of the interceptor chain: raises what it was given."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def execute_activity(self, input):
        raise self.error


async def fail_with(error: BaseException) -> BaseException:
    chain = FailureInterceptor().intercept_activity(Activity(error))
    call = ExecuteActivityInput(fn=fail_with, args=(), executor=None, headers={})
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - the kind is what the tests look at
        await ActivityEnvironment().run(chain.execute_activity, call)
    return caught.value


async def test_every_activity_failure_is_mapped_once():
    mapped = await fail_with(errors.Fenced("epoch 3 is older than 4"))
    assert isinstance(mapped, ApplicationError)
    assert (mapped.type, mapped.non_retryable, mapped.__cause__) == ("Fenced", True, None)


async def test_a_foreign_exception_is_retried_with_its_text_cut():
    mapped = await fail_with(ValueError("y" * 10_000))
    assert isinstance(mapped, ApplicationError)
    assert (mapped.type, mapped.non_retryable, len(mapped.message)) == ("ValueError", False, TEXT_LIMIT)


@pytest.mark.parametrize("error", [CancelledError("stop"), ApplicationError("on purpose", type="Mine")])
async def test_temporal_s_own_failures_pass_unchanged(error):
    assert await fail_with(error) is error
