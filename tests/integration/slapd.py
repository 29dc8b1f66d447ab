"""OpenLDAP's slapd for tests: its own folder, free ports, a certificate made here; ends with the test."""

from __future__ import annotations

import datetime
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.fakes.ports import empty_port
from tests.waiting import until

BASE = "dc=example,dc=org"
ADMIN, ADMIN_PASSWORD = f"cn=admin,{BASE}", "admin-secret"
CONFIG = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCertificateFile {folder}/cert.pem
TLSCertificateKeyFile {folder}/key.pem
database mdb
suffix "{base}"
rootdn "{admin}"
rootpw {password}
directory {folder}/data
limits dn.exact="uid=bob,ou=people,{base}" size=1
access to attrs=userPassword by anonymous auth by * none
access to * by users read by anonymous auth
"""
PEOPLE = """dn: {base}
objectClass: dcObject
objectClass: organization
dc: example
o: example

dn: ou=people,{base}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{base}
objectClass: organizationalUnit
ou: groups

dn: uid=alice,ou=people,{base}
objectClass: inetOrgPerson
uid: alice
cn: Alice
sn: A
o: acme
userPassword: alice-secret

dn: uid=bob,ou=people,{base}
objectClass: inetOrgPerson
uid: bob
cn: Bob
sn: B
userPassword: bob-secret

dn: uid=a\\2Ab,ou=people,{base}
objectClass: inetOrgPerson
uid: a*b
cn: Star
sn: S
o: acme
userPassword: star-secret

dn: cn=engineers,ou=groups,{base}
objectClass: groupOfNames
cn: engineers
member: uid=alice,ou=people,{base}

dn: cn=staff,ou=groups,{base}
objectClass: groupOfNames
cn: staff
member: cn=engineers,ou=groups,{base}

dn: cn=loop,ou=groups,{base}
objectClass: groupOfNames
cn: loop
member: cn=staff,ou=groups,{base}
member: cn=loop,ou=groups,{base}
"""


class Slapd:
    """port: LDAP. tls_port: LDAP over TLS, with a certificate for localhost and 127.0.0.1 that is its own authority (`ca`)."""

    def __init__(self, folder: Path, port: int, tls_port: int) -> None:
        self.folder, self.port, self.tls_port = folder, port, tls_port
        self.ca = folder / "cert.pem"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["/usr/sbin/slapd", "-d", "0", "-f", str(self.folder / "slapd.conf")]
        urls = f"ldap://127.0.0.1:{self.port}/ ldaps://127.0.0.1:{self.tls_port}/"
        self._process = subprocess.Popen([*command, "-h", urls], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        probe = ["ldapsearch", "-x", "-H", f"ldap://127.0.0.1:{self.port}", "-D", ADMIN, "-w", ADMIN_PASSWORD, "-b", BASE, "-s", "base"]
        until(lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0, what="slapd")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def modify(self, ldif: str) -> None:
        """Applies changes as the administrator."""
        command = ["ldapmodify", "-x", "-H", f"ldap://127.0.0.1:{self.port}", "-D", ADMIN, "-w", ADMIN_PASSWORD]
        subprocess.run(command, input=ldif.encode(), check=True, capture_output=True)


@contextmanager
def directory(folder: Path) -> Iterator[Slapd]:
    """A directory with alice (acme; engineers, and by nesting staff and loop), bob (without an organisation; his searches find
    one entry at most) and `a*b`."""
    (folder / "data").mkdir()
    _certificate(folder)
    (folder / "slapd.conf").write_text(CONFIG.format(folder=folder, base=BASE, admin=ADMIN, password=ADMIN_PASSWORD))
    subprocess.run(
        ["/usr/sbin/slapadd", "-f", str(folder / "slapd.conf")],
        input=PEOPLE.format(base=BASE).encode(),
        check=True,
        capture_output=True,
    )
    with empty_port() as port, empty_port() as tls_port:
        made = Slapd(folder, port, tls_port)
        made.start()
        try:
            yield made
        finally:
            made.stop()


def _certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slapd of the tests")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
