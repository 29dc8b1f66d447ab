"""Keys that are made, used, rotated and revoked while traffic flows. What a revoked key still gets after a second is a failure."""

import json
import secrets
import time
from typing import Any

from locust import between, task

from loadtests.traffic.asking import GatewayUser
from loadtests.traffic.kinds import ACCEPTED
from loadtests.traffic.settings import SETTINGS, messages

REACHES_IN = 1.0  # seconds until a revocation is in force on every worker and replica


def code_of(text: str) -> str:
    """The code of a problem document, without what differs from one to the next."""
    try:
        return str(json.loads(text).get("code"))
    except ValueError:
        return "no problem document"


class KeyChurnUser(GatewayUser):
    """An operator's script. Needs GATEHOUSE_ADMIN_URL and GATEHOUSE_ADMIN_KEY."""

    wait_time = between(0.5, 1.5)

    @task
    def life(self) -> None:
        """One key from its making to its revocation."""
        wanted = {"id": f"load-{secrets.token_hex(6)}", "tenant": SETTINGS.churn_tenant, "models": [SETTINGS.model]}
        made = self.admin("POST", "/keys", "keys create", wanted)
        if made is None:
            return
        body = {"model": SETTINGS.model, "messages": messages(), "max_tokens": 8}
        self.ask("chat with a new key", "/v1/chat/completions", body, key=made["secret"])
        rotated = self.admin("POST", f"/keys/{made['id']}/rotate", "keys rotate", {})
        if rotated is not None:
            self.ask("chat with a rotated key", "/v1/chat/completions", body, key=rotated["secret"])
        if self.admin("POST", f"/keys/{made['id']}/revoke", "keys revoke", {}) is not None:
            time.sleep(REACHES_IN)
            self.must_refuse(made["secret"], body)

    def admin(self, method: str, path: str, name: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """A call to the admin API; None where it failed, which is counted."""
        headers = {"authorization": f"Bearer {SETTINGS.admin_key}"}
        url = f"{SETTINGS.admin_url}/admin/v1{path}"
        with self.client.request(method, url, json=body, headers=headers, name=name, catch_response=True) as answer:
            if answer.status_code not in {200, 201, 204}:
                answer.failure(f"{answer.status_code} {code_of(answer.text or '')}")
                return None
            answer.success()
            return dict(answer.json()) if answer.text else {}

    def must_refuse(self, key: str, body: dict[str, Any]) -> None:
        headers = {"authorization": f"Bearer {key}"}
        with self.client.post(
            "/v1/chat/completions", json=body, headers=headers, name="chat with a revoked key", catch_response=True
        ) as answer:
            if answer.status_code == 401:
                answer.success()
                return
            if answer.status_code == 200:
                answer.request_meta["request_type"] = ACCEPTED
            answer.failure(f"a key that was revoked {REACHES_IN:.0f} s ago got {answer.status_code}")
