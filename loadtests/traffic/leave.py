"""Callers that go away in the middle of a stream: the gateway must cancel the engine's work and lose nothing."""

from locust import between, task

from loadtests.traffic.asking import GatewayUser
from loadtests.traffic.settings import SETTINGS, messages


class LeavingUser(GatewayUser):
    """Asks for a long stream and leaves after the first lines of it."""

    wait_time = between(0.5, 2.0)

    @task
    def leave(self) -> None:
        body = {"model": SETTINGS.model, "messages": messages(), "max_tokens": 256, "stream": True}

        def read(answer: "object") -> str | None:
            stream = answer.stream  # type: ignore[attr-defined]
            for _ in range(4):
                if not stream.readline(b"\n"):
                    return "the stream ended before its client left"
            stream.release() if hasattr(stream, "release") else None
            self.client.client.clientpool.close()
            return None

        self.ask("leave", "/v1/chat/completions", body, read=read)
