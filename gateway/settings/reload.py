"""Which changes of the configuration a running gateway cannot take over (OPS-1): pure, over two settings."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.settings.model import Settings


def changes_needing_restart(old: Settings, new: Settings) -> list[str]:
    """The keys that differ and are bound when a process starts; everything else can be reloaded.

    Certificates are read again on reload; only whether there is TLS at all is fixed (SEC-6).
    """
    return [key for (key, before), (_, after) in zip(_fixed(old), _fixed(new), strict=True) if before != after]


def _fixed(settings: Settings) -> Iterator[tuple[str, object]]:
    yield "service.name", settings.service.name  # part of every key that is already consumed (REP-1)
    yield "listen.host", settings.listen.host
    yield "listen.port", settings.listen.port
    yield "listen.tls", settings.listen.tls is not None
    yield "operator.host", settings.operator.host
    yield "operator.port", settings.operator.port
    yield "operator.tls", settings.operator.tls is not None
    yield "workers", settings.workers
    yield "store.url", settings.store.url
    yield "store.owner_url", settings.store.owner_url
    yield "store.data_dir", settings.store.data_dir
    yield "store.buckets", settings.store.buckets
    yield "egress.listen", [egress.listen for egress in settings.egress]
