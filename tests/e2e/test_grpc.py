"""The Open Inference Protocol by gRPC: the official client unchanged, and the same policies, limits and records as its REST form."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool

from gateway.server.grpc_reflection import descriptor
from gateway.wire.oip.protobuf import field, fields
from tests.e2e.adminapi import admin, config
from tests.e2e.harness import KEY, NARROW_KEY, OTHER_KEY, Gatehouse, alive
from tests.e2e.test_tensors import double_model
from tests.fakes import http2
from tests.fakes.ports import empty_port
from tests.pki import Authority
from tests.steady import at_most
from tests.waiting import until

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.grpc as triton
    from tritonclient.grpc import service_pb2 as pb

SERVICE = "/inference.GRPCInferenceService/"
BEARER = {"authorization": f"Bearer {KEY}"}


def settings(state_dir: Path, model: Path, **parts: Any) -> dict[str, Any]:
    listen = {"grpc": "127.0.0.1:0", **parts.pop("listen", {})}
    model.write_bytes(double_model())
    made = config(
        state_dir,
        1,
        listen=listen,
        engines=[{"name": "double", "runtime": "onnx", "model": str(model), "slots": 4}],
        models=[{"name": "double", "pool": ["double"]}],
        limits=[{"name": "few", "match": {"tenant": "globex"}, "requests": {"rate": 2, "per": "1h"}}],
        **parts,
    )
    made["identity"]["api_keys"]["static"].append(
        {"id": "first", "key": "first-key-0123456789abcdef0123456789abcdef", "tenant": "acme", "models": ["double@1"]}
    )
    return made


def address(gatehouse: Gatehouse) -> str:
    return until(lambda: next((line[6:] for line in gatehouse.lines if line.startswith("grpc: ")), None), what="the gRPC listener")


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("grpc")
    with Gatehouse(directory, settings(directory / "state", directory / "double.onnx")) as running:
        yield running


@pytest.fixture
def client(tensors: Gatehouse) -> Iterator[Any]:
    made = triton.InferenceServerClient(address(tensors))
    yield made
    made.close()


@pytest.fixture
def channel(tensors: Gatehouse) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address(tensors)) as made:
        yield made


def given(rows: int = 2) -> tuple[Any, np.ndarray[Any, Any]]:
    values = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
    tensor = triton.InferInput("x", [rows, 3], "FP32")
    tensor.set_data_from_numpy(values)
    return tensor, values


def raw(channel: grpc.Channel, method: str, message: bytes, metadata: Any = (("authorization", f"Bearer {KEY}"),), **options: Any) -> Any:
    """One call with bytes; the outcome with its code, details and metadata."""
    call = channel.unary_unary(SERVICE + method)
    try:
        answer, done = call.with_call(message, metadata=metadata, timeout=60, **options)
        return answer, done.trailing_metadata()
    except grpc.RpcError as error:
        return error


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("ModelReady", pb.ModelReadyRequest(name="double").SerializeToString()),
        ("ModelMetadata", pb.ModelMetadataRequest(name="double").SerializeToString()),
    ],
)
def test_small_answers_tell_the_same_as_an_inference(channel: grpc.Channel, method: str, message: bytes) -> None:
    _, trailing = raw(channel, method, message, (("authorization", f"Bearer {KEY}"), ("x-request-id", "mine")))
    told = dict(trailing)
    assert (told["x-request-id"], told["x-gatehouse-model"], told["x-gatehouse-endpoint"]) == ("mine", "double", "double")


def request(**changes: Any) -> Any:
    made = pb.ModelInferRequest(model_name="double", id="r1")
    tensor = made.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    made.raw_input_contents.append(np.array([1, 2, 3], np.float32).tobytes())
    for name, value in changes.items():
        if name in ("shape", "datatype"):
            made.inputs[0].ClearField(name)
            getattr(tensor, name).extend(value) if name == "shape" else setattr(tensor, name, value)
        elif name == "raw":
            made.ClearField("raw_input_contents")
            made.raw_input_contents.extend(value)
        else:
            setattr(made, name, value)
    return made


def test_the_official_client_unchanged(client: Any, tensors: Gatehouse) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.get_server_metadata().name == "gatehouse"
    assert client.is_model_ready("double", headers=BEARER)
    described = client.get_model_metadata("double", headers=BEARER)
    assert (described.inputs[0].name, described.inputs[0].datatype, list(described.inputs[0].shape)) == ("x", "FP32", [-1, 3])
    tensor, values = given()
    headers = {**BEARER, "x-request-id": "grpc-1"}
    answer = client.infer("double", [tensor], outputs=[triton.InferRequestedOutput("y")], headers=headers, request_id="r1")
    assert np.array_equal(answer.as_numpy("y"), values * 2) and answer.get_response().id == "r1"
    assert np.array_equal(client.infer("double", [tensor], headers=BEARER).as_numpy("y"), values * 2)
    outcome = tensors.outcome("grpc-1")
    assert (outcome["outcome"], outcome["operation"], outcome["model"]) == ("ok", "infer", "double")
    assert outcome["detail"]["outputs"][0]["shape"] == [2, 3]
    intent = next(r for r in tensors.audit() if r["kind"] == "intent" and r["request_id"] == "grpc-1")
    assert intent["principal"] == "test" and intent["detail"]["inputs"][0]["elements"] == 6


def test_streams_answer_in_order_and_go_on_after_an_error(client: Any, tensors: Gatehouse) -> None:
    found: list[tuple[Any, Any]] = []
    client.start_stream(callback=lambda result, error: found.append((result, error)), headers=BEARER)
    for number in range(20):
        tensor, _ = given(number + 1)
        client.async_stream_infer("nothing" if number == 7 else "double", [tensor], request_id=str(number))
    until(lambda: len(found) == 20, what="the answers")
    client.stop_stream()
    for number, (result, error) in enumerate(found):
        if number == 7:
            assert result is None and "does not exist" in error.message()
        else:
            assert result.get_response().id == str(number) and result.as_numpy("y").shape == (number + 1, 3)


def test_numbers_in_contents_are_taken(channel: grpc.Channel) -> None:
    made = pb.ModelInferRequest(model_name="double")
    tensor = made.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    tensor.contents.fp32_contents.extend([1.5, 2, -3])
    answer, _ = raw(channel, "ModelInfer", made.SerializeToString())
    found = pb.ModelInferResponse.FromString(answer)
    assert np.frombuffer(found.raw_output_contents[0], np.float32).tolist() == [3, 4, -6]


@pytest.mark.parametrize(
    ("metadata", "code", "words"),
    [
        ((), "UNAUTHENTICATED", "credential"),
        ((("authorization", "Bearer wrong"),), "UNAUTHENTICATED", "not valid"),
        ((("authorization", f"Bearer {KEY}"), ("x-api-key", OTHER_KEY)), "INVALID_ARGUMENT", "two different"),
        ((("x-api-key", KEY), ("x-api-key", OTHER_KEY)), "INVALID_ARGUMENT", "twice"),
        ((("authorization", f"Bearer {NARROW_KEY}"),), "NOT_FOUND", "does not exist"),
        ((("x-api-key", "first-key-0123456789abcdef0123456789abcdef"),), "NOT_FOUND", "does not exist"),
    ],
)
def test_who_may_not(channel: grpc.Channel, metadata: Any, code: str, words: str) -> None:
    for method, message in (
        ("ModelInfer", request().SerializeToString()),
        ("ModelMetadata", pb.ModelMetadataRequest(name="double").SerializeToString()),
        ("ModelReady", pb.ModelReadyRequest(name="double").SerializeToString()),
    ):
        error = raw(channel, method, message, metadata)
        assert error.code().name == code and words in error.details(), (method, error)
        assert dict(error.trailing_metadata())["x-gatehouse-code"]


def test_access_by_version(channel: grpc.Channel) -> None:
    key = (("x-api-key", "first-key-0123456789abcdef0123456789abcdef"),)
    answer, _ = raw(channel, "ModelInfer", request(model_version="1").SerializeToString(), key)
    assert pb.ModelInferResponse.FromString(answer).model_version == "1"
    assert raw(channel, "ModelInfer", request(model_version="2").SerializeToString(), key).code().name in ("NOT_FOUND", "PERMISSION_DENIED")
    assert raw(channel, "ModelInfer", request(model_version="9").SerializeToString()).code() is grpc.StatusCode.NOT_FOUND


def test_limits_say_when_to_come_again(channel: grpc.Channel) -> None:
    key = (("authorization", f"Bearer {OTHER_KEY}"),)
    _, trailing = raw(channel, "ModelInfer", request().SerializeToString(), key)
    assert dict(trailing)["x-ratelimit-remaining-requests"] == "1" and dict(trailing)["x-gatehouse-model"] == "double"
    raw(channel, "ModelInfer", request().SerializeToString(), key)
    error = raw(channel, "ModelInfer", request().SerializeToString(), key)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailing = dict(error.trailing_metadata())
    assert trailing["x-gatehouse-code"] == "rate_limit_exceeded" and int(trailing["grpc-retry-pushback-ms"]) > 1000


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\xff\xff\xff", "the protocol's"),
        (b"", "does not exist"),
        (request(shape=[1, 4]).SerializeToString(), "binary_data_size 16"),
        (request(shape=[-1, 3]).SerializeToString(), "dimensions of zero or more"),
        (request(shape=[1 << 40, 1 << 40]).SerializeToString(), "elements"),
        (request(datatype="FP99").SerializeToString(), "a datatype of"),
        (request(raw=[b"x" * 12, b"y" * 12]).SerializeToString(), "raw_input_contents"),
        (request(raw=[b"x" * 11]).SerializeToString(), "binary_data_size 12"),
        (request(raw=[]).SerializeToString(), "binary_data_size 12"),
        (request(model_name="../../v1/chat").SerializeToString(), "segment"),
        (request(model_name="double/infer").SerializeToString(), "does not exist"),
        (field(1, "double") + field(5, field(1, "x") + field(4, field(1, "binary_data_size") + field(2, b"\x10\x05"))), "REST form"),
    ],
)
def test_bad_messages_are_named(channel: grpc.Channel, tensors: Gatehouse, message: bytes, words: str) -> None:
    error = raw(channel, "ModelInfer", message)
    assert isinstance(error, grpc.RpcError) and words in error.details(), error
    assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)


def test_messages_are_bounded_and_nothing_is_inflated(channel: grpc.Channel) -> None:
    large = request(raw=[b"\x00" * (9 * 1024 * 1024)]).SerializeToString()
    assert raw(channel, "ModelInfer", large).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    inflating = pb.ModelInferRequest(model_name="double")
    tensor = inflating.inputs.add(name="x", datatype="INT64", shape=[2_000_000])
    tensor.contents.int64_contents.extend([0] * 2_000_000)
    error = raw(channel, "ModelInfer", inflating.SerializeToString())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "more bytes" in error.details()
    squeezed = raw(channel, "ModelInfer", request().SerializeToString(), compression=grpc.Compression.Gzip)
    assert squeezed.code() is grpc.StatusCode.UNIMPLEMENTED
    assert raw(channel, "NoSuchMethod", b"").code() is grpc.StatusCode.UNIMPLEMENTED


def test_metadata_is_bounded_before_a_client_has_acknowledged_its_bounds(channel: grpc.Channel, tensors: Gatehouse) -> None:
    """One field in the table of fields, named 20 times, is 78 KB of 4 KB on the wire; with more grpcio refuses some by chance."""
    host, _, port = address(tensors).rpartition(":")
    told = http2.head(SERVICE + "ModelReady", authorization=f"Bearer {KEY}")
    got = b"settings timeout"
    while b"head is larger than" not in got:
        assert b"settings timeout" in got, got  # a machine that stood still: grpcio waits 20 s for the acknowledgement
        with socket.create_connection((host, int(port)), timeout=60) as wire:
            wire.sendall(http2.OPENED + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.literal("bomb", "b" * 3900, b"\x40") + told))
            wire.sendall(http2.frame(http2.HEADERS, http2.END_HEADERS, 3, told + b"\xbe" * 20))
            got = b""
            while b"head is larger than" not in got and (data := wire.recv(65536)):
                got += data
    assert not isinstance(raw(channel, "ModelReady", b"\n\x06double"), grpc.RpcError)
    many = raw(channel, "ModelReady", b"\n\x06double", (*(("x-a", "b"),) * 70, ("authorization", f"Bearer {KEY}")))
    assert many.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "too many headers" in many.details()


def test_health_and_reflection(channel: grpc.Channel) -> None:
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"") == check(field(1, "inference.GRPCInferenceService")) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as error:
        check(field(1, "other"))
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert next(channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")) == b"\x08\x01"
    ask = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    answers = list(ask(iter([field(7, ""), field(4, "inference.GRPCInferenceService"), field(4, "nothing")])))
    assert b"inference.GRPCInferenceService" in answers[0] and descriptor() in answers[1]
    assert any(number == 7 for number, _, _ in fields(memoryview(answers[2])))


def test_what_says_nothing_is_not_waited_for(tensors: Gatehouse) -> None:
    """A message is in memory while it arrives, and these callers have no credential."""
    host, _, port = address(tensors).rpartition(":")
    for method, answer in (("ServerLive", b"\x08\x01"), ("ServerReady", b"\x08\x01"), ("ServerMetadata", b"gatehouse")):
        with socket.create_connection((host, int(port)), timeout=60) as wire:
            called = http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.head(SERVICE + method))
            begun = http2.message(b"x" * 8_000_000)[:1000]  # the rest never comes
            wire.sendall(http2.OPENED + http2.frame(http2.SETTINGS, http2.ACK, 0) + called + http2.frame(http2.DATA, 0, 1, begun))
            got = b""
            while answer not in got:
                data = wire.recv(65536)
                assert data, got
                got += data


def test_calls_of_one_address_are_bounded(launch: Callable[..., Gatehouse], tmp_path: Path) -> None:
    """One client that watches the health many times, which needs no credential, must not have all calls."""
    listen = {"grpc": "127.0.0.1:0", "max_connections_per_peer": 8}
    gatehouse = launch(settings(tmp_path / "state", tmp_path / "double.onnx", listen=listen)).start()
    with grpc.insecure_channel(address(gatehouse)) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        watching = [channel.unary_stream("/grpc.health.v1.Health/Watch")(b"") for _ in range(8)]
        assert [next(each)[:1] for each in watching] == [b"\x08"] * 8
        with pytest.raises(grpc.RpcError) as error:
            check(b"")
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE and "Too many calls" in error.value.details()
        assert dict(error.value.trailing_metadata())["x-gatehouse-code"] == "overloaded"
        watching.pop().cancel()

        def checked() -> bool:
            try:
                return bool(check(b""))
            except grpc.RpcError:
                return False

        until(checked, what="room for another call")
        for each in watching:
            each.cancel()


def test_a_stream_of_reflection_that_is_idle_ends(launch: Callable[..., Gatehouse], tmp_path: Path) -> None:
    listen = {"grpc": "127.0.0.1:0", "header_timeout": "2s"}
    gatehouse = launch(settings(tmp_path / "state", tmp_path / "double.onnx", listen=listen)).start()
    with grpc.insecure_channel(address(gatehouse)) as channel:
        over = threading.Event()
        asked = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(iter(over.wait, True))
        try:
            assert asked.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        finally:
            over.set()
    assert not any("a call of gRPC failed" in line for line in gatehouse.lines), "whoever is idle writes into no log"


def test_the_description_is_that_of_the_official_client() -> None:
    file = descriptor_pb2.FileDescriptorProto.FromString(descriptor())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    ours = pool.FindFileByName(file.name).message_types_by_name
    assert len(ours) == 15
    for name, message in [*ours.items(), *((inner.full_name[10:], inner) for each in ours.values() for inner in each.nested_types)]:
        theirs = pb.DESCRIPTOR.pool.FindMessageTypeByName(f"inference.{name}")
        for own in message.fields:
            other = theirs.fields_by_name[own.name]
            assert (own.number, own.type, own.is_repeated) == (other.number, other.type, other.is_repeated), f"{name}.{own.name}"


def test_a_deadline_and_a_client_that_cancels_free_the_engine(channel: grpc.Channel, tensors: Gatehouse) -> None:
    call = channel.unary_unary(SERVICE + "ModelInfer")
    with pytest.raises(grpc.RpcError) as error:
        call(request().SerializeToString(), metadata=(("authorization", f"Bearer {KEY}"),), timeout=0.0005)
    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    for _ in range(20):
        call.future(request().SerializeToString(), metadata=(("authorization", f"Bearer {KEY}"),)).cancel()
    until(lambda: tensors.metric("gatehouse_in_flight") == 0 and tensors.metric("gatehouse_held_bytes") == 0, what="the end of all calls")
    assert raw(channel, "ModelInfer", request().SerializeToString())[0]


def test_a_revoked_key_counts_no_more_on_an_open_channel_and_stream(channel: grpc.Channel, client: Any, tensors: Gatehouse) -> None:
    with admin(tensors) as asking:

        def until_it_counts_no_more() -> float:
            made = asking.post("/keys", json={"tenant": "acme", "models": ["*"]}).json()
            key = (("authorization", f"Bearer {made['secret']}"),)
            found: list[Any] = []
            client.start_stream(callback=lambda result, error: found.append(error), headers=dict(key))
            client.async_stream_infer("double", [given()[0]])
            until(lambda: found == [None], what="an answer")
            asking.post(f"/keys/{made['id']}/revoke").raise_for_status()
            revoked = time.monotonic()

            def refused() -> grpc.RpcError | None:
                said = raw(channel, "ModelInfer", request().SerializeToString(), key)
                return said if isinstance(said, grpc.RpcError) else None

            error = until(refused, what="the refusal")
            late = time.monotonic() - revoked
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            client.async_stream_infer("double", [given()[0]])
            until(lambda: len(found) == 2, what="the second answer")
            assert "UNAUTHENTICATED" in found[1].message()
            client.stop_stream()
            return late

        at_most(1.0, until_it_counts_no_more)


def test_a_stream_that_is_open_is_judged_as_a_reload_says(launch: Callable[..., Gatehouse], tmp_path: Path) -> None:
    made = settings(
        tmp_path / "state",
        tmp_path / "double.onnx",
        listen={"grpc": "127.0.0.1:0", "trusted_peers": ["127.0.0.1"]},
        network={"tenants": {"acme": ["10.0.0.0/8"]}},
    )
    gatehouse = launch(made).start()

    def reloaded(**parts: Any) -> None:
        before = gatehouse.metric("gatehouse_config_version")
        gatehouse.file.write_text(yaml.safe_dump({**made, **parts}))
        gatehouse.process.send_signal(1)  # type: ignore[union-attr]
        until(lambda: gatehouse.metric("gatehouse_config_version") > before, what="the reload")

    with triton.InferenceServerClient(address(gatehouse)) as client:
        found: list[Any] = []
        client.start_stream(callback=lambda result, error: found.append(error), headers={**BEARER, "x-forwarded-for": "10.1.2.3"})

        def asked() -> Any:
            before = len(found)
            client.async_stream_infer("double", [given()[0]])
            until(lambda: len(found) > before, what="an answer")
            return found[-1]

        assert asked() is None
        reloaded(listen={**made["listen"], "networks": ["10.0.0.0/8", "deny:127.0.0.1"]})
        assert "PERMISSION_DENIED" in asked().message()
        reloaded(listen={**made["listen"], "networks": ["10.0.0.0/8"]})
        assert asked() is None
        reloaded(listen={**made["listen"], "trusted_peers": []})
        assert "UNAUTHENTICATED" in asked().message(), "the address is no longer the one that the proxy forwards"


def test_tls_workers_reload_and_drain(launch: Callable[..., Gatehouse], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = authority.server()
    with empty_port() as port:  # kept until they listen there
        made = settings(
            tmp_path / "state",
            tmp_path / "double.onnx",
            listen={"grpc": f"127.0.0.1:{port}", "tls": {"cert": server.cert, "key": server.key}},
        )
        gatehouse = launch(made)
        gatehouse.arguments = ["--workers", "2"]
        gatehouse.start()
    credentials = grpc.ssl_channel_credentials(Path(authority.cert).read_bytes())
    failures: list[Any] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
                for _ in range(5):
                    if isinstance(outcome := raw(channel, "ModelInfer", request().SerializeToString()), grpc.RpcError):
                        failures.append(outcome)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        before = gatehouse.metric("gatehouse_config_version")
        changed = {**made, "models": [{**made["models"][0], "aliases": ["twice"]}]}
        gatehouse.file.write_text(yaml.safe_dump(changed))
        gatehouse.process.send_signal(1)  # type: ignore[union-attr]
        until(lambda: gatehouse.metric("gatehouse_config_version") > before, what="the reload")
    finally:
        stop.set()
    asking.join(60)
    assert failures == []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
        assert raw(plain, "ModelInfer", request().SerializeToString()).code() is grpc.StatusCode.UNAVAILABLE
    assert gatehouse.stop() == 0


def test_a_stream_at_a_worker_that_is_replaced_has_its_answers_and_is_opened_again(
    launch: Callable[..., Gatehouse], tmp_path: Path
) -> None:
    with empty_port() as port:  # kept until they listen there
        made = settings(tmp_path / "state", tmp_path / "double.onnx", listen={"grpc": f"127.0.0.1:{port}"})
        gatehouse = launch(made)
        gatehouse.arguments = ["--workers", "1"]
        gatehouse.start()
    found: list[tuple[Any, Any]] = []
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client, admin(gatehouse) as asking:
        client.start_stream(callback=lambda result, error: found.append((result, error)), headers=BEARER)
        client.async_stream_infer("double", [given()[0]])
        until(lambda: len(found) == 1, what="an answer")
        worker = asking.get("/workers").json()["items"][0]
        assert asking.post(f"/workers/{worker['id']}/replace", timeout=120).status_code == 200
        until(lambda: len(found) == 2, what="the end of the stream")
        assert found[0][1] is None and "UNAVAILABLE" in str(found[1][1]) and "Open it again" in found[1][1].message()
        until(lambda: not alive(worker["pid"]), what="the end of the worker")

        def answered() -> bool:  # the channel may have found the old worker's port closed, and tries again a second later
            client.stop_stream()
            before = len(found)
            client.start_stream(callback=lambda result, error: found.append((result, error)), headers=BEARER)
            client.async_stream_infer("double", [given()[0]])
            until(lambda: len(found) > before, what="what becomes of it")
            return found[-1][1] is None

        until(answered, what="an answer of the new worker")
        client.stop_stream()
    assert gatehouse.stop() == 0
