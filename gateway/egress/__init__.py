"""The other side: makes the handshake for an application that cannot, and writes the client's row of it (COR-4).

An application calls another service through a port of its own gateway, in plain HTTP. This room must not know intents,
routes or the data port: here the gateway is a client.
"""

from gateway.egress.handler import EgressHandler
from gateway.egress.ports import Callee

__all__ = ["Callee", "EgressHandler"]
