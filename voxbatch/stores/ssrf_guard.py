"""SSRF guard: connect to web servers only at admitted addresses.

A name is resolved here and its addresses are checked. The connection is then made to one of the admitted addresses,
before a byte is sent. A name that means something else to another resolver, a moment later or in another spelling has
no effect.

This is the only module that imports urllib3 at import time. `web` imports this module when an http(s) address is read.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import ssl
import time
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, cast

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NameResolutionError, NewConnectionError

from voxbatch.stores.reply_deadline import TimedConnection

CONNECT_S, IDLE_S = 10.0, 20.0
"""Seconds to connect, and again for TLS; and seconds without a byte, after which a request fails and is retried."""
CONNECTIONS = 16
"""Most open connections to one host."""
TRYING_S = 20.0
"""Seconds after which no further address of a host is tried, because a name can have any number of addresses."""

_REFUSED = tuple(
    (ip_network(network), kind)
    for kind, networks in {
        "a loopback address": "127.0.0.0/8 ::1/128",
        "a private network's address": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
        "a link-local address": "169.254.0.0/16 fe80::/10",
        "a carrier-grade NAT address": "100.64.0.0/10",
        "an unspecified address": "0.0.0.0/8 ::/128",
        "a multicast address": "224.0.0.0/4 ff00::/8",
        "a cloud's internal address": "168.63.129.16/32",
        "an IPv4 address inside an IPv6 address": "::ffff:0:0/96 2002::/16 64:ff9b:1::/48",
        "a reserved address": "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 "
        "240.0.0.0/4 2001::/23 2001:db8::/32 3fff::/20",
    }.items()
    for network in networks.split()
)
"""IANA's registries of special-purpose addresses, 2024. They are written out here, because Python's own table changes
with its version."""
_GLOBAL = ip_network("2000::/3")
"""Part of IPv6 that has been assigned for use between networks."""
_NAT64 = ip_network("64:ff9b::/96")
"""Prefix under which an IPv6-only network reaches IPv4 addresses. The last 32 bits are the IPv4 address (RFC 6052)."""
_MACHINE = (
    ip_network("169.254.0.0/16"), ip_network("fe80::/10"),
    ip_network("fd00:ec2::/32"),  # AWS
    ip_network("fd20:ce::254/128"),  # Google Cloud
    ip_network("168.63.129.16/32"),  # Azure
    ip_network("100.100.100.200/32"),  # Alibaba Cloud
    ip_network("192.0.0.192/32"),  # Oracle Cloud
)  # fmt: skip
"""Link-local addresses, and others at which a cloud tells a machine about itself, with its credentials. No recording is
there."""
_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
"""Prefix for the same in one's own network (RFC 8215)."""
_TRANSLATED = (
    ip_network("::/96"), ip_network("::ffff:0:0/96"), ip_network("::ffff:0:0:0/96"), _NAT64, _LOCAL_NAT64,
)  # fmt: skip
"""Prefixes under which the last 32 bits may be an IPv4 address (RFC 4291, 7915, 6052, 8215)."""


class ForbiddenAddress(Exception):
    """The host has no address that is admitted."""


def forbidden_kind(address: str) -> str:
    """Return the kind of an address that is not admitted by default, such as "a loopback address"; "" for an admitted
    one."""
    parsed = ip_address(address)
    if parsed in _NAT64:
        parsed = IPv4Address(int(cast(IPv6Address, parsed)) & 0xFFFFFFFF)
    for network, kind in _REFUSED:
        if parsed in network:
            return kind
    return "" if parsed.version == 4 or parsed in _GLOBAL else "a reserved address"


def machine_kind(address: str) -> str:
    """Return the kind of an address that is never admitted: link-local addresses and the metadata servers of clouds,
    also as an IPv4 address inside an IPv6 address; "" for any other one."""
    parsed = ip_address(address)
    candidates = [parsed, *(_embedded(parsed) if isinstance(parsed, IPv6Address) else ())]
    is_machine = any(candidate in network for candidate in candidates for network in _MACHINE)
    return "a link-local address or a cloud's metadata server" if is_machine else ""


def _embedded(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that gateways and tunnels may take an IPv6 address for."""
    value, mask = int(address), 0xFFFFFFFF
    if any(address in network for network in _TRANSLATED) or value >> 32 & 0xFDFFFFFF == 0x5EFE:  # ISATAP, RFC 5214
        yield IPv4Address(value & mask)
    if address.teredo:
        yield from address.teredo
    if address.sixtofour:
        yield address.sixtofour
    if address in _LOCAL_NAT64:  # RFC 6052, section 2.2: prefixes of 48, 56 and 64 bits go around bits 64 to 71
        yield IPv4Address(value >> 64 << 16 & mask | value >> 40 & 0xFFFF)
        yield IPv4Address(value >> 64 << 24 & mask | value >> 32 & 0xFFFFFF)
        yield IPv4Address(value >> 24 & mask)


def pool(scheme: str, host: str, port: int, allow_private: bool) -> HTTPConnectionPool:
    """Return the connections to one host. They are thread-safe, and none is open yet. See `WebServer` for the errors of
    requests."""
    settings: dict[str, Any] = {
        "timeout": Timeout(connect=CONNECT_S, read=IDLE_S), "maxsize": CONNECTIONS, "block": True, "retries": False,
        "allow_private": allow_private,
    }  # fmt: skip
    if scheme == "http":
        return _Pool(host, port, **settings)
    return _TlsPool(host, port, ssl_context=ssl.create_default_context(), **settings)


class _Connection(TimedConnection, HTTPConnection):
    def __init__(self, *args: Any, allow_private: bool, **settings: Any):
        super().__init__(*args, **settings)
        self._allow_private = allow_private

    def _new_conn(self) -> socket.socket:
        """Connect for urllib3, with TLS or without."""
        try:
            candidates = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as e:
            raise NameResolutionError(self.host, self, e) from e
        addresses = [str(candidate[4][0]) for candidate in candidates]
        kinds = {
            address: machine_kind(address) or ("" if self._allow_private else forbidden_kind(address))
            for address in addresses
        }
        admitted = [candidate for candidate in candidates if not kinds[str(candidate[4][0])]]
        if not admitted:
            address, kind = next(iter(kinds.items()))
            shown = address if address == self.host else f"{self.host} ({address})"
            rule = "no recording is read from there"
            if not all(map(machine_kind, kinds)):
                rule = "only public addresses are read, unless --allow-private-addresses is given"
            raise ForbiddenAddress(f"{shown} is {kind}: {rule}")
        return self._connect(admitted)

    def _connect(self, candidates: list[Any]) -> socket.socket:
        """Return a connection to the first address that answers."""
        failure: OSError | None = None
        since = time.monotonic()
        for family, kind, protocol, _, address in candidates:
            if failure and time.monotonic() - since > TRYING_S:
                break
            with contextlib.ExitStack() as stack:
                try:
                    sock = stack.enter_context(socket.socket(family, kind, protocol))
                    sock.settimeout(CONNECT_S)
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.connect(address)
                except OSError as e:
                    failure = e
                else:
                    stack.pop_all()
                    return sock
        raise NewConnectionError(self, f"no connection: {failure}") from failure


class _TlsConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _without_queries(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(
            re.sub(r"\?\S+", "?…", argument) if isinstance(argument, str) else argument for argument in record.args
        )
    return True


# urllib3 logs complete addresses, and for servers with odd headers at level WARNING. A query may be a signature.
for _name in ("urllib3.connection", "urllib3.connectionpool"):
    logging.getLogger(_name).addFilter(_without_queries)
