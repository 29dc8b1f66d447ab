"""A real rsyslog: TCP, TLS and UDP on free ports; what it received is in a file, a line each: structured data, a tab, the message."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from tests.cluster.redis_servers import free_port
from tests.cluster.servers import Server
from tests.pki import Authority
from tests.waiting import until

CONFIGURATION = """
global(workDirectory="{folder}" maxMessageSize="128k"
  defaultNetstreamDriver="ossl" defaultNetstreamDriverCAFile="{ca}"
  defaultNetstreamDriverCertFile="{cert}" defaultNetstreamDriverKeyFile="{key}")
module(load="imtcp")
module(load="imudp")
template(name="raw" type="string" string="%structured-data%\\t%msg%\\n")
ruleset(name="all") {{ action(type="omfile" file="{received}" template="raw" asyncWriting="off") }}
input(type="imtcp" port="{tcp}" address="127.0.0.1" ruleset="all")
input(type="imtcp" port="{tls}" address="127.0.0.1" ruleset="all"
  streamDriver.name="ossl" streamDriver.mode="1" streamDriver.authMode="anon")
input(type="imudp" port="{udp}" address="127.0.0.1" ruleset="all")
"""


class Rsyslog(Server):
    def __init__(self, directory: Path) -> None:
        super().__init__("rsyslog", directory)
        self.authority = Authority(directory)
        self._served = self.authority.server()
        self.received = directory / "received"
        self.tcp, self.tls, self.udp = free_port(), free_port(), free_port(socket.SOCK_DGRAM)

    def start(self) -> Rsyslog:
        program = shutil.which("rsyslogd") or "/usr/sbin/rsyslogd"
        file = self.directory / "rsyslog.conf"
        values = {"folder": self.directory, "ca": self.authority.cert, "cert": self._served.cert, "key": self._served.key}
        values |= {"received": self.received, "tcp": self.tcp, "tls": self.tls, "udp": self.udp}
        file.write_text(CONFIGURATION.format(**values))
        self.run(program, "-n", "-f", str(file), "-i", str(self.directory / "rsyslog.pid"))
        until(lambda: self.ready() and all(answers(port) for port in (self.tcp, self.tls)), what="rsyslog")
        return self

    def messages(self) -> dict[str, bytes]:
        """The message by its structured data: what came twice is there once."""
        found = {}
        for line in self.received.read_bytes().splitlines() if self.received.exists() else ():
            data, _, message = line.partition(b"\t")
            found[data.decode()] = message
        return found


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
