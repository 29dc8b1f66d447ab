"""A DNS server on loopback, over UDP and TCP, whose records and faults a test sets while it runs.

with NameServer() as server:
    server.put("vllm.test", "A", ["10.0.0.1"], ttl=5)
    server.fault = "hang"          # or servfail, nxdomain, lie, garbage
    server.silent.add("AAAA")      # a kind of question that is never answered, or (name, kind)
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Sequence
from typing import Any

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

UDP_BYTES = 1232


class NameServer:
    """`address`: ADDRESS:PORT. `asked`: how many questions came."""

    def __init__(self) -> None:
        self.fault = ""
        self.asked = 0
        self.silent: set[str | tuple[str, str]] = set()
        self._records: dict[tuple[str, str], dns.rrset.RRset | None] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.address = ""

    def put(self, name: str, kind: str, values: Sequence[str], ttl: int = 1) -> None:
        """Replaces the records of a name and kind; none: it has none of this kind."""
        name = name.rstrip(".") + "."
        self._records[name, kind] = dns.rrset.from_text(name, ttl, "IN", kind, *values) if values else None

    def drop(self, name: str) -> None:
        """The name does not exist any more."""
        for key in [key for key in self._records if key[0] == name.rstrip(".") + "."]:
            del self._records[key]

    def __enter__(self) -> NameServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(60)
        return self

    def __exit__(self, *_: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _open(self) -> None:
        while not self.address:
            self._tcp = await asyncio.start_server(self._stream, "127.0.0.1", 0)
            port = self._tcp.sockets[0].getsockname()[1]
            try:
                self._udp, _ = await self._loop.create_datagram_endpoint(lambda: _Datagrams(self), ("127.0.0.1", port))
            except OSError:  # somebody has this port of UDP
                self._tcp.close()
                continue
            self.address = f"127.0.0.1:{port}"

    async def _close(self) -> None:
        self._udp.close()
        self._tcp.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            answer = self.answer(await reader.readexactly(length), 65535)
            if answer is not None:
                writer.write(struct.pack("!H", len(answer)) + answer)
                await writer.drain()
                await reader.read(1)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, data: bytes, most: int) -> bytes | None:
        """The answer to one question; None: there is none."""
        self.asked += 1
        question = dns.message.from_wire(data)
        name, kind = question.question[0].name.to_text().lower(), dns.rdatatype.to_text(question.question[0].rdtype)
        if self.fault == "hang" or kind in self.silent or (name.rstrip("."), kind) in self.silent:
            return None
        if self.fault == "garbage":
            return data[:2] + b"\xff" * 40
        response = dns.message.make_response(question)
        response.flags |= dns.flags.RA
        if self.fault == "servfail":
            response.set_rcode(dns.rcode.SERVFAIL)
            return response.to_wire()
        if self.fault == "nxdomain" or not any(known == name for known, _ in self._records):
            response.set_rcode(dns.rcode.NXDOMAIN)
            return response.to_wire()
        if (records := self._records.get((name, kind))) is not None:
            response.answer.append(records)
        if self.fault == "lie":  # an answer to another question, as one who does not see the question would make it
            response.id = (response.id + 1) % 65536
        try:
            return response.to_wire(max_size=most)
        except dns.exception.TooBig:
            cut = dns.message.make_response(question)
            cut.flags |= dns.flags.TC
            return cut.to_wire()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        answer = self._server.answer(data, UDP_BYTES)
        if answer is not None:
            self._transport.sendto(answer, addr)
