"""What goes before a text that is embedded: models such as E5 and BGE expect `query: ` before questions and `passage: ` before documents.

A request names one by `prompt_name`, as Text Embeddings Inference has it, or by its use in `input_type`, as Cohere's, Voyage's and
NVIDIA's APIs have it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from engines.onnx.folder import ModelFolder
from engines.onnx.options import OnnxOptions
from engines.sidecar.loading import LoadError
from engines.sidecar.shell import ApiError

QUERY: Final = ("query", "search_query", "web_search_query")
DOCUMENT: Final = ("document", "passage", "search_document", "corpus", "text")
USES: Final = {
    "query": QUERY, "search_query": QUERY, "document": DOCUMENT, "passage": DOCUMENT, "search_document": DOCUMENT,
    "classification": ("classification", "Classification"), "clustering": ("clustering", "Clustering"),
}  # fmt: skip
"""`input_type` of a request -> the names under which models have the prompt for it."""
EMPTY: Final = frozenset({"document", "passage", "search_document"})
"""Uses that need no prompt: many models embed a document as it is."""


class Prompts(NamedTuple):
    """A model's prompts by name, and the name that counts where a request has none."""

    texts: dict[str, str]
    default: str | None

    def choose(self, name: str | None, use: str | None, *, texts: bool) -> str:
        """The prompt for a request. texts: its inputs are texts, and not tokens. Raises ApiError (400)."""
        if name is not None and use is not None:
            raise ApiError(400, "prompt_name: a request has it or input_type, not both", param="prompt_name")
        if name is None and use is None:
            return self.texts[self.default] if texts and self.default is not None else ""
        found = self._named(name) if name is not None else self._used(str(use))
        if found and not texts:
            param = "input_type" if name is None else "prompt_name"
            raise ApiError(400, f"{param}: a prompt goes before texts, and the input has tokens", param=param)
        return found

    def _named(self, name: str) -> str:
        if name not in self.texts:
            known = f"it has {', '.join(sorted(self.texts))}" if self.texts else "it has none"
            raise ApiError(400, f"prompt_name: the model has no prompt {name[:64]!r}; {known}", param="prompt_name")
        return self.texts[name]

    def _used(self, use: str) -> str:
        if use not in USES:
            raise ApiError(400, f"input_type: expected one of {', '.join(USES)}, received {use[:64]!r}", param="input_type")
        found = next((self.texts[name] for name in USES[use] if name in self.texts), None)
        if found is None and self.texts and use not in EMPTY:
            known = ", ".join(sorted(self.texts))
            raise ApiError(400, f"input_type: the model has no prompt for {use}; it has {known}", param="input_type")
        return found or ""  # a model without prompts embeds all texts alike


NONE: Final = Prompts({}, None)


def prompts_of(options: OnnxOptions, folder: ModelFolder) -> Prompts:
    """The options' prompts, else the folder's. Raises LoadError for a default that is not among them."""
    texts = options.prompts or folder.prompts
    default = options.default_prompt or (None if options.prompts else folder.default_prompt)
    if default is not None and default not in texts:
        known = f"there are {', '.join(sorted(texts))}" if texts else "there are none"
        raise LoadError("invalid_options", f"options.default_prompt: {default[:64]!r} is not among the prompts; {known}")
    return Prompts(dict(texts), default)
