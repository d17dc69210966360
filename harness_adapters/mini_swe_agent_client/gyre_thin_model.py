"""A model class for mini-swe-agent that speaks to an OpenAI-compatible endpoint with the standard library alone.

Runs inside the harness' own environment, chosen by the harness' own `model_class` setting; the harness itself is
unmodified. It sends what the stock client sends as far as a model can see, and starts in a fraction of the time.
"""

import http.client
import json
import os
import time
import urllib.error
import urllib.request

from minisweagent.exceptions import FormatError  # pyright: ignore[reportMissingImports]
from minisweagent.models.utils.actions_text import (  # pyright: ignore[reportMissingImports]
    format_observation_messages,
    parse_regex_actions,
)
from pydantic import BaseModel

_WAITS_SECONDS = (0.2, 0.5, 1, 2, 4, 8, 15, 15, 15, 15, 30, 30, 30, 30, 30, 30)


class ContextWindowExceededError(Exception):
    """The conversation no longer fits the model. Named as in the stock client, so the trajectory reads the same."""


class ModelRefused(Exception):
    """The endpoint refused the call for good: retrying cannot help."""


class ThinModelConfig(BaseModel):
    model_name: str
    model_kwargs: dict = {}
    action_regex: str
    observation_template: str
    format_error_template: str
    cost_tracking: str = "ignore_errors"


class ThinModel:
    """The harness' Model protocol."""

    def __init__(self, **settings):
        self.config = ThinModelConfig(**settings)

    def query(self, messages, **kwargs):
        settings = self.config.model_kwargs | kwargs
        seconds = settings.pop("timeout", 86400)
        settings.pop("max_retries", None)
        sent = [{key: value for key, value in message.items() if key != "extra"} for message in messages]
        body = {"model": self.config.model_name.removeprefix("openai/"), "messages": sent, **settings}
        choice = _post(body, seconds)["choices"][0]
        message = choice["message"]
        try:
            actions = parse_regex_actions(
                message.get("content") or "",
                action_regex=self.config.action_regex,
                format_error_template=self.config.format_error_template,
                template_kwargs={"finish_reason": choice["finish_reason"]},
            )
        except FormatError as error:
            error.messages[0]["extra"].update(cost=0.0, response=choice)
            raise
        message["extra"] = {"actions": actions, "cost": 0.0, "timestamp": time.time()}
        return message

    def format_message(self, **message):
        return message

    def format_observation_messages(self, message, outputs, template_vars=None):
        return format_observation_messages(
            outputs, observation_template=self.config.observation_template, template_vars=template_vars
        )

    def get_template_vars(self, **kwargs):
        return self.config.model_dump()

    def serialize(self):
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"model": self.config.model_dump(mode="json"), "model_type": kind}}}


def _post(body, seconds):
    """One chat completion. A lost connection or a server error is retried with a bounded number of waits."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    # Straight to the endpoint: no proxy variable of the machine may come between.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    waits = iter(_WAITS_SECONDS)
    while True:
        try:
            with opener.open(request, timeout=seconds) as answer:
                return json.load(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                text = error.read().decode("utf-8", "replace")[:2000]
                kind = ContextWindowExceededError if "context_length_exceeded" in text else ModelRefused
                raise kind(f"{error.code}: {text}") from None
            wait = next(waits, None)
            if wait is None:
                raise
            time.sleep(wait)
