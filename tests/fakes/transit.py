"""A server that speaks the JSON of Vault's transit engine (https://developer.hashicorp.com/vault/api-docs/secret/transit), as far as it
encrypts and decrypts: versions of a key, tokens, and errors as Vault words them. No Vault is packaged here."""

from __future__ import annotations

import base64
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class Transit:
    """token: what is accepted. status: instead of an answer, if it is set. versions: of the key `gatehouse`."""

    def __init__(self, token: str = "s.right") -> None:
        self.token, self.status = token, 0
        self.versions = [os.urandom(32)]
        self.calls: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, answer = outer.answer(self.path, self.headers.get("x-vault-token", ""), body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler

    def answer(self, path: str, token: str, body: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.calls.append(path)
        if self.status:
            return self.status, {"errors": ["internal error"]}
        if token != self.token:
            return 403, {"errors": ["permission denied"]}
        if path == "/v1/transit/encrypt/gatehouse":
            nonce = os.urandom(12)
            sealed = nonce + AESGCM(self.versions[-1]).encrypt(nonce, base64.b64decode(body["plaintext"]), None)
            text = f"vault:v{len(self.versions)}:{base64.b64encode(sealed).decode()}"
            return 200, {"request_id": "r", "data": {"ciphertext": text, "key_version": len(self.versions)}}
        if path == "/v1/transit/decrypt/gatehouse":
            try:
                _, version, text = body["ciphertext"].split(":")
                sealed = base64.b64decode(text)
                plain = AESGCM(self.versions[int(version[1:]) - 1]).decrypt(sealed[:12], sealed[12:], None)
            except (ValueError, IndexError, InvalidTag):
                return 400, {"errors": ["cipher: message authentication failed"]}
            return 200, {"request_id": "r", "data": {"plaintext": base64.b64encode(plain).decode()}}
        return 404, {"errors": []}
