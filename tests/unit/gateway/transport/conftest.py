"""Every test of the transport runs on both event loops: asyncio's own and uvloop, which serves in production."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gateway.core.specs import ClientTlsSpec
from gateway.transport.pool import EndpointClient
from tests.fakes.engine import FakeEngine
from tests.fakes.receiver import Sink

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\n"
BODY = b'{"model":"m1","messages":[{"role":"user","content":"hi"}]}'
STREAM = b'{"model":"m1","stream":true,"messages":[{"role":"user","content":"hi"}]}'


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Way:
    """One way to reach a fake engine: the engine, a client for it, and short forms of what tests do with them."""

    def __init__(self, engine: FakeEngine, client: EndpointClient) -> None:
        self.engine, self.client = engine, client

    def send(self, body: bytes = BODY, sink: Sink | None = None, *, fake: str = "") -> Sink:
        """Sends a request; the call is `sink.call`."""
        sink = sink or Sink()
        head = HEAD + (b"x-fake: " + fake.encode() + b"\r\n" if fake else b"")
        sink.call = self.client.send(head, body, sink, 30.0, 10.0)
        return sink

    async def get(self, body: bytes = BODY, *, fake: str = "") -> Sink:
        return await self.send(body, fake=fake).finished()


class Certificates:
    """A private CA with a server certificate for 127.0.0.1 and engine.test and a client certificate, as PEM files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ca_key = ec.generate_private_key(ec.SECP256R1())
        self._ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        ca = self._builder(self._ca_name, self._ca_key, ca=True).sign(self._ca_key, hashes.SHA256())
        self.ca = self._write("ca.pem", ca.public_bytes(serialization.Encoding.PEM))
        self.server, self.server_key = self._leaf("server", ExtendedKeyUsageOID.SERVER_AUTH)
        self.client, self.client_key = self._leaf("client", ExtendedKeyUsageOID.CLIENT_AUTH)

    def _leaf(self, name: str, use: x509.ObjectIdentifier) -> tuple[str, str]:
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName("engine.test"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, ca=False).add_extension(names, critical=False)
        certificate = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False).sign(self._ca_key, hashes.SHA256())
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM)), self._write(f"{name}.key", pem)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key()), critical=False)
        )

    def _write(self, name: str, data: bytes) -> str:
        path = self.folder / name
        path.write_bytes(data)
        return str(path)

    def server_context(self, *, ask_client: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server, self.server_key)
        if ask_client:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose paths fit into a Unix socket's address."""
    with tempfile.TemporaryDirectory(prefix="gh") as folder:
        yield Path(folder)


@pytest.fixture(params=["tcp", "tls", "unix"])
async def way(request: pytest.FixtureRequest, certificates: Certificates, short_folder: Path) -> AsyncIterator[Way]:
    """A client and an engine over each kind of connection; at the end nothing may be left in flight."""
    kind: str = request.param
    engine = FakeEngine(
        unix=str(short_folder / "engine.sock") if kind == "unix" else None,
        tls=certificates.server_context() if kind == "tls" else None,
    )
    async with engine:
        client = EndpointClient(engine.address, tls=ClientTlsSpec(ca=certificates.ca))
        yield Way(engine, client)
        await client.aclose()
        assert client.in_flight == 0 and client.idle == 0
        await engine.until(lambda: engine.open == 0)


@pytest.fixture
async def tcp() -> AsyncIterator[Way]:
    """A client and an engine over TCP."""
    async with FakeEngine() as engine:
        client = EndpointClient(engine.address)
        yield Way(engine, client)
        await client.aclose()
        assert client.in_flight == 0 and client.idle == 0
        await engine.until(lambda: engine.open == 0)
