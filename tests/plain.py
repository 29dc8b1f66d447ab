"""What HTTP clients of tests and load tests trust that only ever speak plain HTTP."""

from __future__ import annotations

import ssl
from typing import Any, NoReturn


class PlainHttp(ssl.SSLContext):
    """Given to httpx as `verify`, it saves each client the reading of the public authorities (20 ms of CPU; 0.4 ms under pytest, whose
    conftest.py leaves one of them). It never makes a TLS connection: a test that meets HTTPS by mistake fails and says why, where a client
    that just trusts nobody would raise an httpx.ConnectError, which a test may take for a server that is not there. As all clients share
    it, nothing can be loaded into it either."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("this client is for plain HTTP: for HTTPS, give it a `verify` that trusts the server's authority")

    wrap_socket = wrap_bio = _refuse
    load_cert_chain = load_verify_locations = load_default_certs = set_default_verify_paths = _refuse


PLAIN = PlainHttp(ssl.PROTOCOL_TLS_CLIENT)
