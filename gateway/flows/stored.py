"""The stored answer of an executed intent (RPL-1, RPL-2), whenever it is asked for."""

from __future__ import annotations

from gateway.flows.ports import Desk
from gateway.flows.sealed import open_message
from gateway.flows.voices import Told, Voice
from gateway.protocol.intents import Intent
from gateway.protocol.messages import Answer
from gateway.protocol.recovery import SETTLED_LATER


async def stored_answer(desk: Desk, intent: Intent, voice: Voice) -> Answer:
    """What the first caller got, byte for byte."""
    response = await desk.intents.response(intent.key)
    server_id, phase = intent.server_correlation_id, intent.stored_phase
    if response is None:
        kind = "settled" if intent.message in SETTLED_LATER else "stored"
        return voice.unreached(server_id, phase, intent.resource_id, intent.message, kind)
    headers, body = open_message(desk.vault, b"response", intent.key, response.sealed)
    told = Told(server_id, phase, intent.resource_id, intent.message, response.status, headers)
    return voice.executed(told, body) if response.kept else voice.unkept(told)
