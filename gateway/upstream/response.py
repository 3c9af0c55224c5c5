"""The answer as it arrives: an incremental reading of one response, with no socket and no clock.

One parser per response (httptools). It adds what a gateway needs on top of llhttp: informational answers are skipped,
HEAD ends at the headers, trailers are dropped, every size is bounded, and framing that two readers could understand
in two ways is an error. It must not wait, and must not know where the bytes come from.
"""

from __future__ import annotations

from math import inf

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.protocol.messages import Header

HEAD_BYTES_MAX = 64 * 1024  # all heads of one answer together, informational ones included, so a flood of 103 ends too
BARREN_BYTES_MAX = 64 * 1024  # chunk extensions and trailers in a row without one body byte
KEEP_ALIVE_MARGIN_S = 1.0  # give up a connection before the upstream does: a request that crosses its close is in doubt

_NOTABLE_LENGTHS = frozenset({10, 14, 17})  # of Connection and Keep-Alive, Content-Length, Transfer-Encoding
_VERSIONS = {"1.1": (1, 1), "1.0": (1, 0)}


class FramingError(Exception):
    """The upstream's bytes are no answer that can be passed on."""


class Response:
    """Status, headers and body bytes of one answer. `status` is 0 until the final head has arrived."""

    __slots__ = (
        "_barren_bytes",
        "_chunks",
        "_closes",
        "_head_only",
        "_head_room",
        "_keeps",
        "_parser",
        "_upgrade_asked",
        "buffered_bytes",
        "chunked",
        "complete",
        "content_length",
        "continued",
        "extra",
        "headers",
        "keep_for_s",
        "leftover",
        "reason",
        "status",
        "upgraded",
        "version",
    )

    def __init__(self, *, head_only: bool, upgrade_asked: bool) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[Header] = []
        self.version: tuple[int, int] = (1, 1)
        self.content_length: int | None = None
        self.chunked = False
        self.complete = False  # the whole body has arrived
        self.continued = False  # a 100 has arrived
        self.upgraded = False  # a 101 has arrived; `leftover` is what came after its head
        self.leftover = b""
        self.extra = False  # bytes came after the end of the answer
        self.keep_for_s = inf  # what the upstream's Keep-Alive allows
        self.buffered_bytes = 0
        self._chunks: list[bytes] = []
        self._head_only = head_only
        self._upgrade_asked = upgrade_asked
        self._head_room = HEAD_BYTES_MAX
        self._barren_bytes = 0
        self._closes = False
        self._keeps = False
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    @property
    def until_close(self) -> bool:
        """True if nothing but the end of the connection delimits the body."""
        return self.content_length is None and not self.chunked

    @property
    def reusable(self) -> bool:
        """True if the upstream keeps the connection and nothing on it is left over."""
        if self.extra or self._closes or not self.complete:
            return False
        if self.version == (1, 1):
            return True
        return self._keeps and not self.chunked  # RFC 9112 6.1: chunked on HTTP/1.0 is suspect, close afterwards

    def feed(self, data: bytes) -> None:
        """Take bytes from the wire; a FramingError ends it."""
        if self.status:
            self._barren_bytes += len(data)  # on_body sets it back
            self._parse(data)
            if self._barren_bytes > BARREN_BYTES_MAX and not self.complete:
                raise FramingError("chunk extensions or trailers without end")
        else:
            self._feed_head(data)

    def _feed_head(self, data: bytes) -> None:
        room = self._head_room
        if len(data) <= room:
            self._head_room = room - len(data)
            self._parse(data)
            return
        self._parse(data[:room])
        if not self.status:
            raise FramingError(f"the head is larger than {HEAD_BYTES_MAX} bytes")
        if self.upgraded:
            self.leftover += data[room:]
        elif self.complete:
            self.extra = True
        else:
            self.feed(data[room:])

    def end(self) -> bool:
        """The connection's orderly end: True if that completes the body."""
        if self.status and not self.upgraded and self.until_close:
            self.complete = self._closes = True
        return self.complete

    def take(self, limit: int) -> bytes:
        """Remove and return up to `limit` of the body bytes that have arrived."""
        chunks = self._chunks
        if not chunks:
            return b""
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if len(data) <= limit:
            self._chunks = []
            self.buffered_bytes = 0
            return data
        self._chunks = [data[limit:]]
        self.buffered_bytes = len(data) - limit
        return data[:limit]

    def _parse(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self.extra = True
            return
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self.leftover = data[upgrade.args[0] :]
        except HttpParserCallbackError as error:
            raise FramingError(str(error.__context__ or error)) from error
        except HttpParserError as error:
            if not self.complete:
                raise FramingError(str(error)) from error
            self.extra = True
        if self.complete or self.upgraded:
            self._parser = None  # parser and response refer to each other: without this every answer waits for the gc

    # Callbacks of the parser, in the order of a message.

    def on_message_begin(self) -> None:
        if self.complete:
            self.extra = True

    def on_status(self, reason: bytes) -> None:
        if not self.status:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            return  # a trailer
        self.headers.append((name, value))
        if len(name) in _NOTABLE_LENGTHS:
            self._note(name.lower(), value)

    def on_headers_complete(self) -> None:
        if self.status:
            return  # of something after the end of the answer
        parser = self._parser
        assert parser is not None
        version = _VERSIONS.get(parser.get_http_version())
        if version is None:
            raise FramingError("the answer is neither HTTP/1.1 nor HTTP/1.0")
        self.version = version
        status = parser.get_status_code()
        if status >= 200:
            self.status = status
            self.complete = self._head_only
        elif status == 101:
            if not self._upgrade_asked or not parser.should_upgrade():
                raise FramingError("101 without an upgrade that was asked for")
            self.status = status
            self.upgraded = True
        elif status >= 100:
            if status == 100:
                self.continued = True
            self._skip_informational(parser)
        else:
            raise FramingError("the status is below 100")

    def on_body(self, data: bytes) -> None:
        if self.complete:
            self.extra = True  # a body on HEAD
            return
        self._barren_bytes = 0
        self._chunks.append(data)
        self.buffered_bytes += len(data)

    def on_message_complete(self) -> None:
        if not self.status or self.upgraded:
            return
        if self.complete and self.chunked:
            self.extra = True  # the last chunk of a body on HEAD
        self.complete = True

    def _skip_informational(self, parser: HttpResponseParser) -> None:
        self.headers = []
        self.reason = b""
        self.content_length = None
        self.chunked = self._keeps = False
        if not parser.should_keep_alive():
            # `Connection: close`, or HTTP/1.0, on an informational head is about what follows the final answer.
            parser.set_dangerous_leniencies(lenient_keep_alive=True)

    def _note(self, name: bytes, value: bytes) -> None:
        if name == b"content-length":
            self.content_length = int(value)
        elif name == b"transfer-encoding":
            # A coding under chunked would be lost when the body is framed anew for the client.
            if self.chunked or value.strip().lower() != b"chunked":
                raise FramingError("Transfer-Encoding is not one plain chunked")
            self.chunked = True
        elif name == b"connection":
            options = {option.strip() for option in value.lower().split(b",")}
            self._closes = self._closes or b"close" in options
            self._keeps = self._keeps or b"keep-alive" in options
        elif name == b"keep-alive":
            self._note_keep_alive(value)

    def _note_keep_alive(self, value: bytes) -> None:
        for parameter in value.lower().split(b","):
            key, _, number = parameter.strip().partition(b"=")
            if key == b"timeout" and number.isdigit():
                self.keep_for_s = int(number) - KEEP_ALIVE_MARGIN_S
