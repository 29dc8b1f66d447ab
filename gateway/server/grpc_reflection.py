"""Health (`grpc.health.v1`) and reflection (`grpc.reflection.v1` and `v1alpha`) of the gRPC listener, and the protocol's own description.

The description is a table, from which the descriptor is written that reflection hands out: KServe's grpc_predict_v2.proto, the methods that
are served.
"""

from __future__ import annotations

from typing import Final

from gateway.core.errors import RequestError
from gateway.wire.oip.protobuf import field, fields, integer, text

SERVICE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "grpc.health.v1.Health"
REFLECTIONS: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
FILE: Final = "grpc_predict_v2.proto"
SERVING, NOT_SERVING = 1, 2
MAX_NAME: Final = 512

_TYPES: Final = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13,
}  # fmt: skip
_MESSAGES: Final = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("live bool",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("ready bool",),
    "ModelReadyRequest": ("name string", "version string"),
    "ModelReadyResponse": ("ready bool",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("name string", "version string", "extensions string*"),
    "ModelMetadataRequest": ("name string", "version string"),
    "ModelMetadataResponse": (
        "name string", "versions string*", "platform string", "inputs ModelMetadataResponse.TensorMetadata*",
        "outputs ModelMetadataResponse.TensorMetadata*",
    ),
    "ModelMetadataResponse.TensorMetadata": ("name string", "datatype string", "shape int64*"),
    "ModelInferRequest": (
        "model_name string", "model_version string", "id string", "parameters InferParameter%",
        "inputs ModelInferRequest.InferInputTensor*",
        "outputs ModelInferRequest.InferRequestedOutputTensor*", "raw_input_contents bytes*",
    ),
    "ModelInferRequest.InferInputTensor": (
        "name string", "datatype string", "shape int64*", "parameters InferParameter%", "contents InferTensorContents",
    ),
    "ModelInferRequest.InferRequestedOutputTensor": ("name string", "parameters InferParameter%"),
    "ModelInferResponse": (
        "model_name string", "model_version string", "id string", "parameters InferParameter%",
        "outputs ModelInferResponse.InferOutputTensor*",
        "raw_output_contents bytes*",
    ),
    "ModelInferResponse.InferOutputTensor": (
        "name string", "datatype string", "shape int64*", "parameters InferParameter%", "contents InferTensorContents",
    ),
    "ModelStreamInferResponse": ("error_message string", "infer_response ModelInferResponse"),
    "InferParameter": ("bool_param bool|", "int64_param int64|", "string_param string|", "double_param double|", "uint64_param uint64|"),
    "InferTensorContents": (
        "bool_contents bool*", "int_contents int32*", "int64_contents int64*", "uint_contents uint32*", "uint64_contents uint64*",
        "fp32_contents float*", "fp64_contents double*", "bytes_contents bytes*",
    ),
}  # fmt: skip
"""Each message's fields by their number (a message within another one has a dot): a name and a type; `*` repeated, `%` a map from strings,
`|` one of several."""
METHODS: Final = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelStreamInfer")


def descriptor() -> bytes:
    """The protocol as a serialised FileDescriptorProto (google/protobuf/descriptor.proto)."""
    parts = [field(1, FILE), field(2, "inference")]
    parts += [field(4, _message(name)) for name in _MESSAGES if "." not in name]
    service = [field(1, SERVICE.partition(".")[2])]
    for name in METHODS:
        streams = name == "ModelStreamInfer"
        asked = "ModelInferRequest" if streams else f"{name}Request"
        method = field(1, name) + field(2, f".inference.{asked}") + field(3, f".inference.{name}Response")
        service.append(field(2, method + (integer(5, 1) + integer(6, 1) if streams else b"")))
    return b"".join([*parts, field(6, b"".join(service)), field(12, "proto3")])


def _message(name: str) -> bytes:
    fields_of: list[bytes] = []
    entries = [field(3, _message(inner)) for inner in _MESSAGES if inner.startswith(f"{name}.")]
    for number, row in enumerate(_MESSAGES[name], 1):
        own, kind = row.split()
        many, is_map, chosen = kind.endswith("*"), kind.endswith("%"), kind.endswith("|")
        kind = kind.rstrip("*%|")
        if is_map:
            entry = "".join(part.capitalize() for part in own.split("_")) + "Entry"
            pair = field(2, _field("key", 1, "string")) + field(2, _field("value", 2, kind))
            entries.append(field(3, field(1, entry) + pair + field(7, integer(7, 1))))
            kind, many = f"{name}.{entry}", True
        fields_of.append(field(2, _field(own, number, kind, many, chosen)))
    chosen_of = field(8, field(1, "parameter_choice")) if name == "InferParameter" else b""
    return b"".join([field(1, name.rpartition(".")[2]), *fields_of, *entries, chosen_of])


def _field(name: str, number: int, kind: str, many: bool = False, chosen: bool = False) -> bytes:
    data = field(1, name) + integer(3, number) + integer(4, 3 if many else 1)
    data += integer(5, _TYPES[kind]) if kind in _TYPES else integer(5, 11) + field(6, f".inference.{kind}")
    return data + (integer(9, 0) if chosen else b"")


def reflected(request: bytes, description: bytes) -> bytes:
    """The answer to one ServerReflectionRequest. Raises RequestError for a message that is none."""
    answer = field(7, integer(1, 12) + field(2, "This is not reflected."))
    for number, kind, value in fields(memoryview(request)):
        if number not in (3, 4, 6, 7):
            continue
        wanted = text(kind, value, "the question")[:MAX_NAME]
        if number == 7:
            answer = field(6, b"".join(field(1, field(1, name)) for name in (SERVICE, HEALTH, *REFLECTIONS)))
        elif (number == 3 and wanted == FILE) or (number == 4 and _is_ours(wanted)):
            answer = field(4, field(1, description))
        else:
            answer = field(7, integer(1, 5) + field(2, "There is no such symbol or file here."))
    return field(2, request) + answer


def _is_ours(symbol: str) -> bool:
    package, _, rest = symbol.partition(".")
    own = rest.split(".")
    return package == "inference" and (
        own[0] in _MESSAGES or (own[0] == SERVICE.partition(".")[2] and own[1:2] in [[], *([m] for m in METHODS)])
    )


def health_service(request: bytes) -> str:
    """The service that a HealthCheckRequest names. Raises RequestError."""
    found = ""
    for number, kind, value in fields(memoryview(request)):
        if number != 1:
            raise RequestError("HealthCheckRequest has one field.", code="invalid_message")
        found = text(kind, value, "service")
    return found


def health(serves: bool) -> bytes:
    return integer(1, SERVING if serves else NOT_SERVING)
