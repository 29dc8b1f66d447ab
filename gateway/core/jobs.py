"""Jobs of operators: what the store keeps of them, and the decisions about their states, which are pure.
Moments are seconds since the epoch by the database's clock.

A job is `waiting` for others, `queued`, `running`, and at last `done`, `cancelled` or `dead`. One that has `failed` is tried again when it
is due; one that has failed for the last time, or in a way that another try cannot mend, is dead: a person may have it tried again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import Meta

from gateway.core.batches import Creator
from gateway.core.errors import GatehouseError

JOB_PREFIX: Final = "job_"
MOST_AFTER: Final = 32
"""Jobs that one may wait for."""
State = Literal["waiting", "queued", "running", "failed", "done", "dead", "cancelled"]
STATES: Final = ("waiting", "queued", "running", "failed", "done", "dead", "cancelled")
OVER: Final = ("done", "dead", "cancelled")
Kind = Literal["convert", "export", "quantize", "quantize-onnx", "benchmark", "warm"]
GgufType = Literal[
    "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K_L",
    "Q3_K_M", "Q3_K_S", "Q2_K", "Q2_K_S",
]  # fmt: skip
"""What a GGUF file can be quantised to without an importance matrix."""
Model = Annotated[str, Meta(min_length=1, max_length=255, description="A model file by its name, as `gatehouse models files` lists it.")]
GgufName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,114}\.gguf$")]
FOLDER: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}(/[A-Za-z0-9][A-Za-z0-9._-]{0,119}){0,3}$"
OnnxName = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$", description="NAME.onnx of a file, any other name of a folder.")
]


class Convert(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="convert", tag_field="kind"):
    """A Hugging Face folder to GGUF. type: of the matrices; auto: the 16 bits that they have."""

    model: Annotated[
        str,
        Meta(pattern=FOLDER, max_length=255, description="A folder with config.json and .safetensors files among the model files."),
    ]
    to: GgufName
    type: Literal["auto", "F32", "F16", "BF16"] = "auto"
    replace: bool = False


class Export(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="export", tag_field="kind"):
    """A Hugging Face folder to a folder with an ONNX graph, by PyTorch's exporter where it is installed (jobs.export_python)."""

    model: Annotated[
        str,
        Meta(pattern=FOLDER, max_length=255, description="A folder with config.json and .safetensors files among the model files."),
    ]
    to: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$", description="The folder to make.")]
    replace: bool = False


class Quantize(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="quantize", tag_field="kind"):
    """GGUF to a smaller GGUF, by llama.cpp. requantize: whether a model may be taken that is quantised already, which loses quality.
    replace: whether a model file of the name `to` may be replaced."""

    model: Model
    to: GgufName
    type: GgufType
    requantize: bool = False
    replace: bool = False


class QuantizeOnnx(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="quantize-onnx", tag_field="kind"):
    """An ONNX file, or a folder with one, to 8-bit weights, by ONNX Runtime (dynamic quantisation). to: a folder where `model` is one."""

    model: Model
    to: OnnxName
    weights: Literal["int8", "uint8"] = "int8"
    per_channel: bool = False
    replace: bool = False


class Benchmark(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="benchmark", tag_field="kind"):
    """Speed of a GGUF model in an engine of its own, on the processor: `requests` completions of `max_tokens`, `streams` at once."""

    model: Model
    streams: Annotated[int, Meta(ge=1, le=64)] = 1
    requests: Annotated[int, Meta(ge=1, le=10_000)] = 8
    prompt_words: Annotated[int, Meta(ge=1, le=8192)] = 64
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = 64
    context: Annotated[int, Meta(ge=128, le=131072)] = 1024


class Warm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="warm", tag_field="kind"):
    """Asks the requests of a file of `/v1/files` (lines as a batch has them), so that their answers are kept. They are asked as whoever
    made the job, at priority `batch`."""

    file: Annotated[str, Meta(min_length=1, max_length=128)]
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"] = "/v1/chat/completions"
    at_once: Annotated[int, Meta(ge=1, le=64)] = 2


Task = Convert | Export | Quantize | QuantizeOnnx | Benchmark | Warm
OnFiles = (Convert, Export, Quantize, QuantizeOnnx, Benchmark)
"""Tasks on model files of one machine."""
FOLDERS: Final[Mapping[type, str]] = MappingProxyType({QuantizeOnnx: "onnx"})
"""Tasks that take a model's folder, too -> its runtime."""
Making = Convert | Export | Quantize | QuantizeOnnx
"""Tasks that add a model file."""


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """replica: whose model files it is about; "" for none. due: not begun before. attempts: begun so far, of `most`. after: jobs that must
    be done before. schedule: that made it, or "". promised: SHA-256 of what an attempt was about to add to the model files. log: the
    last lines."""

    id: str
    tenant: str
    kind: str
    state: State
    task: Task
    creator: Creator
    replica: str = ""
    schedule: str = ""
    created: float = 0.0
    due: float = 0.0
    attempts: int = 0
    most: int = 1
    cancels: bool = False
    holder: str = ""
    fence: int = 0
    after: tuple[str, ...] = ()
    progress: float = 0.0
    promised: str = ""
    log: str = ""
    error: JobError | None = None
    result: dict[str, Any] | None = None
    moments: dict[str, float] = {}


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a job whenever its time has come. cron: five fields, in the time zone. last: the job that it made last, or ""."""

    name: str
    tenant: str
    cron: str
    timezone: str
    task: Task
    creator: Creator
    replica: str
    most: int
    next: float = 0.0
    last: str = ""
    created: float = 0.0


class JobControl(Protocol):
    """Jobs of operators (gateway.app.operator_jobs.book). tenants: whose; None for all."""

    async def create(
        self, task: Task, creator: Creator, actor: str, *, after: Sequence[str] = (), most: int | None = None, dry_run: bool = False
    ) -> JobRecord:
        """Raises NotFound, RequestError, PermissionDenied, QuotaExceeded."""
        ...

    async def page(
        self, tenants: Sequence[str] | None, limit: int, after: str | None, state: str | None, kind: str | None
    ) -> tuple[list[JobRecord], bool]:
        """The newest first, and whether there are more."""
        ...

    async def get(self, id: str, tenants: Sequence[str] | None) -> JobRecord:
        """Raises NotFound."""
        ...

    async def cancel(self, id: str, tenants: Sequence[str] | None, actor: str, *, dry_run: bool = False) -> JobRecord:
        """Raises NotFound."""
        ...

    async def retry(self, id: str, tenants: Sequence[str] | None, actor: str, *, dry_run: bool = False) -> JobRecord:
        """Raises NotFound; AlreadyExists for one that cannot be tried again."""
        ...

    async def schedule(
        self, name: str, expression: str, timezone: str, task: Task, creator: Creator, actor: str, *, most: int | None, dry_run: bool
    ) -> ScheduleRecord:
        """Raises as `create`; AlreadyExists."""
        ...

    async def schedules(
        self, tenants: Sequence[str] | None, *, after: tuple[str, str] | None = None, most: int | None = None
    ) -> list[ScheduleRecord]:
        """Ordered by tenant and name. after: only those after this one; most: so many at most."""
        ...

    async def unschedule(self, tenant: str, name: str, actor: str, *, dry_run: bool = False) -> ScheduleRecord:
        """Raises NotFound."""
        ...


class JobFailed(GatehouseError):
    """An attempt has failed. lasting: another one would, too."""

    default_code = "job_failed"

    def __init__(self, message: str, *, code: str | None = None, lasting: bool = False) -> None:
        super().__init__(message, code=code)
        self.lasting = lasting


def pause(attempts: int, backoff: float, most: float) -> float:
    """Seconds until the next attempt, after so many."""
    return min(most, backoff * 2.0 ** min(attempts - 1, 60))


def failed(attempts: int, most: int, *, lasting: bool) -> State:
    """What a job is after an attempt that has failed."""
    return "dead" if lasting or attempts >= most else "failed"


def awaited(states: Collection[State | None]) -> State:
    """What a job that waits for others in these states becomes; None: of one that is not there any more."""
    if any(state in (None, "dead", "cancelled") for state in states):
        return "cancelled"
    return "queued" if all(state == "done" for state in states) else "waiting"
