"""A client of an S3-compatible store, by boto3, which is loaded here alone. Its calls block; none is tried twice by itself."""

from __future__ import annotations

import importlib
from typing import Any

from gateway.core.errors import ConfigError
from gateway.core.secret import Secret


def s3_client(
    what: str,
    path: str,
    *,
    endpoint: str | None,
    region: str | None,
    access_key: Secret | None,
    secret_key: Secret | None,
    timeout: float,
    connections: int = 10,
) -> tuple[Any, tuple[type[Exception], ...]]:
    """The client, and what its calls raise. what: needs it, for people. path: of the settings. timeout: seconds of one request, while
    nothing arrives. Raises ConfigError where boto3 is missing or the settings cannot be used."""
    try:
        boto3 = importlib.import_module("boto3")
        config, failures = importlib.import_module("botocore.config"), importlib.import_module("botocore.exceptions")
        transfer = importlib.import_module("urllib3.exceptions")
    except ImportError:
        raise ConfigError(f"{what} needs the package boto3: install gatehouse[s3]", path=path) from None
    if (access_key is None) != (secret_key is None):
        raise ConfigError("access_key and secret_key go together", path=path)
    try:
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=region or ("us-east-1" if endpoint else None),
            aws_access_key_id=access_key.reveal() if access_key else None,
            aws_secret_access_key=secret_key.reveal() if secret_key else None,
            config=config.Config(
                connect_timeout=min(10.0, timeout),
                read_timeout=timeout,
                retries={"total_max_attempts": 1},
                max_pool_connections=connections,
                # what is sent carries its SHA-256, and what comes is compared with one: other checksums would only exclude older stores
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path"} if endpoint else {},
            ),
        )
    except (ValueError, failures.BotoCoreError) as error:
        raise ConfigError(str(error), path=path) from None
    return client, (failures.BotoCoreError, failures.ClientError, transfer.HTTPError)
