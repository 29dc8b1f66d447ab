"""Where model files are looked for: beside the configuration file, in the registry, in `model_dirs`, among the demo models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from engines.host.catalogue.scan import Place
from engines.host.catalogue.trust import keys_of
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec, ModelSignaturesSpec
from gateway.wire.model_signatures import Unsigned

DEMO_MODELS = Path(__file__).parents[3] / "engines" / "demo" / "artefacts"


def places(spec: ConfigSpec, base: Path) -> tuple[Place, ...]:
    """The directories of model files in the order in which they are searched. base: the configuration file's folder."""
    directories = (Place((base / directory).resolve(), "directory") for directory in spec.model_dirs)
    return (Place(registry(spec, base), "registry"), *directories, Place(DEMO_MODELS.resolve(), "bundled"))


def registry(spec: ConfigSpec, base: Path) -> Path:
    """Where uploaded models are: in the state directory, or in the directory that replicas share."""
    shared = spec.model_sharing.directory
    return Path(spec.state_dir).resolve() / "models" if shared is None else (base / shared).resolve()


def signatures(spec: ConfigSpec, base: Path) -> ModelSignaturesSpec:
    """The settings of models' signatures, with the keys' files as absolute paths."""
    found = spec.model_signatures
    return msgspec.structs.replace(found, keys=tuple(str((base / key).resolve()) for key in found.keys))


def _check_signatures(spec: ConfigSpec, base: Path) -> None:
    if spec.model_signatures.required and not spec.model_signatures.keys:
        raise ConfigError("is empty, and signatures are required: name the signers' public keys", path="model_signatures.keys")
    for index, key in enumerate(signatures(spec, base).keys):
        try:
            keys_of(ModelSignaturesSpec(keys=(key,)))
        except Unsigned as error:
            raise ConfigError(str(error), path=f"model_signatures.keys[{index}]") from None


def resolve(spec: ConfigSpec, base: Path) -> ConfigSpec:
    """The configuration with every engine's model as an absolute path. Raises ConfigError for what is missing."""
    shelves = places(spec, base)
    _check_signatures(spec, base)
    if spec.model_sharing.directory is not None and not shelves[0].root.is_dir():
        raise ConfigError(f"there is no directory {shelves[0].root}", path="model_sharing.directory")
    for index, shelf in enumerate(place for place in shelves if place.source == "directory"):
        if not shelf.root.is_dir():
            raise ConfigError(f"there is no directory {shelf.root}", path=f"model_dirs[{index}]")
    from_engines = []
    for index, engine in enumerate(spec.engines):
        if engine.foreign or engine.model is None:  # a command may name a model of a hub
            from_engines.append(engine)
            continue
        candidates = [base / engine.model, *(place.root / engine.model for place in shelves)]
        found = next((path for path in candidates if path.exists()), None)
        if found is None:
            raise ConfigError(f"engine {engine.name!r}: there is no model file {engine.model!r}", path=f"engines[{index}].model")
        from_engines.append(msgspec.structs.replace(engine, model=str(found.resolve())))
    return msgspec.structs.replace(spec, engines=tuple(from_engines))


def find(name: str, roots: Iterable[Path]) -> Path:
    """A model of the registry by its name, in the first of these folders that has it.

    An engine of the store may name nothing else: ConfigError also for a name that would lead out of the folders.
    """
    parts = name.split("/")
    outside = name.startswith(("/", "~")) or "\\" in name or "\0" in name or any(not part or part.startswith(".") for part in parts[:-1])
    if outside or parts[-1].startswith(".") or not any(parts):
        raise ConfigError("names a path; an engine of the store takes a model of the registry by its name", path="model")
    for place in roots:
        root, found = place.resolve(), (place / name).resolve()
        if found.exists() and found.is_relative_to(root) and found != root:
            return found
    raise ConfigError(f"there is no model {name[:128]!r} in the registry of this machine", path="model")
