"""The file of a machine that joins: its engines, and nothing that is the gateway's to decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from gateway.config import environment, validate
from gateway.config.convert import Converter, PluginSchemas
from gateway.config.load import Loaded, read_text
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, EngineSpec, LifecycleSpec, Spec
from gateway.core.telemetry_specs import TelemetrySpec
from gateway.wire import yamltree

GATEWAYS = ("scale", "lifecycle", "clearance", "cost")
"""Settings of an engine that only the gateway's configuration can have."""


class MachineFile(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """state_dir: also where the machine's key is."""

    version: Literal[1]
    engines: Annotated[tuple[EngineSpec, ...], Meta(min_length=1, max_length=64)]
    state_dir: Annotated[str, Meta(min_length=1)] = "./var"
    model_dirs: tuple[str, ...] = ()
    telemetry: TelemetrySpec = TelemetrySpec()


def load_machine(path: Path, environ: Mapping[str, str], schemas: PluginSchemas) -> Loaded:
    """Reads and checks the file, as the settings that a supervisor needs. Raises ConfigError."""
    text = read_text(path)
    root = yamltree.read(text, file=str(path))
    environment.override(root, environ)
    converter = Converter(environ, path.parent, schemas)
    found: MachineFile = converter.convert(root, MachineFile)

    def error(where: str, message: str) -> ConfigError:
        return converter.error(where, message, root.origin)

    names: set[str] = set()
    for index, engine in enumerate(found.engines):
        where = f"engines[{index}]"
        validate.engine(engine, where, error)
        if engine.runtime == "external":
            raise error(f"{where}.runtime", "is external, and a machine brings engines that it starts itself")
        for name in GATEWAYS:
            if getattr(engine, name) not in (None, LifecycleSpec()):
                raise error(f"{where}.{name}", "is the gateway's to say, in its own configuration")
        if engine.name in names:
            raise error(f"{where}.name", f"{engine.name!r} is the name of two engines")
        names.add(engine.name)
    spec = ConfigSpec(version=1, state_dir=found.state_dir, engines=found.engines, model_dirs=found.model_dirs, telemetry=found.telemetry)
    return Loaded(spec, text, str(path), converter.places)
