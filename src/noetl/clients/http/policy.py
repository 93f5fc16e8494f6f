"""Which addresses the http tool may connect to: the public internet, and what the installation allows beyond it.

Pure: it sees names and addresses and touches no network.  An address is always judged as an `ipaddress` value, so
no spelling of it matters; a host that is neither such a value nor a proper name is refused unseen.
"""

from __future__ import annotations

import ipaddress
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from noetl.core.errors import SettingsInvalid
from noetl.core.limits import HTTP_VERDICTS_MAX

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(word) for word in text.split())


LOOPBACK = _networks("127.0.0.0/8 ::1/128")
PRIVATE = _networks("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7")
# What an allowed name may resolve to beyond the public internet.
_BEHIND_NAMES = LOOPBACK + PRIVATE + _networks("100.64.0.0/10")
# Platforms answer with credentials here; only a network written out for it opens one of these.
_METADATA = _networks("169.254.0.0/16 fe80::/10 fd00:ec2::/32 168.63.129.16/32 192.0.0.192/32 100.100.100.200/32")
# Special ranges by the registries, named here because what `is_global` knows depends on the version of Python.
_SPECIAL_4 = _networks(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
    "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4"
)
_GLOBAL_6 = ipaddress.ip_network("2000::/3")
_SPECIAL_6 = _networks("2001::/23 2001:db8::/32 2002::/16 3fff::/20")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.ASCII)
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*", re.ASCII)


class AddressRefused(OSError):
    """The policy does not admit the host; an OSError, so that a connector treats it as a failed connection."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"the address policy refuses {host!r}")
        self.host = host
        self.port = port


@dataclass(frozen=True, slots=True)
class _Opening:
    """Networks that are allowed, at one port or at all."""

    networks: tuple[Network, ...]
    port: int | None
    opens_metadata: bool

    def admits(self, address: Address, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if not self.opens_metadata and _is_in(address, _METADATA):
            return False
        return _is_in(address, self.networks)


class AddressPolicy:
    """Judges hosts before anything is resolved, addresses before anything is connected."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._openings: list[_Opening] = []
        self._names: set[tuple[str, int | None]] = set()
        for entry in allow:
            self._read(entry)
        self._verdicts: OrderedDict[tuple[str, int], bool] = OrderedDict()
        self._granted: OrderedDict[tuple[Address, int], None] = OrderedDict()

    def _read(self, entry: str) -> None:
        text = entry.strip().lower()
        words = {"loopback": LOOPBACK, "private": PRIVATE}
        if text in words:
            self._openings.append(_Opening(words[text], None, opens_metadata=False))
            return
        network = _network(text)
        if network is not None:
            self._openings.append(_Opening((network,), None, opens_metadata=True))
            return
        host, port = _host_and_port(entry, text)
        network = _network(host)
        if network is not None:
            self._openings.append(_Opening((network,), port, opens_metadata=True))
        elif _is_name(host):
            self._names.add((host, port))
        else:
            raise SettingsInvalid(
                f"http allow-list: {entry!r} is neither loopback, private, a network, a host name nor host:port"
            )

    def check_host(self, host: str, port: int) -> None:
        """The first wall, for every hop.  A name passes: its addresses are judged when it is resolved."""
        key = (host, port)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._is_admissible(host, port)
            self._verdicts[key] = verdict
            if len(self._verdicts) > HTTP_VERDICTS_MAX:
                self._verdicts.popitem(last=False)
        if not verdict:
            raise AddressRefused(host, port)

    def _is_admissible(self, host: str, port: int) -> bool:
        address = parse_address(host)
        return self.admits(address, port) if address is not None else _is_name(_bare(host))

    def check_resolved(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """The second wall: one bad address among them is enough, for the next answer may put it first."""
        parsed = [parse_address(one) for one in addresses]
        is_named = self._allows_name(host, port)
        for address in parsed:
            if address is None or not (self.admits(address, port) or (is_named and _is_behind_name(address))):
                raise AddressRefused(host, port)
        if is_named:
            self._grant((address for address in parsed if address is not None), port)

    def check_connection(self, address: str, port: int) -> None:
        """The last wall, at the socket: nothing is connected to that was not judged."""
        parsed = parse_address(address)
        if parsed is None or not (self.admits(parsed, port) or (parsed, port) in self._granted):
            raise AddressRefused(address, port)

    def admits(self, address: Address, port: int) -> bool:
        return _is_public(address) or any(opening.admits(address, port) for opening in self._openings)

    def _allows_name(self, host: str, port: int) -> bool:
        name = _bare(host)
        return (name, None) in self._names or (name, port) in self._names

    def _grant(self, addresses: Iterable[Address], port: int) -> None:
        """Remember what an allowed name resolved to; a literal address is still judged by the first wall."""
        for address in addresses:
            self._granted[address, port] = None
            self._granted.move_to_end((address, port))
        while len(self._granted) > HTTP_VERDICTS_MAX:
            self._granted.popitem(last=False)


def parse_address(host: str) -> Address | None:
    """The address that a text is, with an IPv4 address inside IPv6 taken out; None for anything else."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.scope_id is not None:
            return ipaddress.IPv6Address(int(address))
    return address


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or _is_in(address, _METADATA):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not _is_in(address, _SPECIAL_4)
    if address in _NAT64:
        return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _GLOBAL_6 and not _is_in(address, _SPECIAL_6)


def _is_behind_name(address: Address) -> bool:
    return _is_in(address, _BEHIND_NAMES) and not _is_in(address, _METADATA)


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _bare(host: str) -> str:
    return host.lower().removesuffix(".")


def _is_name(host: str) -> bool:
    """A name that no resolver can take for a number: `0x7f.1` and `2130706433` are addresses in disguise."""
    return len(host) <= 253 and _NAME.fullmatch(host) is not None and _NUMBER.fullmatch(host.rpartition(".")[2]) is None


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _host_and_port(entry: str, text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, None
    if not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= 65_535:
        raise SettingsInvalid(f"http allow-list: {entry!r} needs a port from 1 to 65535 behind the colon")
    return host.removeprefix("[").removesuffix("]"), int(port)
