"""Special tokens, whether they are added, and chat templates, as llama.cpp's gguf package reads them (SpecialVocab) from tokenizer.json,
tokenizer_config.json and config.json."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from engines.convert.folder import Folder, Refused
from engines.convert.gguf import Writer

KINDS: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
IDS: Final = MappingProxyType(
    {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask", "eot": "eot", "eom": "eom"}
)
"""Kind -> its name in a key; GGUF spells it `seperator`."""
ADDED: Final = ("bos", "eos", "sep")


class Special:
    """settings: tokenizer_config.json, changed as reading it goes on."""

    def __init__(self, folder: Folder, config: dict[str, Any], tokenizer: dict[str, Any] | None, vocabulary: int | None) -> None:
        self.kinds: tuple[str, ...] = KINDS
        self.ids: dict[str, int] = {}
        self.adds: dict[str, bool] = {}
        self.templates: Any = None
        self._vocabulary = vocabulary
        settings = folder.json("tokenizer_config.json")
        if tokenizer is not None:
            self._processed(tokenizer, settings or {}, known=settings is not None)
        if settings is not None:
            self._configured(folder, settings, [] if tokenizer is None else listed(tokenizer, "added_tokens"))
        for kind in self.kinds:
            self._set(kind, config.get(f"{kind}_token_id"))

    def write(self, to: Writer) -> None:
        for kind, id in self.ids.items():
            if kind in IDS:
                to.whole(f"tokenizer.ggml.{IDS[kind]}_token_id", id)
        for kind, added in self.adds.items():
            if kind in ADDED:
                to.flag(f"tokenizer.ggml.add_{kind}_token", added)
        if isinstance(self.templates, str):
            to.text("tokenizer.chat_template", self.templates)
        elif self.templates is not None:
            self._named(to, self.templates)

    def _named(self, to: Writer, templates: list[Any]) -> None:
        names = []
        for one in templates:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not isinstance(one.get("template"), str):
                raise Refused("a chat template has no name or no text")
            name = "".join(c if c.isascii() and c.isalnum() else "_" for c in one["name"])
            if name == "default":
                to.text("tokenizer.chat_template", one["template"])
            elif name:
                to.text(f"tokenizer.chat_template.{name}", one["template"])
                names.append(name.encode())
        if names:
            to.texts("tokenizer.chat_templates", sorted(set(names)))

    def _set(self, kind: str, id: Any) -> None:
        if type(id) is not int or kind in self.ids:
            return
        if id < 0 or id >= 1 << 31:
            raise Refused(f"the token {kind} has the number {id}")
        if self._vocabulary is None or id < self._vocabulary:
            self.ids[kind] = id

    def _processed(self, tokenizer: dict[str, Any], settings: dict[str, Any], *, known: bool) -> None:
        """The post-processor says what is put before and behind a text. known: there is a tokenizer_config.json, which it then corrects."""
        processor = tokenizer.get("post_processor")
        if not isinstance(processor, dict):
            return
        if known:
            for first, other in (("bos", "cls"), ("eos", "sep")):
                if not settings.get(f"{first}_token") and settings.get(f"{other}_token"):
                    settings[f"{first}_token"] = settings[f"{other}_token"]
        for one in processor.get("processors", [processor]) if isinstance(processor.get("processors", []), list) else []:
            kind = one.get("type") if isinstance(one, dict) else None
            if kind == "ByteLevel":
                self.adds.setdefault("bos", False)
                self.adds.setdefault("eos", False)
            elif kind == "TemplateProcessing":
                self._template(one, settings, known)
            else:
                raise Refused(
                    f"tokenizer.json has a post-processor of the kind {str(kind)[:64]!r}; ByteLevel and TemplateProcessing are known"
                )

    def _template(self, processor: dict[str, Any], settings: dict[str, Any], known: bool) -> None:
        single, pair = listed(processor, "single"), listed(processor, "pair")
        bos, eos, cls, sep = (settings.get(f"{kind}_token") if known else None for kind in ("bos", "eos", "cls", "sep"))
        first = last = None
        if len(single) > 1:
            if first := _named_token(single[0]):
                if not known:
                    bos = first
                elif first not in (bos, cls):
                    if not bos:
                        settings["bos_token"] = bos = first
                    if not cls:
                        settings["cls_token"] = cls = first
                self.adds["bos"] = first in (bos, cls)
            if last := _named_token(single[-1]):
                if not known:
                    eos = last
                elif last != eos:
                    self._moved(settings, eos)
                    settings["eos_token"] = eos = last
                self.adds["eos"] = last == eos
        if pair:
            self._pair(pair, first, last, (sep, eos), settings, known)

    def _moved(self, settings: dict[str, Any], eos: Any) -> None:
        """The token that ends a text is another one than tokenizer_config.json has: that one ends a turn."""
        for kind in ("eot", "eom"):
            if kind not in self.kinds:
                self.kinds = (*self.kinds, kind)
                settings[f"{kind}_token"] = eos
                return

    def _pair(self, pair: list[Any], first: Any, last: Any, ends: tuple[Any, Any], settings: dict[str, Any], known: bool) -> None:
        begin = 1 if first and _named_token(pair[0]) == first else 0
        stop = -1 if last and _named_token(pair[-1]) == last else None
        inner = pair[begin:stop]
        if len(inner) < 3 or _sequence(inner[0]) != "A" or _sequence(inner[-1]) != "B":
            return
        between = inner[1:-1]
        adds = bool(_named_token(between[0]) in ends and _named_token(between[0]) and not last)
        adds = adds or bool(len(between) == 2 and _named_token(between[1]) and _named_token(between[1]) in ends)
        self.adds["sep"] = adds
        if adds and not ends[0] and known:
            settings["sep_token"] = ends[1]

    def _configured(self, folder: Folder, settings: dict[str, Any], added: list[Any]) -> None:
        template: Any = folder.text("chat_template.jinja")
        if template is None and (other := folder.json("chat_template.json")) is not None:
            template = other.get("chat_template")
        template = settings.get("chat_template", template)
        if template is None or isinstance(template, str | list):
            self.templates = template
        for kind in self.kinds:
            if isinstance(adds := settings.get(f"add_{kind}_token"), bool):
                self.adds.setdefault(kind, adds)
            content = content_of(settings.get(f"{kind}_token"))
            if content is not None:
                self._set(kind, next((one.get("id") for one in added if isinstance(one, dict) and one.get("content") == content), None))


def content_of(token: Any) -> str | None:
    """The text of a token, which is given as such or as an object."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None


def listed(within: dict[str, Any], key: str) -> list[Any]:
    found = within.get(key)
    return found if isinstance(found, list) else []


def _named_token(part: Any) -> Any:
    return _inner(part, "SpecialToken")


def _sequence(part: Any) -> Any:
    return _inner(part, "Sequence")


def _inner(part: Any, kind: str) -> Any:
    inner = part.get(kind) if isinstance(part, dict) else None
    return inner.get("id") if isinstance(inner, dict) else None
