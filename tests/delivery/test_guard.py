"""ACM-4, RELIABILITY fact 4: where callbacks may go, decided without DNS and for every address."""

from __future__ import annotations

import socket
from ipaddress import ip_network

import pytest

from gateway.delivery.guard import AddressGuard
from gateway.delivery.targets import BadTarget, parse, trusted
from gateway.protocol.problems import Problem, to_answer
from tests.delivery.refused_urls import REFUSED

PUBLIC_ADDRESSES = [
    *("8.8.8.8", "93.184.216.34", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.255.255", "172.32.0.1"),
    *("168.63.129.17", "223.255.255.255", "192.0.1.1", "198.17.255.255", "198.20.0.1", "11.0.0.1", "126.255.255.255"),
    *("2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "2001:4860:4860::8888", "2400:cb00::1", "::ffff:8.8.8.8"),
]


def reason_of(guard: AddressGuard, url: str) -> str | None:
    """Why a URL is refused; None when it is not."""
    try:
        guard.check_url(url)
    except Problem as problem:
        refusal = problem
    else:
        return None
    assert (refusal.slug, refusal.status) == ("callback-refused", 400)
    reason: str = refusal.extra["reason"]
    return reason


@pytest.mark.parametrize(("url", "reason"), REFUSED)
def test_a_callback_url_that_must_not_be_called_is_refused_with_its_reason(url: str, reason: str) -> None:
    """ACM-4."""
    assert reason_of(AddressGuard(), url) == reason


@pytest.mark.parametrize(("url", "reason"), [row for row in REFUSED if row[1] not in ("scheme", "port")])
def test_neither_http_nor_any_port_opens_what_is_refused(url: str, reason: str) -> None:
    """ACM-4: `allow_http` and `ports` widen nothing but schemes and ports."""
    guard = AddressGuard(allow_http=True, ports=range(1, 65536))
    assert reason_of(guard, url) == reason


@pytest.mark.parametrize("url", [url for url, _ in REFUSED if len(url) > 12])
def test_a_refusal_repeats_nothing_of_the_url(url: str) -> None:
    """OPS-3: what the caller sent reaches no answer."""
    with pytest.raises(Problem) as caught:
        AddressGuard().check_url(url)
    answer = to_answer(caught.value)
    said = answer.body + b"".join(value for _, value in answer.headers)
    assert url.encode() not in said
    assert b"example" not in said


@pytest.mark.parametrize(
    ("url", "host", "port", "target"),
    [
        ("https://hooks.example.com", "hooks.example.com", 443, "/"),
        ("https://hooks.example.com/", "hooks.example.com", 443, "/"),
        ("HTTPS://Hooks.Example.COM/Path", "hooks.example.com", 443, "/Path"),
        ("https://hooks.example.com:8443/a/b?c=d&e=%20f", "hooks.example.com", 8443, "/a/b?c=d&e=%20f"),
        ("https://hooks.example.com?token=1", "hooks.example.com", 443, "/?token=1"),
        ("https://hooks.example.com/a%2fb/../c//d", "hooks.example.com", 443, "/a%2fb/../c//d"),
        ("https://hooks.example.com/@127.0.0.1", "hooks.example.com", 443, "/@127.0.0.1"),
        ("https://my_hooks.example.com/", "my_hooks.example.com", 443, "/"),
        ("https://xn--mnchen-3ya.example/", "xn--mnchen-3ya.example", 443, "/"),
        ("https://127.0.0.1.nip.example/", "127.0.0.1.nip.example", 443, "/"),
        ("https://localhost.example.com/", "localhost.example.com", 443, "/"),
        ("https://my.notlocal/", "my.notlocal", 443, "/"),
        ("https://0xfoo.example.0xzz/", "0xfoo.example.0xzz", 443, "/"),
        ("https://8.8.8.8/", "8.8.8.8", 443, "/"),
        ("https://134744072/", "8.8.8.8", 443, "/"),
        ("https://0x08080808:8443/", "8.8.8.8", 8443, "/"),
        ("https://010.010.010.010/", "8.8.8.8", 443, "/"),
        ("https://[2606:4700:4700:0:0:0:0:1111]/", "2606:4700:4700::1111", 443, "/"),
        ("https://[::ffff:8.8.8.8]:443/", "::ffff:808:808", 443, "/"),
    ],
)
def test_a_public_url_is_taken_and_what_was_checked_is_what_is_dialled(
    url: str, host: str, port: int, target: str
) -> None:
    """ACM-4: one parser; every notation of an address becomes the address itself."""
    found = AddressGuard().check_url(url)
    assert (found.host, found.port, found.trusted) == (host, port, False)
    dialled = found.url
    assert (dialled.scheme, dialled.raw_host, dialled.port, dialled.raw_path_qs) == ("https", host, port, target)


@pytest.mark.parametrize("address", PUBLIC_ADDRESSES)
def test_public_addresses_may_be_connected_to(address: str) -> None:
    assert AddressGuard().check_address(address) is None


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("fe80::1%eth0", "link-local"),
        ("::ffff:169.254.169.254", "metadata"),
        ("64:ff9b::8.8.8.8", "nat64"),
        ("2002:808:808::1", "6to4"),
        ("ff02::1", "multicast"),
        ("10.1.2.3", "private"),
    ],
)
def test_an_address_is_decided_as_the_resolver_writes_it(address: str, reason: str) -> None:
    """ACM-4: mapped addresses are IPv4 ones, zones change nothing."""
    assert AddressGuard().check_address(address) == reason


@pytest.mark.parametrize("url", [url for url, reason in REFUSED if reason == "loopback"])
def test_the_table_of_loopback_notations_is_true_for_this_machine(url: str) -> None:
    """The notations are no invention: the system's own resolver reads them as loopback too, where it reads them."""
    host = url.removeprefix("https://").partition("/")[0].removesuffix(":8443").strip("[]")
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, 443, type=socket.SOCK_STREAM)}
    except OSError:
        return
    guard = AddressGuard()
    assert {guard.check_address(address) for address in found} <= {"loopback"}


# --- the operator's exceptions


def test_http_is_taken_when_the_operator_allows_it_on_an_allowed_port() -> None:
    guard = AddressGuard(allow_http=True, ports=(80, 443))
    assert guard.check_url("http://hooks.example.com/").port == 80
    assert reason_of(AddressGuard(allow_http=True), "http://hooks.example.com/") == "port"
    assert reason_of(guard, "http://127.0.0.1/") == "loopback"


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("hooks", "https://hooks/", True),
        ("hooks", "https://hooks:9000/", True),
        ("hooks", "https://HOOKS/", True),
        ("hooks", "https://hooks.evil.internal/", False),
        ("hooks", "https://evil-hooks/", False),
        ("hooks.internal:8080", "https://hooks.internal:8080/", True),
        ("hooks.internal:8080", "https://hooks.internal/", False),
        ("hooks.internal:8080", "https://hooks.internal:8081/", False),
        ("127.0.0.1:7000", "https://127.0.0.1:7000/", True),
        ("127.0.0.1:7000", "https://0x7f000001:7000/", True),
        ("127.0.0.1:7000", "https://127.0.0.1/", False),
        ("127.0.0.1:7000", "https://127.0.0.2:7000/", False),
        ("::1", "https://[::1]:9000/", True),
        ("[::1]:9000", "https://[0:0::1]:9000/", True),
        ("[::1]:9000", "https://[::1]:9001/", False),
        ("hooks.example.com", "https://hooks.example.com:9000/", True),
        ("hooks.example.com", "https://api.hooks.example.com:9000/", False),
    ],
)
def test_an_allowed_host_is_trusted_wherever_it_resolves_to_and_on_the_ports_it_names(
    entry: str, url: str, allowed: bool
) -> None:
    """ACM-4: `allow_hosts`."""
    guard = AddressGuard(allow_hosts=[entry])
    assert (reason_of(guard, url) is None) is allowed
    if allowed:
        assert guard.check_url(url).trusted


def test_an_allowed_host_still_needs_https() -> None:
    """ACM-4: the exceptions lift addresses and ports, `allow_http` lifts the scheme."""
    assert reason_of(AddressGuard(allow_hosts=["hooks"]), "http://hooks/") == "scheme"
    assert AddressGuard(allow_hosts=["hooks"], allow_http=True).check_url("http://hooks:81/").port == 81


@pytest.mark.parametrize(
    ("network", "address", "allowed"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", True),
        ("10.0.0.0/8", "127.0.0.1", False),
        ("fd00::/8", "fd12::1", True),
        ("fd00::/8", "fe80::1", False),
        ("64:ff9b::/96", "64:ff9b::8.8.8.8", True),
    ],
)
def test_an_allowed_network_is_added_to_the_public_ones(network: str, address: str, allowed: bool) -> None:
    """ACM-4: `allow_networks`."""
    for given in (network, ip_network(network)):
        assert (AddressGuard(allow_networks=[given]).check_address(address) is None) is allowed


def test_an_address_in_an_allowed_network_may_be_called_on_any_port_in_any_notation() -> None:
    guard = AddressGuard(allow_networks=["127.0.0.0/8"])
    for url in ("https://127.0.0.1:9000/", "https://2130706433:9000/", "https://[::ffff:127.0.0.1]:9000/"):
        target = guard.check_url(url)
        assert target.port == 9000
        assert not target.trusted  # it is checked again when it is dialled
    assert reason_of(guard, "https://localhost:8443/") == "internal-name"
    assert reason_of(guard, "https://hooks.example.com:9000/") == "port"


def test_a_hook_of_the_operators_own_is_trusted_but_must_be_a_url() -> None:
    """LED-6: compensation URLs stand in the configuration."""
    hook = trusted("http://127.0.0.1:7000/undo?x=1")
    assert (hook.host, hook.port, hook.trusted) == ("127.0.0.1", 7000, True)
    with pytest.raises(BadTarget):
        trusted("not a url")


def test_a_target_does_not_print_its_path() -> None:
    """SEC-4: a URL may carry a caller's secret."""
    assert "secret" not in repr(parse("https://hooks.example.com/secret"))


def test_host_keys_tell_hosts_and_ports_apart() -> None:
    keys = {parse(f"https://{host}/").host_key for host in ("a.example", "b.example", "a.example:8443")}
    assert len(keys) == 3
    assert all(0 <= key < 2**63 for key in keys)
    assert parse("https://A.example/x").host_key == parse("https://a.example:443/y").host_key
