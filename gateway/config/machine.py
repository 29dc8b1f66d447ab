"""The file of a machine that joins: its engines, and nothing that is the gateway's to decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from gateway.config import environment, validate
from gateway.config.convert import Converter, PluginSchemas
from gateway.config.load import Loaded, read_text
from gateway.core.errors import ConfigError
from gateway.core.joining import MAX_ENGINES
from gateway.core.specs import ConfigSpec, EngineSpec, LifecycleSpec, ModelSignaturesSpec, Spec
from gateway.core.specs.telemetry import TelemetrySpec
from gateway.wire import yamltree

PLACEABLE = ("llama.cpp", "onnx")
"""Runtimes that a gateway may have a machine start: never a command, and no plug-in's, whose options nobody here knows."""
GATEWAYS = ("scale", "lifecycle", "clearance", "cost")
"""Settings of an engine that only the gateway's configuration can have."""


class AcceptsSpec(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a machine lets gateways start on it. memory_bytes: of main memory for all of these engines. disk_bytes: for the model files that
    gateways send. engines: how many at once. devices: `cpu`, and GPUs by number. runtimes: of `PLACEABLE`."""

    memory_bytes: Annotated[int, Meta(ge=1024 * 1024, le=1 << 50)]
    disk_bytes: Annotated[int, Meta(ge=1024 * 1024, le=1 << 50)]
    engines: Annotated[int, Meta(ge=1, le=32)] = 8
    devices: Annotated[tuple[Annotated[str, Meta(pattern=r"^(cpu|cuda:\d{1,2})$")], ...], Meta(min_length=1, max_length=17)] = ("cpu",)
    runtimes: Annotated[tuple[Literal["llama.cpp", "onnx"], ...], Meta(min_length=1)] = PLACEABLE  # type: ignore[assignment]


class Found(NamedTuple):
    """accepts: None: gateways start nothing there."""

    loaded: Loaded
    accepts: AcceptsSpec | None


class MachineFile(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """state_dir: also where the machine's key is, and the model files that gateways send."""

    version: Literal[1]
    engines: Annotated[tuple[EngineSpec, ...], Meta(max_length=MAX_ENGINES)] = ()
    accepts: AcceptsSpec | None = None
    state_dir: Annotated[str, Meta(min_length=1)] = "./var"
    model_dirs: tuple[str, ...] = ()
    model_signatures: ModelSignaturesSpec = ModelSignaturesSpec()
    telemetry: TelemetrySpec = TelemetrySpec()


def load_machine(path: Path, environ: Mapping[str, str], schemas: PluginSchemas) -> Found:
    """Reads and checks the file, as the settings that a supervisor needs. Raises ConfigError."""
    text = read_text(path)
    root = yamltree.read(text, file=str(path))
    environment.override(root, environ)
    converter = Converter(environ, path.parent, schemas)
    found: MachineFile = converter.convert(root, MachineFile)

    def error(where: str, message: str) -> ConfigError:
        return converter.error(where, message, root.origin)

    if not found.engines and found.accepts is None:
        raise error("engines", "is empty: name engines, or what gateways may start here (accepts)")
    if found.accepts is not None and len(found.engines) + found.accepts.engines > MAX_ENGINES:
        raise error("accepts.engines", f"is {found.accepts.engines}, together with the file's engines more than {MAX_ENGINES}; write less")
    names: set[str] = set()
    for index, engine in enumerate(found.engines):
        where = f"engines[{index}]"
        validate.engine(engine, where, error)
        if engine.runtime == "external":
            raise error(f"{where}.runtime", "is external, and a machine brings engines that it starts itself")
        for name in GATEWAYS:
            if getattr(engine, name) not in (None, LifecycleSpec()):
                raise error(f"{where}.{name}", "belongs in the gateway's own configuration")
        if engine.api_key is not None:
            raise error(f"{where}.api_key", "is what gateways would have to send: they ask a machine's engines without keys; remove it")
        if engine.name in names:
            raise error(f"{where}.name", f"{engine.name!r} is the name of two engines")
        names.add(engine.name)
    spec = ConfigSpec(
        version=1, state_dir=found.state_dir, engines=found.engines, model_dirs=found.model_dirs,
        model_signatures=found.model_signatures, telemetry=found.telemetry,
    )  # fmt: skip
    return Found(Loaded(spec, text, str(path), converter.places, converter.hidden), found.accepts)
