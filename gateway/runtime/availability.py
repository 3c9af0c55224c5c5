"""What a configuration asks for and this release does not do yet: said when it is checked and when it is started.

Where doing without is safe (an intent in doubt is held instead of redriven), it is a warning; where it is not (callers
could not be told apart), the gateway does not start.
"""

from __future__ import annotations

from gateway.settings import Settings


def refusals(settings: Settings) -> list[str]:
    """Why this release cannot run with these settings."""
    if settings.identity.method in ("jwt", "mtls"):
        return [f"identity.method: {settings.identity.method} is not available in this release"]
    return []


def warnings(settings: Settings) -> list[str]:
    """What this release does differently from what these settings say."""
    found = []
    for index, route in enumerate(settings.routes):
        if route.recovery != "hold":
            found.append(f"routes[{index}].recovery: {route.recovery} is not available yet; what is in doubt is held")
        if route.verify is not None:
            found.append(f"routes[{index}].verify: not available yet; nothing is verified")
        if route.replay_policy == "REUSE":
            found.append(f"routes[{index}].replay_policy: REUSE is not available yet; late confirmations are refused")
    if settings.ledger is not None:
        found.append("ledger: sync with a central ledger is not available yet")
    if settings.egress:
        found.append("egress: not available yet; these ports are not opened")
    return found
