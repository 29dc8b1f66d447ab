"""Secrets as providers issue them, drawn anew: none of them was ever valid."""

from __future__ import annotations

import string
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from random import Random

from policies.guardrails.secrets.randomness import checksum

LETTERS = string.ascii_letters + string.digits
URL = LETTERS + "-_"
HEX = "0123456789abcdef"


def _encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def samples(seed: int) -> Iterator[tuple[str, str, str, str]]:
    """(entity, what stands before, the secret, what stands behind)."""
    random = Random(seed)

    def draw(count: int, alphabet: str = LETTERS) -> str:
        return "7" + "".join(random.choice(alphabet) for _ in range(count - 2)) + "k"

    def upper(count: int) -> str:
        return "".join(random.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") for _ in range(count - 2)) + "2Q"

    body = draw(30)
    own = "gh_" + draw(33)
    pem = "\n".join(draw(64) for _ in range(8))
    plain = {
        "gatehouse": [own + checksum(own)],
        "github": [f"ghp_{body}{checksum(body)}", f"github_pat_{draw(22)}_{draw(59)}"],
        "aws": ["AKIA" + upper(16), "ASIA" + upper(16)],
        "gcp": ["AIza" + draw(35, URL), "GOCSPX-" + draw(28, URL)],
        "gitlab": ["glpat-" + draw(20, URL)],
        "slack": [f"xoxb-{draw(12, string.digits)[:-1]}3-{draw(24)}", f"hooks.slack.com/services/T{upper(9)}/B{upper(9)}/{draw(24)}"],
        "stripe": ["sk_live_" + draw(24), "rk_test_" + draw(24), "whsec_" + draw(32)],
        "anthropic": [f"sk-ant-api03-{draw(93, URL)}AA"],
        "openai": ["sk-proj-" + draw(80, URL), f"sk-{draw(20)}T3BlbkFJ{draw(20)}"],
        "huggingface": ["hf_" + draw(34)],
        "npm": ["npm_" + draw(36)],
        "pypi": ["pypi-AgEIcHlwaS5vcmc" + draw(120, URL)],
        "twilio": ["SK" + "".join(random.choice(HEX) for _ in range(32))],
        "sendgrid": [f"SG.{draw(22, URL)}.{draw(43, URL)}"],
        "service_token": ["gsk_" + draw(52), "hvs." + draw(60, URL), "sk-or-v1-" + draw(64, HEX)[:-1] + "4"],
        "jwt": [".".join((_encoded('{"alg":"HS256","typ":"JWT"}'), _encoded('{"sub":"7"}'), draw(43, URL)))],
        "private_key": [
            f"-----BEGIN RSA PRIVATE KEY-----\n{pem}\n-----END RSA PRIVATE KEY-----",
            f"-----BEGIN PRIVATE KEY-----\\n{pem}\\n-----END PRIVATE KEY-----\\n".replace("\n", "\\n"),
            f"-----BEGIN OPENSSH PRIVATE KEY-----\n{pem}\n-----END OPENSSH PRIVATE KEY-----",
        ],
    }
    for entity, secrets in plain.items():
        for secret in secrets:
            yield entity, "it is ", secret, " as you see"
    yield "password", "DB_PASSWORD=", draw(14), "\n"
    yield "password", '{"client_secret": "', draw(24), '"}'
    yield "password", "password: '", "Tr0ub4dor&3", "'"
    yield "password", r"{\"api_key\": \"", draw(32), r"\"}"
    yield "connection_string", "postgres://joe:", draw(12), "@db.internal:5432/x"
    yield "connection_string", "AccountName=x;AccountKey=", draw(86) + "==", ";EndpointSuffix=core.windows.net"
    yield "authorization", "Authorization: Bearer ", draw(40), "\n"
    yield "authorization", "Authorization: Basic ", "am9lOmh1bnRlcjI3OTk=", "\n"


CLEAN = [
    "password=getpass()",
    "token = self.next_token",
    "secret: changeme",
    "max_tokens: 1024 tokens=100",
    "the password is required and the token is optional",
    "AKIAIOSFODNN7EXAMPLE",
    "sk-cube-grid-animation-with-long-name-and-more",
    "sk_test_",
    "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "gh_" + "7" * 39,
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----",
    "-----BEGIN PRIVATE KEY-----",
    "eyJub3QiOiJhIHRva2VuIn0.eyJzdWIiOiI3In0.abcdefgh",
    "https://user@example.com/path:8080",
    "postgres://joe:password@db/x",
    "postgres://joe:${DB_PASSWORD}@db/x",
    'password = os.environ["DB_PASSWORD"]',
    "Authorization: Bearer $TOKEN",
    "secret_name: my-service/database",
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "token: 12",
]
"""What looks a little like a secret and is none."""
