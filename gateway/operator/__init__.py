"""The operator listener: health, metrics and the ledger, apart from the data port and behind tokens with roles (SEC-5).

It reads. It must not decide anything about an intent, and nothing on the request path waits for it.
"""

from gateway.operator.access import Token
from gateway.operator.endpoints import MetricsSource, Readiness, Sources
from gateway.operator.listener import OperatorListener

__all__ = ["MetricsSource", "OperatorListener", "Readiness", "Sources", "Token"]
