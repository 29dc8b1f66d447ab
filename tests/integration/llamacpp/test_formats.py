"""Each format's grammar of required calls, by llama.cpp itself: a model with random weights follows it to calls that are read."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from engines.chat.formats.base import Choice, Tool
from engines.chat.formats.table import BY_NAME
from engines.chat.output import Dialect, OutputParser
from engines.chat.sampling import SamplingParams
from engines.chat.tools import call_grammar
from engines.llamacpp.native import Batch, Context, Model, NativeLog
from engines.llamacpp.sampling import Sampler

CITY = {"type": "string", "enum": ["Oslo", "Rome"]}
SCHEMA = {"type": "object", "properties": {"city": CITY, "metric": {"type": "boolean"}}, "required": ["city", "metric"]}


@pytest.fixture(scope="module")
def engine(models: Path) -> Iterator[tuple[Model, Context]]:
    log = NativeLog()
    model = Model(str(models / "tiny.gguf"), log, gpu_layers=0, use_mmap=True, use_mlock=False)
    context = Context(model, log, cells=2048, sequences=1, batch=64, micro_batch=64, threads=1, threads_batch=1)
    yield model, context
    context.close()
    model.close()


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_required_call_is_written_and_read(name: str, engine: tuple[Model, Context]) -> None:
    model, context = engine
    form = BY_NAME[name]
    grammar = call_grammar(form, Choice((Tool("weather", "", SCHEMA),), True), parallel=False)
    sampler = Sampler(model, SamplingParams(grammar=grammar, seed=random.Random(name).randrange(2**31)), [])
    batch, text, token, position = Batch(8), b"", max(model.bos, 0), 0
    context.clear()
    while position < 600:
        batch.clear()
        at = batch.add_one(0, position, token)
        assert context.decode(batch) == 0
        assert numpy.isfinite(context.logits(at)).all()
        token, position = sampler.sample(context, at), position + 1
        if model.is_end(token):
            break
        text += model.piece(token)
    sampler.close()
    assert model.is_end(token), text
    parser = OutputParser(Dialect(form, {"weather": SCHEMA}))
    parts = [part for char in text.decode() for part in parser.feed(char)] + parser.finish()
    assert [part.name for part in parts if part.kind == "call"] == ["weather"], text
    arguments = json.loads("".join(part.text for part in parts if part.kind == "arguments"))
    assert arguments["city"] in CITY["enum"] and isinstance(arguments["metric"], bool)
    assert not "".join(part.text for part in parts if part.kind == "content").strip()
