"""Types of the operations below /jobs. Made by scripts/generate_client.py."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class Benchmark(TypedDict):
    """Speed of a GGUF model in an engine of its own, on the processor: `requests` completions of `max_tokens`, `streams` at once."""

    kind: Literal["benchmark"]
    model: str
    streams: NotRequired[int]
    requests: NotRequired[int]
    prompt_words: NotRequired[int]
    max_tokens: NotRequired[int]
    context: NotRequired[int]


class Convert(TypedDict):
    """A Hugging Face folder to GGUF. type: of the matrices; auto: the 16 bits that they have."""

    kind: Literal["convert"]
    model: str
    to: str
    type: NotRequired[Literal["BF16", "F16", "F32", "auto"]]
    replace: NotRequired[bool]


class Export(TypedDict):
    """A Hugging Face folder to a folder with an ONNX graph, by PyTorch's exporter where it is installed (jobs.export_python)."""

    kind: Literal["export"]
    model: str
    to: str
    replace: NotRequired[bool]


class JobCreation(TypedDict):
    """after: jobs that must be done before. attempts: how often it is begun at most; by default `jobs.attempts`."""

    task: Convert | Export | Quantize | QuantizeOnnx | Benchmark | Warm
    after: NotRequired[list[str]]
    attempts: NotRequired[int | None]


class JobDryRun(TypedDict):
    result: JobsJobView
    diff: list[dict[str, Any]]
    dry_run: NotRequired[bool]


class JobErrorView(TypedDict):
    code: str
    message: str


class JobPage(TypedDict):
    items: list[JobsJobView]
    cursor: NotRequired[str | None]


class JobsJobView(TypedDict):
    """creator: the credential that made it, as `tenant/id`. replica: whose model files it is about; "" for none. attempts: begun so far,
    of `max_attempts`. due_at: not begun before. progress: of this attempt, from 0 to 1. error: of the last attempt. log: its last lines.
    moments: when it came into each state last. holder: the process that runs it; "" for none.
    """

    id: str
    tenant: str
    creator: str
    kind: Literal["benchmark", "convert", "export", "quantize", "quantize-onnx", "warm"]
    state: Literal["cancelled", "dead", "done", "failed", "queued", "running", "waiting"]
    task: Convert | Export | Quantize | QuantizeOnnx | Benchmark | Warm
    replica: str
    schedule: str
    after: list[str]
    attempts: int
    max_attempts: int
    cancels: bool
    progress: float
    error: JobErrorView | None
    result: dict[str, Any] | None
    log: str
    created_at: str
    due_at: str
    moments: dict[str, str]
    holder: str


class Quantize(TypedDict):
    """GGUF to a smaller GGUF, by llama.cpp. requantize: whether a model may be taken that is quantised already, which loses quality.
    replace: whether a model file of the name `to` may be replaced.
    """

    kind: Literal["quantize"]
    model: str
    to: str
    type: Literal[
        "BF16",
        "F16",
        "IQ4_NL",
        "IQ4_XS",
        "Q2_K",
        "Q2_K_S",
        "Q3_K_L",
        "Q3_K_M",
        "Q3_K_S",
        "Q4_0",
        "Q4_1",
        "Q4_K_M",
        "Q4_K_S",
        "Q5_0",
        "Q5_1",
        "Q5_K_M",
        "Q5_K_S",
        "Q6_K",
        "Q8_0",
    ]
    requantize: NotRequired[bool]
    replace: NotRequired[bool]


class QuantizeOnnx(TypedDict):
    """An ONNX file, or a folder with one, to 8-bit weights, by ONNX Runtime (dynamic quantisation). to: a folder where `model` is one."""

    kind: Literal["quantize-onnx"]
    model: str
    to: str
    weights: NotRequired[Literal["int8", "uint8"]]
    per_channel: NotRequired[bool]
    replace: NotRequired[bool]


class Warm(TypedDict):
    """Asks the requests of a file of `/v1/files` (lines as a batch has them), so that their answers are kept. They are asked as whoever
    made the job, at priority `batch`.
    """

    kind: Literal["warm"]
    file: str
    endpoint: NotRequired[Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]]
    at_once: NotRequired[int]
