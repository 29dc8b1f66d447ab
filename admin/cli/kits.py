"""Ready settings for clients, as `gatehouse keys show KEY --client NAME` prints them and docs/clients.md has them. Never with the key
itself: nobody can show it again, and settings are often shared."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Final

KITS: Final = {
    "claude-code": """\
export ANTHROPIC_BASE_URL={url}
export ANTHROPIC_AUTH_TOKEN="$GATEHOUSE_KEY"
export ANTHROPIC_MODEL={model}
export ANTHROPIC_DEFAULT_HAIKU_MODEL={model}
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude
""",
    "codex": """\
# ~/.codex/config.toml; the key is read from the variable GATEHOUSE_KEY
model = "{model}"
model_provider = "gatehouse"
web_search = "disabled"

[model_providers.gatehouse]
name = "Gatehouse"
base_url = "{url}/v1"
env_key = "GATEHOUSE_KEY"
wire_api = "responses"
""",
    "opencode": """\
{{
  "$schema": "https://opencode.ai/config.json",
  "model": "gatehouse/{model}",
  "provider": {{
    "gatehouse": {{
      "npm": "@ai-sdk/openai-compatible",
      "name": "Gatehouse",
      "options": {{"baseURL": "{url}/v1", "apiKey": "{{env:GATEHOUSE_KEY}}"}},
      "models": {{"{model}": {{"name": "{model}"}}}}
    }}
  }}
}}
""",
    "open-webui": """\
ENABLE_OLLAMA_API=false
OPENAI_API_BASE_URL={url}/v1
OPENAI_API_KEY=$GATEHOUSE_KEY
DEFAULT_MODELS={model}
""",
    "continue": """\
name: Gatehouse
version: 1.0.0
schema: v1
models:
  - name: {model}
    provider: openai
    model: {model}
    apiBase: {url}/v1
    apiKey: ${{{{ secrets.GATEHOUSE_KEY }}}}
    roles: [chat, edit, apply]
""",
    "langchain": """\
import os

from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url="{url}/v1", api_key=os.environ["GATEHOUSE_KEY"], model="{model}", stream_usage=True)
print(model.invoke("Hello").content)
""",
    "llamaindex": """\
import os

from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(api_base="{url}/v1", api_key=os.environ["GATEHOUSE_KEY"], model="{model}", is_chat_model=True)
print(model.complete("Hello"))
""",
    "openai": """\
import os

from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key=os.environ["GATEHOUSE_KEY"])
answer = client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}])
print(answer.choices[0].message.content)
""",
    "anthropic": """\
import os

from anthropic import Anthropic

client = Anthropic(base_url="{url}", api_key=os.environ["GATEHOUSE_KEY"])
answer = client.messages.create(model="{model}", max_tokens=100, messages=[{{"role": "user", "content": "Hello"}}])
print(answer.content[0].text)
""",
}
"""The settings by the client's name."""
NO_MODEL: Final = "MODEL"


def kit(client: str, url: str, model: str) -> str:
    """The settings of a client for a gateway's data listener. Raises KeyError for a client without any."""
    return KITS[client].format(url=url, model=model)


def model_for(key: dict[str, Any], models: list[str]) -> str:
    """The first model that a key may use, by its patterns; NO_MODEL where there is none."""
    patterns = [str(pattern).partition("@")[0] for pattern in key.get("models") or ()]
    return next((name for name in models if any(fnmatchcase(name, pattern) for pattern in patterns)), NO_MODEL)
