"""The operator listener: apart from the data port and behind tokens with roles (SEC-5).

Nothing on the request path waits for it.
"""

from gateway.operator.access import Access, Token
from gateway.operator.endpoints import ENDPOINTS, MetricsSource, Readiness, Sources
from gateway.operator.listener import Listener

__all__ = ["ENDPOINTS", "Access", "Listener", "MetricsSource", "Readiness", "Sources", "Token"]
