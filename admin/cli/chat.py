"""`gatehouse chat`: a conversation with a model in the terminal, through the gateway like any client."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import httpx
import typer

from admin.cli import completion
from admin.cli.client import ApiError, Client, explain, no_answer, with_key
from admin.cli.errors import CommandError
from admin.cli.output import clean
from admin.cli.session import Session, connected
from admin.cli.tls import SYSTEM, Tls

Message = dict[str, str]
ADVICE: Final = "`chat` needs a key that may use a model: give one with --api-key, GATEHOUSE_API_KEY or `gatehouse login --api-key`"
TIMEOUT = httpx.Timeout(600.0, connect=10.0)


@connected
def chat(
    session: Session,
    prompt: Annotated[str | None, typer.Argument(help="What to say; without it, starts a conversation.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The model; default: the first of the list.", autocompletion=completion.models)
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help="Instructions before the conversation.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Maximum tokens of an answer.", min=1)] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 always picks the likeliest token.", min=0.0, max=2.0)
    ] = None,
    gateway_url: Annotated[
        str | None, typer.Option("--gateway-url", help="The data listener; default: ask the gateway.", envvar="GATEHOUSE_GATEWAY_URL")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="A key that may use the model; default: the profile's.", envvar="GATEHOUSE_API_KEY")
    ] = None,
) -> None:
    """Talks to a model and prints the answer as it arrives."""
    options = {name: value for name, value in (("max_tokens", max_tokens), ("temperature", temperature)) if value is not None}
    url, key, holder, tls = data_listener(session, gateway_url, api_key)
    inference_key = api_key or session.profile.api_key
    history: list[Message] = [{"role": "system", "content": system}] if system else []
    try:
        with httpx.Client(base_url=url, timeout=TIMEOUT, **with_key(url, key, holder, tls)) as client:
            wanted = model or _first_model(client)
            if prompt is None:
                session.out.remark(f"{wanted} at {url}; an empty line or Ctrl-D ends")
            for line in _lines() if prompt is None else (prompt,):
                _turn(client, wanted, history, line, options)
    except ApiError as error:
        if inference_key or error.status not in (401, 403, 404):
            raise
        raise CommandError(f"{error} {ADVICE}") from None


def data_listener(session: Session, gateway_url: str | None, api_key: str | None) -> tuple[str, str, str, Tls]:
    """(address of the data listener, key for it, holder whose proof goes with the key or "", TLS settings)."""
    url = (gateway_url or session.profile.gateway_url or _ask_url(session)).rstrip("/")
    own = api_key or session.profile.api_key
    return url, own or session.profile.key, "" if own else session.profile.holder, _tls(session, url)


def _tls(session: Session, url: str) -> Tls:
    """The data listener may have no TLS where the admin listener has it."""
    return session.profile.tls if url.startswith("https:") else SYSTEM


def _ask_url(session: Session) -> str:
    with Client(session.profile.url, session.profile.key, tls=session.profile.tls, holder=session.profile.holder) as client:
        return str(client.get("/status")["gateway_url"])


def _first_model(client: httpx.Client) -> str:
    try:
        response = client.get("/v1/models")
    except httpx.HTTPError as error:
        raise no_answer(_url(client), error) from None
    if response.is_error:
        raise ApiError(response.status_code, explain(response))
    found = response.json()["data"]
    if not found:
        raise ApiError(403, "This key may use no model.")
    return str(found[0]["id"])


def _lines() -> Iterator[str]:
    """The typed lines, until an empty one or the end."""
    while True:
        if sys.stdin.isatty():
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def _turn(client: httpx.Client, model: str, history: list[Message], text: str, options: dict[str, Any]) -> None:
    """One question and its answer, which becomes part of the conversation. Ctrl-C ends the answer."""
    history.append({"role": "user", "content": text})
    body = {"model": model, "messages": history, "stream": True, **options}
    answer: list[str] = []
    try:
        for part in stream(client, body):
            answer.append(part)
            sys.stdout.write(clean(part))
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" ...")
    sys.stdout.write("\n")
    history.append({"role": "assistant", "content": "".join(answer)})


def stream(client: httpx.Client, body: dict[str, Any]) -> Iterator[str]:
    """The texts of a streamed answer. Raises CommandError for an error before it or inside it."""
    try:
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if not response.is_success:
                response.read()
                raise ApiError(response.status_code, explain(response))
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise CommandError(f"{_url(client)} did not answer with a stream of events: is it the data listener?")
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                yield from _texts(json.loads(line[6:]))
    except httpx.ConnectError as error:
        raise no_answer(_url(client), error) from None
    except (httpx.HTTPError, ValueError) as error:
        raise CommandError(f"the answer broke off: {error or type(error).__name__}") from None


def _url(client: httpx.Client) -> str:
    return str(client.base_url).rstrip("/")


def _texts(event: dict[str, Any]) -> Iterator[str]:
    if "error" in event:
        raise CommandError(str(event["error"].get("message", "the answer broke off")))
    for choice in event.get("choices", ()):
        content = choice.get("delta", {}).get("content")
        if content:
            yield content
