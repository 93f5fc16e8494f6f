"""The address policy: judged as addresses, whatever they were written as."""

from __future__ import annotations

import pytest

from noetl.clients.http.policy import AddressPolicy, AddressRefused
from noetl.core.errors import SettingsInvalid
from noetl.core.limits import HTTP_VERDICTS_MAX

PUBLIC = [
    *("93.184.216.34", "8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0"),
    *("169.253.255.255", "169.255.0.0", "192.167.255.255", "223.255.255.255", "126.255.255.255", "128.0.0.0"),
    *("2606:4700:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
]
SPECIAL = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.0.1"),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1"),
    *("192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1"),
    *("240.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::7f00:1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1", "100::1", "2001::1", "2001:10::1", "2001:20::1"),
    *("2001:db8::1", "2002:7f00:1::", "2002:a00:1::", "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1"),
    *("fe80::1%eth0", "fec0::1", "ff02::1", "5f00::1", "4000::1", "::ffff:0:127.0.0.1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_the_public_internet_is_admitted(address: str) -> None:
    policy = AddressPolicy()
    policy.check_host(address, 443)
    policy.check_resolved("example.test", 443, [address])
    policy.check_connection(address, 443)


@pytest.mark.parametrize("address", SPECIAL)
def test_special_addresses_are_refused_at_every_wall(address: str) -> None:
    policy = AddressPolicy()
    with pytest.raises(AddressRefused):
        policy.check_host(address, 80)
    with pytest.raises(AddressRefused):
        policy.check_resolved("example.test", 80, ["8.8.8.8", address])
    with pytest.raises(AddressRefused):
        policy.check_connection(address, 80)


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.1", "017700000001", "127.0.0.1."),
        *("0x7f.0x0.0x0.0x1", "1", "0", "0x", "256.256.256.256", "example.1", "a.0x1", "8.8.8.8.", "08.8.8.8"),
        *("", ".", "a..b", "-a.test", "a-.test", "a b", "a/b", "a@b", "a%2eb", "[::1]", "é.test", "a:b"),
        "a" * 64,
        ".".join(["a" * 60] * 5),
    ],
)
def test_what_is_neither_address_nor_name_is_refused_unseen(host: str) -> None:
    for policy in (AddressPolicy(), AddressPolicy(["loopback", "private", "0.0.0.0/0", "::/0"])):
        with pytest.raises(AddressRefused):
            policy.check_host(host, 80)


@pytest.mark.parametrize(
    "host", ["localhost", "example.test", "a_b.test", "xn--e1afmkfd.test", "EXAMPLE.test.", "7z.io"]
)
def test_a_name_passes_to_be_resolved(host: str) -> None:
    AddressPolicy().check_host(host, 80)


def test_one_bad_address_among_good_ones_is_enough() -> None:
    policy = AddressPolicy()
    for addresses in (["8.8.8.8", "127.0.0.1"], ["::1", "8.8.8.8"], ["8.8.8.8", "no address"]):
        with pytest.raises(AddressRefused):
            policy.check_resolved("example.test", 80, addresses)


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ("loopback", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"], ["10.0.0.1", "0.0.0.0", "::", "fe80::1"]),
        ("private", ["10.1.2.3", "172.16.0.1", "192.168.1.1", "fd12::1"], ["127.0.0.1", "169.254.169.254", "::1"]),
        ("private", [], ["fd00:ec2::254", "100.100.100.200", "192.0.0.192"]),
        (" LOOPBACK ", ["127.0.0.1"], []),
        ("10.2.0.0/16", ["10.2.255.1", "::ffff:10.2.0.1"], ["10.3.0.1", "127.0.0.1"]),
        ("10.2.0.7", ["10.2.0.7"], ["10.2.0.8"]),
        ("fd00::/8", ["fd00::1", "fd00:ec2::254"], ["fc00::1", "10.0.0.1"]),
        ("169.254.169.254/32", ["169.254.169.254"], ["169.254.169.253"]),
        ("::1", ["::1"], ["127.0.0.1"]),
    ],
)
def test_an_entry_opens_what_it_says(entry: str, inside: list[str], outside: list[str]) -> None:
    policy = AddressPolicy([entry])
    for address in inside:
        policy.check_host(address, 80)
        policy.check_connection(address, 80)
    for address in outside:
        with pytest.raises(AddressRefused):
            policy.check_host(address, 80)


@pytest.mark.parametrize(("entry", "host"), [("127.0.0.1:5555", "127.0.0.1"), ("[::1]:5555", "::1")])
def test_an_entry_with_a_port_opens_that_port(entry: str, host: str) -> None:
    policy = AddressPolicy([entry])
    policy.check_host(host, 5555)
    policy.check_connection(host, 5555)
    with pytest.raises(AddressRefused):
        policy.check_host(host, 80)


def test_an_allowed_name_may_be_at_home_but_not_at_the_metadata_service() -> None:
    policy = AddressPolicy(["Inner.Test", "one.test:8080"])
    with pytest.raises(AddressRefused):
        policy.check_connection("10.0.0.5", 80)
    policy.check_resolved("inner.test.", 80, ["10.0.0.5", "127.0.0.1"])
    policy.check_connection("10.0.0.5", 80)
    policy.check_resolved("one.test", 8080, ["192.168.0.9"])
    for host, port, address in (
        ("inner.test", 80, "169.254.169.254"),
        ("inner.test", 80, "fd00:ec2::254"),
        ("inner.test", 80, "0.0.0.0"),
        ("one.test", 80, "192.168.0.9"),
        ("other.test", 80, "10.0.0.5"),
        ("sub.inner.test", 80, "10.0.0.5"),
    ):
        with pytest.raises(AddressRefused):
            policy.check_resolved(host, port, [address])


def test_what_a_name_was_granted_is_no_licence_for_a_literal_address() -> None:
    policy = AddressPolicy(["inner.test"])
    policy.check_resolved("inner.test", 80, ["10.0.0.5"])
    with pytest.raises(AddressRefused):
        policy.check_host("10.0.0.5", 80)
    with pytest.raises(AddressRefused):
        policy.check_resolved("other.test", 80, ["10.0.0.5"])
    with pytest.raises(AddressRefused):
        policy.check_connection("10.0.0.5", 81)


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.0/33", "10.0.0.1/8", "host:0", "host:99999", "host:http", "a b", "*", "*.test", "1.2.3"]
)
def test_a_wrong_entry_stops_the_start_and_is_named(entry: str) -> None:
    with pytest.raises(SettingsInvalid, match="allow-list"):
        AddressPolicy(["loopback", entry])


def test_what_is_remembered_is_bounded() -> None:
    policy = AddressPolicy(["inner.test"])
    for number in range(HTTP_VERDICTS_MAX + 50):
        policy.check_host(f"host{number}.test", 80)
        policy.check_resolved("inner.test", number + 1, ["10.0.0.5"])
    assert len(policy._verdicts) == HTTP_VERDICTS_MAX
    assert len(policy._granted) == HTTP_VERDICTS_MAX
