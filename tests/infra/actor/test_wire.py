import inspect

import pytest

from infra.actor.client import ActorClient
from infra.actor.wire import ROUTES, body_of, exception_of, status_of
from workflows.messages import errors
from workflows.messages import training as m


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Fenced("old lease"), 409),
        (errors.VersionMismatch("v3 held"), 409),
        (errors.CheckpointUnusable("none"), 409),
        (errors.Permanent("not finite"), 409),
        (errors.InvalidInput("too long", field="micro_step.index"), 400),
        (errors.InvalidInput("too long"), 400),
        (errors.StillHeld("one reader"), 503),
        (errors.TransferFailed("peer is gone"), 503),
    ],
)
def test_an_error_comes_out_as_it_went_in(error: errors.GyreError, status: int) -> None:
    assert status_of(error) == status
    back = exception_of(status, body_of(error).model_dump())
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_an_answer_that_is_no_error_of_ours_is_the_actor_being_unavailable() -> None:
    for body in (None, {}, {"error": "Exception", "message": "?"}, {"error": "Message", "message": "?"}, "text"):
        assert type(exception_of(502, body)) is errors.ActorUnavailable


def test_the_client_has_a_method_for_every_route() -> None:
    for name, (request, reply) in ROUTES.items():
        signature = inspect.signature(getattr(ActorClient, name))
        assert signature.parameters["request"].annotation is request
        assert signature.return_annotation is reply


async def test_nobody_there_is_unavailable() -> None:
    async with ActorClient("http://127.0.0.1:9", "key") as client:
        with pytest.raises(errors.ActorUnavailable, match="did not answer /resume"):
            await client.resume(m.Resume(boot_epoch=1))


async def test_the_wrong_request_does_not_leave() -> None:
    async with ActorClient("http://127.0.0.1:9", "key") as client:
        with pytest.raises(TypeError, match="seal takes BatchRequest"):
            await client._call("seal", m.Resume(boot_epoch=1), m.SealReply)
