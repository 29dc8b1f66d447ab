"""Keys and tokens whose form their provider has published: a prefix that nothing else has, a length, an alphabet, sometimes a checksum."""

from __future__ import annotations

from typing import Final

from policies.guardrails.recognition.checks import has
from policies.guardrails.recognition.recogniser import Recogniser
from policies.guardrails.secrets.randomness import checksum, drawn, token


def _key(entity: str, pattern: str, *, prefix: int = 0, bits: float = 3.2) -> Recogniser:
    """prefix: how many characters come before those that are drawn at random."""
    return Recogniser(entity, pattern, token(pattern, bits, prefix), not_after="-")


def _gatehouse(text: str) -> bool:
    return text.startswith("gh_") and checksum(text[:-6]) == text[-6:]


def _github(text: str) -> bool:
    """The last six digits are a checksum of the others, by GitHub's own account; one that does not fit may be of another kind."""
    body = text[4:]
    return text[:4].islower() and (checksum(body[:-6]) == body[-6:] or drawn(body, 3.5))


RECOGNISERS: Final = (
    Recogniser("gatehouse", "gh_[a-z0-9]{39}", has(_gatehouse)),
    Recogniser("github", "gh[pousr]_[a-z0-9]{36}", has(_github)),
    _key("github", "github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}", prefix=11),
    _key("aws", "(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}", prefix=4, bits=2.8),
    _key("aws", "ABSK[A-Za-z0-9+/]{109,200}", prefix=4),
    _key("gcp", "AIza[A-Za-z0-9_-]{35}", prefix=4),
    _key("gcp", r"ya29\.[A-Za-z0-9_-]{20,250}", prefix=5),
    _key("gcp", "GOCSPX-[A-Za-z0-9_-]{28}", prefix=7),
    _key("gitlab", "gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|oas)-[A-Za-z0-9_-]{20,64}", prefix=6),
    _key("slack", "xox[abeoprs]-[A-Za-z0-9-]{10,250}", prefix=5, bits=2.8),
    _key("slack", "xapp-[0-9]-[A-Za-z0-9-]{20,250}", prefix=7),
    _key("slack", r"hooks\.slack\.com/services/T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{20,30}", prefix=25),
    _key("stripe", "[srp]k_(?:live|test)_[A-Za-z0-9]{16,120}", prefix=8),
    _key("stripe", "whsec_[A-Za-z0-9+/]{32,64}", prefix=6),
    _key("anthropic", "sk-ant-[a-z]{3,8}[0-9]{2}-[A-Za-z0-9_-]{80,120}", prefix=13),
    _key("openai", "sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{40,250}", prefix=8),
    _key("openai", "sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}", prefix=3),
    _key("service_token", "sk-(?:[a-z]{2,8}-)?(?:v[0-9]-)?[A-Za-z0-9]{32,200}", prefix=3, bits=3.4),
    _key("huggingface", "hf_[A-Za-z0-9]{34,40}", prefix=3, bits=3.5),
    _key("npm", "npm_[A-Za-z0-9]{36}", prefix=4, bits=3.5),
    _key("pypi", "pypi-AgE[A-Za-z0-9_-]{50,400}", prefix=8),
    _key("twilio", "SK[0-9a-f]{32}", prefix=2, bits=2.8),
    _key("sendgrid", r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}", prefix=3),
    _key("service_token", "do[opr]_v1_[0-9a-f]{64}", prefix=7, bits=3.0),  # DigitalOcean
    _key("service_token", "shp(?:at|ca|pa|ss)_[0-9a-f]{32}", prefix=6, bits=2.8),  # Shopify
    _key("service_token", "dapi[0-9a-f]{32}", prefix=4, bits=2.8),  # Databricks
    _key("service_token", "glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}", prefix=5),  # Grafana
    _key("service_token", r"hv[sbr]\.[A-Za-z0-9_-]{24,250}", prefix=4),  # Vault
    _key("service_token", "lin_api_[A-Za-z0-9]{40}", prefix=8),  # Linear
    _key("service_token", "ntn_[A-Za-z0-9]{40,50}", prefix=4),  # Notion
    _key("service_token", "gsk_[A-Za-z0-9]{52}", prefix=4),  # Groq
    _key("service_token", "xai-[A-Za-z0-9]{80}", prefix=4),  # xAI
    _key("service_token", "pplx-[A-Za-z0-9]{40,60}", prefix=5),  # Perplexity
    _key("service_token", "r8_[A-Za-z0-9]{37}", prefix=3),  # Replicate
    _key("service_token", "dckr_pat_[A-Za-z0-9_-]{27}", prefix=9),  # Docker Hub
    _key("service_token", "AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58}", prefix=16),  # age
    _key("service_token", "ATATT3[A-Za-z0-9_=-]{100,250}", prefix=6),  # Atlassian
    _key("service_token", r"dp\.(?:pt|st|sa|ct|scim|audit)\.[A-Za-z0-9]{40,44}", prefix=6),  # Doppler
    _key("service_token", "PMAK-[0-9a-f]{24}-[0-9a-f]{34}", prefix=5, bits=3.0),  # Postman
    _key("service_token", "figd_[A-Za-z0-9_-]{40}", prefix=5),  # Figma
)
"""Of Azure's keys only those in connection strings and behind a word have a form of their own."""
