"""The process that looks into models: what it finds, and that a model which ends or holds it up costs nothing but its own answer."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from engines.facts import Facts
from engines.host.catalogue.checksums import Stopped
from engines.host.catalogue.inspection import Inspection
from engines.runtimes import RUNTIMES
from loadtests.llamacpp.random_gguf import Shape, metadata, write
from tests.unit.engines.test_confinement import landlock

LLAMA, ONNX = RUNTIMES["llama.cpp"], RUNTIMES["onnx"]
SHAPE = Shape(layers=1, width=32, heads=2, kv_heads=1, feed_forward=32)
ANSWERS = """
import json, sys, time, os
for line in sys.stdin:
    path = json.loads(line)["path"]
    if "die" in path: os._exit(7)
    if "hang" in path: time.sleep(60)
    if "noise" in path: print("not json", flush=True)
    elif "flood" in path: sys.stdout.write("x" * 3_000_000); sys.stdout.flush()
    else: print(json.dumps({"title": os.path.basename(path) + str(os.getpid())}), flush=True)
"""


@pytest.fixture
def inspection(tmp_path: Path) -> Iterator[Inspection]:
    with Inspection(lambda: True, [tmp_path]) as found:
        yield found


def graph(path: Path, external: str | None = None) -> Path:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    if external is not None:
        weight.ClearField("float_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=external)
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(helper.make_model(helper.make_graph([], "g", [ids], [logits], [weight])).SerializeToString())
    return path


def test_a_gguf_file_says_what_it_is(tmp_path: Path, inspection: Inspection) -> None:
    found = inspection.look(write(tmp_path / "m.gguf", SHAPE), LLAMA)
    assert (found.problem, found.architecture, found.quantisation, found.layers, found.template, found.task) == (
        None, "llama", "Q8_0", 1, True, "chat",
    )  # fmt: skip
    assert found.parameters == SHAPE.parameters + 96


def test_the_parts_of_a_split_model(tmp_path: Path, inspection: Inspection) -> None:
    first = write(tmp_path / "a.gguf", SHAPE, values={**metadata(SHAPE), "split.no": 0, "split.count": 2})
    second = write(tmp_path / "b.gguf", SHAPE, values={"split.no": 1, "split.count": 2})
    absurd = write(tmp_path / "c.gguf", SHAPE, values={"split.no": 5, "split.count": 2})
    assert (inspection.look(first, LLAMA).part, inspection.look(first, LLAMA).parts) == (1, 2)
    rest = inspection.look(second, LLAMA)
    assert (rest.problem, rest.part, rest.parts, rest.parameters) == (None, 2, 2, SHAPE.parameters + 96)
    assert "split.no" in (inspection.look(absurd, LLAMA).problem or "")


def test_an_onnx_folder_says_what_it_is(tmp_path: Path, inspection: Inspection) -> None:
    graph(tmp_path / "m" / "onnx" / "model.onnx")
    assert inspection.look(tmp_path / "m", ONNX).task == "tensor"
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    (tmp_path / "m" / "config.json").write_text(json.dumps({"id2label": {"0": "no", "1": "yes"}, "max_position_embeddings": 64}))
    found = inspection.look(tmp_path / "m", ONNX)
    assert (found.task, found.labels, found.context, found.graph) == ("classification", 2, 64, "onnx/model.onnx")
    assert found.opsets == {"ai.onnx": onnx.defs.onnx_opset_version()} and found.inputs[0].shape == ("batch", "length")


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/passwd", "absent.bin"])
def test_weights_outside_the_folder_are_a_problem(tmp_path: Path, inspection: Inspection, location: str) -> None:
    found = inspection.look(graph(tmp_path / "m" / "model.onnx", external=location), ONNX)
    assert "weights" in (found.problem or "") and found.architecture is None


def test_broken_files_have_a_reason_and_no_path(tmp_path: Path, inspection: Inspection) -> None:
    whole = write(tmp_path / "m.gguf", SHAPE).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.onnx").write_bytes(graph(tmp_path / "w.onnx").read_bytes()[:40])
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "model.onnx").write_text("x")
    (tmp_path / "deep" / "config.json").write_text("[" * 100_000)
    for name in ("cut.gguf", "cut.onnx", "empty.gguf", "deep", "absent.gguf"):
        problem = inspection.look(tmp_path / name, LLAMA if name.endswith("gguf") else ONNX).problem
        assert problem and str(tmp_path) not in problem, (name, problem)
    assert "truncated" in (inspection.look(tmp_path / "cut.gguf", LLAMA).problem or "")


def test_a_model_that_ends_the_reader_is_the_only_one_with_a_problem() -> None:
    with Inspection(lambda: True, (), (sys.executable, "-c", ANSWERS), seconds=60.0) as scripted:
        first, second = scripted.look(Path("/a"), ONNX), scripted.look(Path("/a"), ONNX)
        assert first == second  # by one process
        for name in ("/die", "/noise", "/flood"):
            assert "ended" in (scripted.look(Path(name), ONNX).problem or "")
            assert scripted.look(Path("/b"), ONNX).problem is None
        assert scripted.look(Path("/a"), ONNX) != first  # by another one


def test_a_model_that_holds_the_reader_up_is_given_up() -> None:
    with Inspection(lambda: True, (), (sys.executable, "-c", ANSWERS), seconds=0.2) as scripted:
        assert "0 s" in (scripted.look(Path("/hang"), ONNX).problem or "")


def test_nobody_waits_for_it_when_the_process_ends() -> None:
    wanted = [True, True]
    with Inspection(lambda: bool(wanted) and wanted.pop(), (), (sys.executable, "-c", ANSWERS)) as scripted, pytest.raises(Stopped):
        scripted.look(Path("/hang"), ONNX)


def test_a_header_that_asks_for_much_memory_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "greedy.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 20))
        for number in range(20):  # a sparse file: texts of 16 MiB
            file.write(struct.pack("<Q3sIQ", 3, b"k%02d" % number, 8, 16 * 1024 * 1024))
            file.seek(16 * 1024 * 1024, 1)
        file.truncate()
    run = "import sys; from engines.host.catalogue import inspector as i; i.restrain(sys.argv[1:], 160 << 20); i.main()"
    with Inspection(lambda: True, [tmp_path], (sys.executable, "-c", run)) as inspection:
        assert "MemoryError" in (inspection.look(path, LLAMA).problem or "")
        assert inspection.look(write(tmp_path / "m.gguf", SHAPE), LLAMA).problem is None


def test_nothing_outside_of_its_places_can_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    outside = write(tmp_path / "m.gguf", SHAPE)
    with Inspection(lambda: True, [tmp_path / "place"]) as inspection:
        problem = inspection.look(outside, LLAMA).problem
    assert problem == ("cannot be read: Permission denied" if landlock() else None)


def test_facts_travel_whole() -> None:
    assert Facts(problem="x").shown()["opsets"] is None
