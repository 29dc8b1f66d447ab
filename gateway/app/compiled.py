"""The compiled hot path: the modules of MODULES as machine code by mypyc, if scripts/compile.py has built them from these very sources.

The sources are the truth. A build is used only as a whole, and only while every file it was made from (the modules and what they import)
has the SHA-256 in the build's manifest. Otherwise the sources run, slower but the same. So a build cannot go stale, and nothing depends on
there being one. GATEHOUSE_COMPILED=0 switches it off (1, the default, on); GATEHOUSE_COMPILED=DIRECTORY looks for the build there.

Compiled code differs from the sources in a few ways; the tests therefore run on both (scripts/test):
- a slice of bytes whose start lies behind its end raises SystemError;
- `raise ... from None` keeps the context (set `__suppress_context__` where a traceback could show a secret);
- the values of Finals and the targets of calls among these modules are fixed: replacing a module's name has no effect;
- the bounds of a slice of a memoryview, or of anything else but a list, tuple, text or bytes, are evaluated twice: no call with an effect
  stands there;
- a value of type Any is checked when it is assigned to a name of another type, also by `:=`; a wrong one raises TypeError;
- objects have no `__dict__`.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
MODULES = (
    "gateway.core.values",
    "gateway.core.decided",
    "gateway.core.isolation",
    "gateway.core.pauses",
    "gateway.core.prices",
    "gateway.core.snapshot",
    "gateway.core.waiting",
    "gateway.core.wire",
    "gateway.audit.batch",
    "gateway.audit.broker",
    "gateway.audit.chain",
    "gateway.audit.crypto",
    "gateway.audit.encode",
    "gateway.audit.fastpath",
    "gateway.audit.fault",
    "gateway.audit.job_thread",
    "gateway.audit.journal",
    "gateway.audit.keyring",
    "gateway.audit.reliance",
    "gateway.audit.sealing",
    "gateway.audit.sinks.file",
    "gateway.audit.writer",
    "gateway.caches.keys",
    "gateway.identity.api_key",
    "gateway.identity.chain",
    "gateway.identity.networked",
    "gateway.limits.account",
    "gateway.limits.bucket",
    "gateway.limits.estimates",
    "gateway.limits.exceeded",
    "gateway.limits.headers",
    "gateway.limits.leased",
    "gateway.limits.local",
    "gateway.limits.meter",
    "gateway.limits.redis.advance",
    "gateway.limits.redis.away",
    "gateway.limits.redis.calls",
    "gateway.limits.redis.hand",
    "gateway.limits.redis.held",
    "gateway.limits.redis.limiter",
    "gateway.limits.redis.meters",
    "gateway.limits.redis.pot",
    "gateway.limits.redis.refusals",
    "gateway.limits.redis.shared",
    "gateway.limits.registry",
    "gateway.limits.share",
    "gateway.limits.shares",
    "gateway.limits.stock",
    "gateway.limits.ticker",
    "gateway.pipeline.approvals",
    "gateway.pipeline.attempt",
    "gateway.pipeline.cached",
    "gateway.pipeline.costs",
    "gateway.pipeline.exchange",
    "gateway.pipeline.flights",
    "gateway.pipeline.guarded",
    "gateway.pipeline.held",
    "gateway.pipeline.inspect",
    "gateway.pipeline.memory",
    "gateway.pipeline.named",
    "gateway.pipeline.nested_stream",
    "gateway.pipeline.phases",
    "gateway.pipeline.pipeline",
    "gateway.pipeline.plane",
    "gateway.pipeline.queueing",
    "gateway.pipeline.racing",
    "gateway.pipeline.stream",
    "gateway.pipeline.tools",
    "gateway.routing.admission",
    "gateway.routing.endpoints",
    "gateway.routing.full",
    "gateway.routing.keys",
    "gateway.routing.retry",
    "gateway.routing.router",
    "gateway.routing.selectors",
    "gateway.routing.unavailable",
    "gateway.server.head",
    "gateway.server.account",
    "gateway.server.closing",
    "gateway.server.protocol",
    "gateway.server.reading",
    "gateway.server.refusals",
    "gateway.server.request",
    "gateway.server.states",
    "gateway.telemetry.detail",
    "gateway.telemetry.metrics",
    "gateway.telemetry.tracing",
    "gateway.transport.assignment",
    "gateway.transport.http1",
    "gateway.transport.pool",
    "gateway.transport.repeated",
    *(f"gateway.wire.{path.parent.name}.api" for path in sorted((ROOT / "gateway" / "wire").glob("*/api.py"))),
    *(f"gateway.wire.anthropic.{name}" for name in ("answers", "chat", "chat_stream", "passages", "stream", "structure")),
    "gateway.wire.bodies",
    "gateway.wire.chunks",
    "gateway.wire.json_api",
    "gateway.wire.oip.frames",
    "gateway.wire.oip.tensors",
    "gateway.wire.openai.answers",
    "gateway.wire.openai.engines",
    "gateway.wire.openai.fields",
    "gateway.wire.openai.generating",
    "gateway.wire.openai.media",
    "gateway.wire.openai.passages",
    "gateway.wire.openai.stream",
    "gateway.wire.openai.structure",
    "gateway.wire.openai.tokenizing",
    "gateway.wire.openai.transcribing",
    "gateway.wire.openai.usage",
    "gateway.wire.passages",
    *(f"gateway.wire.responses.{name}" for name in ("answers", "chat", "chat_stream", "events", "passages", "stream", "structure")),
    "gateway.wire.scan",
    "gateway.wire.shapes",
    "gateway.wire.sse",
    "gateway.wire.table",
    "gateway.wire.unique",
    "policies.facts",
    "policies.guardrails.folding",
    "policies.guardrails.injection.decoding",
    "policies.guardrails.phrase_stream",
    "policies.guardrails.phrases",
    "policies.guardrails.prefilter",
    *(
        f"policies.guardrails.pii.{name}"
        for name in ("birth", "card", "crypto", "email", "iban", "national", "network", "passport", "phone", "plate", "ssn")
    ),
    *(
        f"policies.guardrails.recognition.{name}"
        for name in ("around", "automaton", "checks", "finder", "leads", "normal", "stream", "tail", "words")
    ),
    "policies.guardrails.secrets.context",
    "policies.guardrails.secrets.randomness",
    "policies.limits",
    "policies.loops",
    "policies.patterns",
    "policies.permissions",
    "policies.rbac",
    "policies.roles",
)
"""What a request with a key, limits and guardrails runs through. Modules that define msgspec Structs cannot be compiled, and an interpreted
class must not inherit from a compiled one: compiled code would not see what it overrides."""
GROUP = "gatehouse"
"""mypyc's name for the library that all modules share: it is imported as `gatehouse__mypyc`."""
VARIABLE = "GATEHOUSE_COMPILED"
MANIFEST = "manifest.json"
FOLDER = "gatehouse_compiled"


class CompiledFinder(MetaPathFinder):
    """Finds the compiled modules of one build, and their shared library, before Python finds their sources."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._names = frozenset((*MODULES, f"{GROUP}__mypyc"))

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        file = extension(self._directory, name)
        return spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))


def extension(directory: Path, name: str) -> Path:
    """Where a build keeps a module."""
    return directory.joinpath(*name.split(".")).with_suffix(EXTENSION_SUFFIXES[0])


def place(environ: dict[str, str] | os._Environ[str] = os.environ) -> Path | None:
    """The directory in which a build is looked for, or None if that is switched off."""
    given = environ.get(VARIABLE, "")
    if given == "0":
        return None
    if given not in ("", "1"):
        return Path(given)
    beside = ROOT / FOLDER  # as a wheel has it, wherever that was installed
    return beside if beside.is_dir() else Path(sysconfig.get_path("platlib")) / FOLDER


def fault(directory: Path, root: Path = ROOT) -> str | None:
    """Why the build in a directory cannot be used for the sources below `root`, or None."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        sources: dict[str, str] = manifest["sources"]
        if manifest["suffix"] != EXTENSION_SUFFIXES[0] or manifest["modules"] != list(MODULES):
            return "the build is for another Python or for other modules"
        for name, digest in sources.items():
            if sha256((root / name).read_bytes()).hexdigest() != digest:
                return f"{name} has changed since the build"
    except FileNotFoundError as error:
        return f"there is no {Path(error.filename).name}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"the build cannot be read: {error}"
    return None


def activate() -> str | None:
    """Puts the build in front of the sources, before any of its modules is imported. Returns why not, or None."""
    directory = place()
    if directory is None:
        return f"switched off by {VARIABLE}"
    if loaded := next((name for name in MODULES if name in sys.modules), None):
        return f"{loaded} is imported already"
    found = fault(directory)
    if found is None:
        sys.meta_path.insert(0, CompiledFinder(directory))
    return found


def active() -> bool:
    """Whether this process runs the compiled hot path."""
    module = sys.modules.get(MODULES[0])
    return module is not None and module.__spec__ is not None and isinstance(module.__spec__.loader, ExtensionFileLoader)
