"""What a run takes from the environment: where the gateway is, the credentials, the models."""

import json
import os
import random
import time
from collections.abc import Collection
from dataclasses import dataclass, field


def _words(name: str) -> list[str]:
    return [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment, read once. `keys`: those of ordinary tenants. `greedy_key`: of a tenant that asks for more than it may have."""

    url: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_URL", "http://127.0.0.1:8080"))
    keys: list[str] = field(default_factory=lambda: _words("GATEHOUSE_KEYS") or _words("GATEHOUSE_KEY"))
    greedy_key: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_GREEDY_KEY", ""))
    admin_url: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_ADMIN_URL", ""))
    admin_key: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_ADMIN_KEY", ""))
    churn_tenant: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_CHURN_TENANT", "load"))
    model: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_MODEL", "demo-chat"))
    embed_model: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_EMBED_MODEL", "demo-embed"))
    tensor_model: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_TENSOR_MODEL", "demo-embed"))
    refusals: str = field(default_factory=lambda: os.environ.get("GATEHOUSE_REFUSALS", ""))

    def key(self) -> str:
        """A key of one of the tenants. Raises IndexError where the environment names none (`missing` says so before a run)."""
        return random.choice(self.keys)

    def missing(self, kinds: Collection[str]) -> str:
        """What these kinds of users need and the environment lacks, in words; "" where nothing does."""
        if not self.keys and (set(kinds) != {"greedy"} or not self.greedy_key):
            return "GATEHOUSE_KEY is not set: an API key of the gateway under load (GATEHOUSE_KEYS=a,b,c for several tenants)"
        if "keys" in kinds and not (self.admin_url and self.admin_key):
            return "key churn needs GATEHOUSE_ADMIN_URL and GATEHOUSE_ADMIN_KEY (or leave `keys` out of --mix)"
        return ""

    def note(self, name: str, status: int, code: str, message: str) -> None:
        """Appends a refused request to the file GATEHOUSE_REFUSALS, one JSON object a line: what Locust's tables do not tell."""
        if self.refusals:
            line = {"time": time.time(), "name": name, "status": status, "code": code, "message": message}
            with open(self.refusals, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


SETTINGS = Settings()

QUESTIONS = (
    "Which documents do I need to open a savings account for my daughter?",
    "Summarise the three points of the last meeting in one sentence each.",
    "Write a polite reply that declines the invitation and proposes a date in March.",
    "What is the difference between a credit note and a refund?",
    "Explain to a new colleague how a purchase order is approved here.",
    "Name two risks of the plan and what would reduce them.",
)
SYSTEM = "You are a helpful assistant of a bank. Answer briefly and name your sources."


def messages() -> list[dict[str, str]]:
    """A system prompt that all share, and a question."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": random.choice(QUESTIONS)}]
