"""Files, the command line, and both together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import Overrides, SettingsError, defaults_for, load

TEXT = "upstream: {url: 'http://file:1'}\nlisten: {port: 1234, idle_timeout: 5s}\nroutes: [{path: /a}]\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "gateway.yaml"
    file.write_text(TEXT)
    return file


def test_settings_come_from_a_file(file: Path) -> None:
    settings = load(file)
    assert (settings.upstream.url, settings.listen.port) == ("http://file:1", 1234)


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert load(file).listen.port == 1234


def test_the_command_line_goes_before_the_file(file: Path) -> None:
    settings = load(file, overrides=Overrides(listen="[::1]:81", operator="127.0.0.1:82", upstream="https://line"))
    assert (settings.listen.host, settings.listen.port, settings.listen.idle_timeout_ms) == ("::1", 81, 5_000)
    assert (settings.operator.host, settings.operator.port) == ("127.0.0.1", 82)
    assert settings.upstream.url == "https://line"
    assert [route.path for route in settings.routes] == ["/a"]


def test_the_command_line_can_name_what_the_file_leaves_out(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    for text in ("workers: 2", "workers: 2\nupstream:\nlisten:\n", "workers: 2\nupstream: {timeout: 3s}"):
        file.write_text(text)
        settings = load(file, overrides=Overrides(upstream="http://line", listen="127.0.0.1:5"))
        assert (settings.workers, settings.upstream.url, settings.listen.port) == (2, "http://line", 5)


WRONG_OPTIONS = [
    (Overrides(listen=":80"), "--listen: listen: found `:80`; allowed: HOST:PORT"),
    (Overrides(listen="80"), "--listen: listen: found `80`; allowed: HOST:PORT"),
    (Overrides(listen="localhost:99999"), "--listen: listen: found `localhost:99999`; allowed: HOST:PORT"),
    (Overrides(operator="::1:80"), "--operator: operator: found `::1:80`; allowed: HOST:PORT"),
    (Overrides(operator="0.0.0.0:80"), "--operator: operator.host: http without TLS on 0.0.0.0"),
    (Overrides(listen="0.0.0.0:80"), "--listen: listen.host: http without TLS on 0.0.0.0"),
    (Overrides(upstream="127.0.0.1:3000"), "--upstream: upstream.url: found `127.0.0.1:3000`; allowed: an http"),
    (Overrides(upstream="http://u:p@x"), "--upstream: upstream.url: found text (not shown)"),
]


@pytest.mark.parametrize(("overrides", "message"), WRONG_OPTIONS)
def test_a_wrong_option_is_named_as_such(file: Path, overrides: Overrides, message: str) -> None:
    """OPS-2, SEC-6."""
    with pytest.raises(SettingsError) as caught:
        load(file, overrides=overrides)
    (fault,) = caught.value.errors
    assert str(fault).startswith(message)


def test_an_option_is_reported_beside_what_is_wrong_in_the_file(file: Path) -> None:
    file.write_text("listen: 3\nworkers: 0\nupstream: {url: 'http://x'}")
    with pytest.raises(SettingsError) as caught:
        load(file, overrides=Overrides(listen="127.0.0.1:1", operator="x"))
    assert [fault.key for fault in caught.value.errors] == ["operator", "listen", "workers"]


def test_without_a_file_everything_is_standard() -> None:
    settings = defaults_for("http://127.0.0.1:3000", listen="127.0.0.1:0", operator="127.0.0.1:0")
    assert settings.store.embedded
    assert [(route.path, route.mode, route.ttl_ms) for route in settings.routes] == [("/**", "standard", 30_000)]
    assert (settings.upstream.url, settings.listen.port, settings.operator.port) == ("http://127.0.0.1:3000", 0, 0)
    assert settings == load(None, overrides=Overrides("127.0.0.1:0", "127.0.0.1:0", "http://127.0.0.1:3000"))


def test_without_a_file_the_upstream_is_asked_for() -> None:
    with pytest.raises(SettingsError, match=r"^command line: upstream\.url: missing; .* pass --upstream URL$"):
        load(None)


def test_a_trailing_slash_of_the_upstream_is_no_path() -> None:
    assert defaults_for("http://127.0.0.1:3000/").upstream.url == "http://127.0.0.1:3000"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(SettingsError) as caught:
        load(missing)
    assert str(caught.value) == f"{missing}: No such file or directory"
    with pytest.raises(SettingsError, match="Is a directory"):
        load(tmp_path)


def test_a_file_that_is_no_text_is_refused_with_its_place(file: Path) -> None:
    file.write_bytes(b"a: b\nc: \xff\n")
    with pytest.raises(SettingsError) as caught:
        load(file)
    assert str(caught.value) == f"{file}:2:4: not valid YAML: not UTF-8 text"


def test_a_file_of_any_size_is_not_read_to_its_end(file: Path) -> None:
    file.write_bytes(b"#" * (2 << 20))
    with pytest.raises(SettingsError, match="larger than 1048576 bytes"):
        load(file)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.internal"])
def test_plain_http_beyond_loopback_must_be_said_out_loud(tmp_path: Path, tls_files: Path, host: str) -> None:
    """SEC-6."""
    file = tmp_path / "gateway.yaml"
    base = "upstream: {url: 'http://x'}\n"
    tls = "tls: {cert: tls/server.pem, key: tls/server.key}"
    file.write_text(f"{base}listen: {{host: '{host}', {tls}}}\noperator: {{host: '{host}', {tls}}}")
    assert load(file).listen.tls is not None
    egress = "egress: [{listen: '0.0.0.0:9001', target: a, url: 'http://b'}]"
    file.write_text(f"{base}listen: {{host: '{host}', plaintext: allowed}}\noperator: {{host: '{host}'}}\n{egress}")
    assert load(file).listen.plaintext == "allowed"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "LOCALHOST"])
def test_plain_http_on_loopback_needs_nothing(tmp_path: Path, host: str) -> None:
    """SEC-6."""
    file = tmp_path / "gateway.yaml"
    file.write_text(f"upstream: {{url: 'http://x'}}\nlisten: {{host: '{host}'}}\noperator: {{host: '{host}'}}")
    assert load(file).warnings == ()
