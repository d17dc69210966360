"""Talking to a cell's training actor: the client activities use, and what starts the process."""

from infra.actor.client import ActorClient
from infra.actor.process import ActorLaunch, ActorProcess

__all__ = ["ActorClient", "ActorLaunch", "ActorProcess"]
