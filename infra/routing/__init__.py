"""Client of the proxy's control API."""

from infra.routing.client import RoutingClient

__all__ = ["RoutingClient"]
