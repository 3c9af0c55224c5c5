"""The edge: every byte a client sends enters here, and every answer leaves here.

It knows HTTP/1.1 framing, time and limits, and who is calling; it must not know intents, the ledger or the upstream.
"""

from __future__ import annotations

from gateway.ingress.edge import Edge, EdgeServer, Handler, require_c_parser
from gateway.ingress.inbound import Inbound
from gateway.ingress.limits import BufferBudget, EdgeLimits
from gateway.ingress.tunnel import BytePipe, ClientGone

__all__ = [
    "BufferBudget",
    "BytePipe",
    "ClientGone",
    "Edge",
    "EdgeLimits",
    "EdgeServer",
    "Handler",
    "Inbound",
    "require_c_parser",
]
