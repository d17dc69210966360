"""OpenAI's own client accepts what the proxy answers."""

import openai
import pytest

from tests.workers.proxy.conftest import padded, user


@pytest.fixture
async def client(stage):
    await stage.engine(mean_output_tokens=10**9)
    await stage.register()
    async with openai.AsyncOpenAI(base_url=f"{stage.client.base_url}/x/token-0/v1", api_key="any", max_retries=0) as it:
        yield it


async def test_whole_and_streamed_answers(stage, client):
    whole = await client.chat.completions.create(model="policy", messages=[user("a")], max_tokens=9)
    assert whole.usage is not None
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 9)
    stream = await client.chat.completions.create(
        model="policy", messages=[user("a")], max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    assert [model.id async for model in client.models.list()] == ["policy"]


async def test_errors_are_the_clients_own(stage, client):
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="policy", messages=[padded(stage, 900)], max_tokens=200)
    assert refused.value.code == "context_length_exceeded"
    stranger = client.with_options(base_url=f"{stage.client.base_url}/x/guess/v1")
    with pytest.raises(openai.AuthenticationError):
        await stranger.chat.completions.create(model="policy", messages=[user("a")])
    await stage.fault(0, kind="abort", times=50)
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model="policy", messages=[user("a")], max_tokens=5)
    assert failed.value.status_code == 503
