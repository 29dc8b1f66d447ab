"""Presidio's analyzer behind HTTP, for the guardrail `http`: its own recognisers of patterns over a blank pipeline.

    python -m venv /tmp/beside && /tmp/beside/bin/pip install presidio-analyzer
    /tmp/beside/bin/python -m loadtests.guardrails.presidio_server [--port 5002]

It reads questions with the analyzer's own class and answers as its container does. Nothing here is a dependency of the gateway.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import spacy
from presidio_analyzer import AnalyzerEngine, AnalyzerRequest
from presidio_analyzer.nlp_engine import SpacyNlpEngine


class Blank(SpacyNlpEngine):
    """Tokens only: language models cannot be had everywhere."""

    def load(self) -> None:
        self.nlp = {"en": spacy.blank("en")}


def handler(engine: AnalyzerEngine) -> type[BaseHTTPRequestHandler]:
    class Analyzer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = AnalyzerRequest(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            found = engine.analyze(text=asked.text, language=asked.language, entities=asked.entities, score_threshold=asked.score_threshold)
            self.answer(200 if self.path == "/analyze" else 404, [one.to_dict() for one in found])

        def answer(self, status: int, document: Any) -> None:
            body = json.dumps(document, default=str).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: texts stay out of logs."""

    return Analyzer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=5002)
    port = parser.parse_args().port
    engine = AnalyzerEngine(nlp_engine=Blank(models=[{"lang_code": "en", "model_name": "blank"}]), supported_languages=["en"])
    print(f"listening on 127.0.0.1:{port}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), handler(engine)).serve_forever()


if __name__ == "__main__":
    main()
