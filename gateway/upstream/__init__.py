"""The one way to an upstream: pooled keep-alive HTTP/1.1 connections of our own, and the forwarding rules.

A request leaves here at most once (REC-8): nothing in this room repeats a request of which a byte was handed to a
socket, and no redirect is followed. It must not know routes, intents or the ledger.
"""

from __future__ import annotations

from gateway.upstream.client import Upstream
from gateway.upstream.exchange import Exchange
from gateway.upstream.failure import FailureKind, UpstreamFailure
from gateway.upstream.tunnel import Tunnel

__all__ = ["Exchange", "FailureKind", "Tunnel", "Upstream", "UpstreamFailure"]
