"""A listener that wants a login (SASL PLAIN, RFC 4616; SCRAM, RFC 5802) before librdkafka's mock broker behind it gets anything."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import ssl
import struct
from base64 import b64decode, b64encode
from contextlib import suppress

HANDSHAKE, VERSIONS, AUTHENTICATE, METADATA = 17, 18, 36, 3
REFUSED = 58
ROUNDS = 4096


class KafkaLogin:
    """broker: HOST:PORT of the only one behind. `users`: who has logged in; `refused`: how many could not; `early`: requests that came
    before the login. Use as an asynchronous context manager."""

    def __init__(self, broker: str, mechanism: str, user: str, password: str, tls: ssl.SSLContext | None = None) -> None:
        self._host, _, port = broker.rpartition(":")
        self._port, self.mechanism, self._user, self._password, self._tls = int(port), mechanism, user, password, tls
        self.users: list[str] = []
        self.refused = self.early = 0

    async def __aenter__(self) -> KafkaLogin:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind = await asyncio.open_connection(self._host, self._port)
        login = Login(self)
        try:
            while True:
                request = await frame(reader)
                key, version = struct.unpack_from(">hh", request)
                if key in (HANDSHAKE, AUTHENTICATE):
                    answer = request[4:8] + login.answer(key, version, payload(request))
                elif key != VERSIONS and not login.done:
                    self.early += 1
                    return
                else:
                    behind.write(struct.pack(">i", len(request)) + request)
                    answer = await frame(behind_reader)
                    if key == VERSIONS:
                        answer = with_login(answer, version)
                    elif key == METADATA:  # which leads to the broker: it must lead here
                        host = self._host.encode()
                        answer = answer.replace(host + struct.pack(">i", self._port), host + struct.pack(">i", self.port))
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            for one in (writer, behind):
                with suppress(OSError):
                    one.close()


class Login:
    """One connection's."""

    def __init__(self, listener: KafkaLogin) -> None:
        self._listener, self.done = listener, False
        self._first = self._challenge = b""

    def answer(self, key: int, version: int, sent: bytes) -> bytes:
        listener = self._listener
        if key == HANDSHAKE:
            wanted = sent[2:].decode()
            return struct.pack(">hi", 0 if wanted == listener.mechanism else 33, 1) + text(listener.mechanism.encode())
        step = self._plain if listener.mechanism == "PLAIN" else self._scram
        said = step(sent[4:])
        if said is None:
            listener.refused += 1
        error = struct.pack(">h", REFUSED) + text(b"who are you?") if said is None else struct.pack(">hh", 0, -1)
        said = said or b""
        return error + struct.pack(">i", len(said)) + said + (struct.pack(">q", 0) if version else b"")

    def _plain(self, sent: bytes) -> bytes | None:
        _, user, password = sent.decode().split("\0")
        return self._known(user) if (user, password) == (self._listener._user, self._listener._password) else None

    def _known(self, user: str, answer: bytes = b"") -> bytes:
        self._listener.users.append(user)
        self.done = True
        return answer

    def _scram(self, sent: bytes) -> bytes | None:
        digest = self._listener.mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        if not self._challenge:
            self._first = sent.removeprefix(b"n,,")
            self._salt = os.urandom(16)
            nonce = self._first.rpartition(b"r=")[2] + b64encode(os.urandom(9))
            self._challenge = b"r=%b,s=%b,i=%d" % (nonce, b64encode(self._salt), ROUNDS)
            return self._challenge
        without, _, proof = sent.rpartition(b",p=")
        salted = hashlib.pbkdf2_hmac(digest, self._listener._password.encode(), self._salt, ROUNDS)
        said = b",".join((self._first, self._challenge, without))
        client = hmac.digest(salted, b"Client Key", digest)
        stored = hashlib.new(digest, client).digest()
        right = bytes(a ^ b for a, b in zip(client, hmac.digest(stored, said, digest), strict=True))
        user = self._first.partition(b"n=")[2].partition(b",")[0].decode()
        if b64decode(proof) != right or user != self._listener._user:
            return None
        return self._known(user, b"v=" + b64encode(hmac.digest(hmac.digest(salted, b"Server Key", digest), said, digest)))


async def frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def payload(request: bytes) -> bytes:
    """What follows a request's header (version 1)."""
    (length,) = struct.unpack_from(">h", request, 8)
    return request[10 + max(length, 0) :]


def text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def with_login(answer: bytes, version: int) -> bytes:
    """An answer to ApiVersions that also has the two requests of a login."""
    added = [struct.pack(">hhh", HANDSHAKE, 0, 1), struct.pack(">hhh", AUTHENTICATE, 0, 1)]
    if version >= 3:  # a compact array: its length and one, less than 128
        return answer[:6] + bytes([answer[6] + 2]) + b"".join(one + b"\0" for one in added) + answer[7:]
    (count,) = struct.unpack_from(">i", answer, 6)
    return answer[:6] + struct.pack(">i", count + 2) + b"".join(added) + answer[10:]
