"""How an exchange with the upstream can fail: the rules' own words for it."""

from gateway.protocol.faults import FailureKind, UpstreamFailure

__all__ = ["FailureKind", "UpstreamFailure"]
