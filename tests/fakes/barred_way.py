"""A way to a TLS server on which connections for some of its names break."""

from __future__ import annotations

import contextlib
import socket
import threading


class BarredWay:
    """Connections to `port` go to the port `there` of loopback, but those whose handshake names something in `barred` (RFC 6066). Life:
    until `close`."""

    def __init__(self, port: int, there: int) -> None:
        self._server = socket.create_server(("127.0.0.1", port), reuse_port=False)
        self._there, self._barred = there, b""
        self._open: list[tuple[bytes, socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def bar(self, name: str) -> None:
        """Breaks what there is for this name, and what comes. "": nothing."""
        self._barred = name.encode()
        for hello, *ends in list(self._open):
            if self._barred and self._barred in hello:
                for end in ends:
                    _shut(end)

    def close(self) -> None:
        self._server.close()
        for _, *ends in list(self._open):
            for end in ends:
                _shut(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._there)) as server:
            hello = client.recv(65536)
            if self._barred and self._barred in hello:
                return
            held = (hello, client, server)
            self._open.append(held)
            try:
                server.sendall(hello)
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()
            finally:
                self._open.remove(held)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    _shut(source)
    _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
