"""What deliveries say, as JSON. Identifiers and states only: never a payload, a header or a credential (SEC-4)."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import orjson

from gateway.protocol.deadlines import iso
from gateway.protocol.deliveries import DueDelivery


def callback(server_correlation_id: UUID, client_correlation_id: str, at: datetime) -> bytes:
    """ACM-2: exactly these five. `at` is when this attempt is dispatched."""
    return orjson.dumps(
        {
            "server_correlation_id": str(server_correlation_id),
            "client_correlation_id": client_correlation_id,
            "phase_state": "PROCESSING",
            "ponr_crossed": True,
            "callback_timestamp": iso(at),
        }
    )


def compensation(due: DueDelivery) -> bytes:
    """LED-6: the event that the hook subscribed to and when it was, and the intent as it is now."""
    subject = due.subject
    return orjson.dumps(
        {
            "type": f"intent.{due.event.lower()}",
            "timestamp": iso(due.created_at),
            "data": {
                "event": due.event,
                "server_correlation_id": str(subject.server_correlation_id),
                "client_correlation_id": subject.client_correlation_id,
                "caller": subject.caller.hex(),
                "service": subject.service,
                "method": subject.method,
                "path": subject.path.decode("latin-1"),
                "phase": subject.phase,
                "in_doubt": subject.in_doubt,
                "resource_id": subject.resource_id,
                "message": subject.message,
            },
        }
    )
