"""A tenant that takes whatever it gets. The others must not notice; it must be limited, not failed."""

from locust import constant, task

from loadtests.traffic.asking import GatewayUser
from loadtests.traffic.settings import SETTINGS, messages


class GreedyUser(GatewayUser):
    """Asks again at once, whatever it was told. GATEHOUSE_GREEDY_KEY is its key (else an ordinary one)."""

    wait_time = constant(0)

    def on_start(self) -> None:
        self.key = SETTINGS.greedy_key or SETTINGS.key()

    @task
    def take(self) -> None:
        self.ask("greedy", "/v1/chat/completions", {"model": SETTINGS.model, "messages": messages(), "max_tokens": 16})
