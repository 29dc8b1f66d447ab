"""A configuration as people write it: what is read, and what each mistake is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import field

from gateway.config.convert import MANY, NO_PLUGINS, Converter, PluginSchemas
from gateway.config.load import describe, load, parse
from gateway.core.errors import ConfigError
from gateway.core.secret import MASK, Secret
from gateway.core.specs import ConfigSpec, PoolMemberSpec, Spec
from gateway.wire import yamltree

KEY = "k" * 40

FULL = """\
version: 1
listen: {data: "127.0.0.1:8080", admin: 127.0.0.1:8081, max_body_bytes: 8MiB}
state_dir: ./var
store: {url: "sqlite"}
redis: null
engines:
  - {name: chat-a, runtime: llama.cpp, model: demo-chat.gguf, device: cpu, slots: 8, context: 2048}
  - {name: chat-b, runtime: llama.cpp, model: demo-chat.gguf, device: "cuda:0", fallback: cpu}
  - {name: embed, runtime: onnx, model: demo-embed/, device: cpu, batching: {max_batch: 32, max_delay_ms: 2}}
  - {name: big, runtime: external, url: "http://10.0.0.5:8000", api_key: "${env:VLLM_KEY}"}
models:
  - {name: demo-chat, pool: [chat-a, {engine: chat-b, weight: 2}], routing: {policy: consistent_hash, key: prefix, bound: 1.25}}
identity:
  api_keys:
    static:
      - {id: ci, key: "${env:CI_KEY}", tenant: ci, models: ["demo-*"]}
  oidc: []
  ldap: []
  mtls: null
  gateway_tokens: {}
roles: {}
bindings: []
limits:
  - {name: per-key, per: key, match: {tenant: "*"}, requests: {rate: 100, per: 1s, burst: 200},
     tokens: {rate: 100000, per: 1m}, concurrent: 64}
guardrails: []
audit: {durability: write, sinks: [{type: file}], encryption: null, checkpoint: {every: 60s}}
telemetry: {}
"""
ENVIRON = {"VLLM_KEY": "very-secret-vllm", "CI_KEY": KEY}

BASE = f"""\
version: 1
identity: {{api_keys: {{static: [{{id: ci, key: {KEY}, tenant: ci, models: ["*"]}}]}}}}
"""


class FilterSettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    words: tuple[str, ...]
    timeout: float = 1.0


class PickySettings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    low: int = 0
    high: int = 0
    key: Secret | None = None

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


SCHEMAS = PluginSchemas(
    authenticators={"api_keys": Spec, "badge": PickySettings},
    guardrails={"filter": FilterSettings, "picky": PickySettings},
    selectors={"consistent_hash": Spec, "sticky": PickySettings},
)


def read(text: str, **environ: str) -> ConfigSpec:
    return parse(text, file="gate.yaml", environ=environ, schemas=SCHEMAS)


def error(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, **environ)
    return str(caught.value)


def test_the_whole_example() -> None:
    spec = parse(FULL, file="gate.yaml", environ=ENVIRON)
    assert spec.listen.max_body_bytes == 8 * 1024 * 1024
    assert spec.limits[0].tokens is not None and spec.limits[0].tokens.per == 60.0
    assert spec.models[0].pool == ("chat-a", PoolMemberSpec(engine="chat-b", weight=2.0))
    key = spec.identity.api_keys.static[0].key
    assert key is not None and key.reveal() == KEY
    assert spec.engines[3].api_key is not None and spec.engines[3].api_key.reveal() == "very-secret-vllm"


def test_the_same_in_json() -> None:
    text = json.dumps({"version": 1, "identity": {"api_keys": {"static": [{"id": "ci", "key": KEY, "tenant": "t", "models": ["ü*"]}]}}})
    assert read(text).identity.api_keys.static[0].models == ("ü*",)


@pytest.mark.parametrize(
    ("addition", "expected"),
    [
        ("listn: {}", "gate.yaml:3: listn: unknown key 'listn'; did you mean 'listen'?"),
        ("listen: {dta: x}", "gate.yaml:3: listen.dta: unknown key 'dta'; did you mean 'data'?"),
        (
            "listen:\n  data: 127.0.0.1:1\n  zzz: 2",
            "gate.yaml:5: listen.zzz: unknown key 'zzz'; known: admin, admin_forwarding, admin_networks",
        ),
        ("listen: [1]", "gate.yaml:3: listen: must be a mapping, {key: value} (it is a sequence)"),
        ("engines: {}", "gate.yaml:3: engines: must be a list, [a, b] (it is a mapping)"),
        ("engines:", "gate.yaml:3: engines: must be a list, [a, b] (it is empty)"),
        ("engines: [{runtime: onnx}]", "gate.yaml:3: engines[0]: 'name' is missing; it must be 1 to 128 letters"),
        ("engines: [{name: a b, runtime: onnx}]", "gate.yaml:3: engines[0].name: 'a b' is not allowed; it must be 1 to 128 letters"),
        (
            "engines:\n  - {name: a, runtime: onnx, model: m}\n  - name: b\n    runtime: onnx\n    model: m\n    slots: 0",
            "gate.yaml:8: engines[1].slots: '0' is not allowed; it must be a whole number of at least 1 and at most 1024",
        ),
        (
            "engines: [{name: a, runtime: onnx, model: m, slots: four}]",
            "engines[0].slots: 'four' is not allowed; it must be a whole number",
        ),
        ("engines: [{name: a, runtime: onnx, model: m, slots: 08}]", "engines[0].slots: '08' is not allowed"),
        ("engines: [{name: a, runtime: onnx, model: m, slots: '8'}]", "a whole number of at least 1 and at most 1024 (without quotes)"),
        ("engines: [{name: a, runtime: onnx, model: m, device: gpu}]", "'gpu' is not allowed; it must be cpu, metal, cuda:N"),
        ("engines: [{name: a, runtime: onnx, model: m, weight: 0}]", "must be a number above 0 and at most 1000"),
        (
            "models: [{name: m, pool: [], routing: {queue: {weights: {t: 0}}}}]",
            "gate.yaml:3: models[0].routing.queue.weights.t: '0' is not allowed; it must be a number above 0 and at most 1000",
        ),
        ("watch: yes", "gate.yaml:3: watch: 'yes' is not allowed; it must be true or false"),
        ("listen: {header_timeout: soon}", "listen.header_timeout: 'soon' is not a duration such as 50ms, 1s, 1m30s or 2h"),
        ("listen: {header_timeout: 367d}", "listen.header_timeout: '367d' is not allowed; it must be a duration of at least 1ms"),
        ("listen: {header_timeout: null}", "listen.header_timeout: is empty; it must be a number"),
        ("listen: {max_body_bytes: 8 parsecs}", "listen.max_body_bytes: '8 parsecs' is not a size such as 65536, 64KiB or 8MiB"),
        ("stream: {buffer_bytes: 1KiB}", "stream.buffer_bytes: '1KiB' is not allowed; it must be a size of at least 16KiB"),
        (
            "limits: [{name: a, requests: {rate: 1, per: 0s}}]",
            "limits[0].requests.per: '0s' is not allowed; it must be a duration of at least 1ms",
        ),
        ("models: [{name: a, pool: [[x]]}]", "models[0].pool[0]: is a sequence; it must be a text"),
        ("models: [{name: a, pool: [{engin: x}]}]", "models[0].pool[0].engin: unknown key 'engin'; did you mean 'engine'?"),
        ("guardrails: [{name: g, type: filtr}]", "guardrails[0].type: there is no guardrail 'filtr'; did you mean 'filter'?"),
        ("guardrails: [{name: g, type: filter}]", "guardrails[0].settings: 'words' is missing; it must be a list"),
        ("guardrails: [{name: g, type: filter, settings: {wrds: []}}]", "guardrails[0].settings.wrds: unknown key 'wrds'; did you mean"),
        ("guardrails: [{name: g, type: filter, settings: {words: [], timeout: x}}]", "guardrails[0].settings.timeout: 'x' is not allowed"),
        ("audit: {sinks: [{type: fil}]}", "audit.sinks[0].type: there is no audit sink 'fil'; did you mean 'file'?"),
        ("version: 1", "gate.yaml:3: version: appears twice; the first is on line 1"),
        ("<<: {watch: true}", "gate.yaml:3: merge keys (<<) are not supported"),
        (
            "state_dir: !!python/object:os.system x",
            "gate.yaml:3: state_dir: the tag tag:yaml.org,2002:python/object:os.system is not allowed",
        ),
        ("watch: !!bool true", "the tag tag:yaml.org,2002:bool is not allowed"),
        ("roles: *nothing", "gate.yaml:3"),
        ("roles: &a [*a]", "gate.yaml:3: roles[0]: *a is inside the value that it names"),
        ("? [a]\n: b", "gate.yaml:3: a key must be a plain word"),
        ("watch: [", "gate.yaml:4: malformed YAML"),
        ("\twatch: true", "malformed YAML"),
        ("---\nversion: 1", "a second document; the file must hold one"),
        ('state_dir: "a\\0b"', "state_dir: holds characters that are not valid text"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_is_right(addition: str, expected: str) -> None:
    assert expected in error(BASE + addition + "\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the configuration is empty"),
        ("# only a comment\n", "the configuration is empty"),
        ("hello", "gate.yaml:1: must be a mapping"),
        ("{}", "gate.yaml:1: 'version' is missing; it must be 1"),
        ("version: 2", "gate.yaml:1: version: '2' is not allowed; it must be 1"),
        ("version: '1'", "version: '1' is not allowed"),
        ("version: 1\x07", "malformed YAML"),
        ("version: 1 # " + "x" * 2_000_000, "at most 1048576 are read"),
        ("a: " + "[" * 40 + "]" * 40, "nested more than 32 levels deep"),
        ("[" * 100_000, "nested more than 32 levels deep"),
    ],
)
def test_what_is_no_configuration_at_all(text: str, expected: str) -> None:
    assert expected in error(text)


def test_aliases_are_bounded_by_what_they_expand_to() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    assert "more than 100000 values, aliases expanded" in error(bomb)


def test_an_alias_stands_for_its_value() -> None:
    spec = read(
        BASE + "engines:\n"
        "  - {name: a, runtime: onnx, model: m, health: &h {interval: 5s}}\n"
        "  - {name: b, runtime: onnx, model: m, health: *h}\n"
    )
    assert spec.engines[1].health.interval == 5.0


def test_texts_stay_texts() -> None:
    """YAML 1.1 would make a truth value, an octal number, a time and a number of these."""
    spec = read(
        BASE + "engines: [{name: no, runtime: onnx, model: m, options: {a: no, b: 012, c: 12:30:45, d: 1.5, e: ~, f: '7', g: -3}}]\n"
    )
    assert spec.engines[0].name == "no"
    assert spec.engines[0].options == {"a": "no", "b": "012", "c": "12:30:45", "d": 1.5, "e": None, "f": "7", "g": -3}


def test_durations_and_sizes() -> None:
    spec = read(
        BASE + "listen: {header_timeout: 1m30s, body_timeout: 50ms, keep_alive_timeout: 2h, drain_timeout: 7, max_body_bytes: 64KiB}\n"
        "limits: [{name: a, requests: {rate: 5, per: 1m}}]\n"
    )
    listen = spec.listen
    assert (listen.header_timeout, listen.body_timeout, listen.keep_alive_timeout, listen.drain_timeout) == (90.0, 0.05, 7200.0, 7.0)
    assert listen.max_body_bytes == 65536
    assert spec.limits[0].requests is not None and spec.limits[0].requests.per == 60.0


def test_settings_of_a_plugin_are_kept_as_plain_values() -> None:
    spec = read(BASE + "guardrails: [{name: g, type: filter, settings: {words: [yes, 12], timeout: 2}}]\n")
    assert spec.guardrails[0].settings == {"words": ["yes", "12"], "timeout": 2.0}


def test_what_a_plugin_itself_refuses_has_a_place_too() -> None:
    message = error(BASE + "guardrails:\n  - name: g\n    type: picky\n    settings: {low: 2, high: 1}\n")
    assert message == "gate.yaml:6: guardrails[0].settings: low is above high"
    spec = read(BASE + "guardrails: [{name: g, type: picky, settings: {key: '${env:K}'}}]\n", K="plugin-secret")
    assert spec.guardrails[0].settings["key"].reveal() == "plugin-secret"
    assert "plugin-secret" not in json.dumps(describe(spec))


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with pytest.raises(ConfigError, match=r"c\.yaml: cannot be read: No such file"):
        load(path, {})
    path.write_bytes(b"version: \xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(path, {})
    path.write_bytes(b" " * 2_000_000)
    with pytest.raises(ConfigError, match="is larger than"):
        load(path, {})
    path.write_text("\ufeff" + BASE)
    loaded = load(path, {})
    assert loaded.spec.version == 1 and loaded.file == str(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ConfigError) as caught:
            load(path, {})
        assert str(caught.value) == f"{path}: is not a file"


def test_an_error_is_one_line_that_a_terminal_can_show() -> None:
    assert error(BASE + '"a\\nb": 1\n').startswith("gate.yaml:3: a\\nb: unknown key 'a\\nb'; known: ")
    assert error(BASE + 'audit: {durability: "\\e[31mx\\u2028"}\n').startswith("gate.yaml:3: audit.durability: '\\x1b[31mx\\u2028' is not")


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("engines[1].model", "c.yaml:5"),
        ("engines[1].slots", "c.yaml:5"),  # a default: the engine's own place
        ("engines[1]", "c.yaml:5"),
        ("engines[0]", "c.yaml:4"),
        ("engines[2].model", None),  # stands in the store
        ("listen.admin", "environment variable GATEHOUSE__LISTEN__ADMIN"),
        ("state_dir", "c.yaml:1"),
        (None, None),
    ],
)
def test_what_is_found_out_later_has_its_place_too(tmp_path: Path, path: str | None, place: str | None) -> None:
    file = tmp_path / "c.yaml"
    engine = "{name: %s, runtime: external, url: 'http://h'}"
    file.write_text(BASE + f"engines:\n  - {engine % 'a'}\n  - {engine % 'b'}\n")
    late = ConfigError("no", path=path)
    load(file, {"GATEHOUSE__LISTEN__ADMIN": "127.0.0.1:0"}).place(late)
    assert str(late).replace(f"{tmp_path}/", "") == ": ".join(part for part in (place, path, "no") if part)


def test_an_error_that_has_a_place_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(BASE)
    late = ConfigError("no", path="version", file="the store")
    load(tmp_path / "c.yaml", {}).place(late)
    assert str(late) == "the store: version: no"


@pytest.mark.parametrize("path", ["state_dir", None])
def test_what_came_from_outside_the_file_is_not_shown_by_what_is_found_out_later(tmp_path: Path, path: str | None) -> None:
    (tmp_path / "c.yaml").write_text(BASE + "state_dir: '${env:WRONG}'\nmodel_dirs: ['${env:PART}']\n")
    late = ConfigError("s3cret-and-more cannot be read, s3cret neither", path=path)
    load(tmp_path / "c.yaml", {"WRONG": "s3cret-and-more", "PART": "s3cret"}).place(late)
    assert str(late).endswith("(not shown) cannot be read, (not shown) neither")


@pytest.mark.parametrize("written", ["env:UPSTREAM_KEY", "file:/run/secrets/key"])
def test_a_reference_without_its_braces_is_no_secret(written: str) -> None:
    """It would be sent as the secret itself, and refused by whoever gets it."""
    with pytest.raises(ConfigError, match=r"\$\{" + written + r"\}") as caught:
        read(BASE + f"guardrails: [{{name: g, type: picky, settings: {{key: '{written}'}}}}]\n")
    assert str(caught.value.path).endswith("settings.key")


def test_describe_shows_no_secret() -> None:
    text = BASE + (
        "store: {url: 'postgresql://gate:pg-secret@db/gate'}\n"
        "engines:\n"
        "  - {name: a, runtime: external, url: 'https://h', api_key: key-secret, headers: {x-team: header-secret}}\n"
        "  - {name: b, runtime: onnx, model: m, options: {password: option-secret, n: 3}}\n"
    )
    shown = json.dumps(describe(read(text)))
    for secret in (KEY, "pg-secret", "key-secret", "header-secret", "option-secret"):
        assert secret not in shown
    description = describe(read(text))
    assert description["store"]["url"] == f"postgresql://gate:{MASK}@db/gate"
    assert description["engines"][1]["options"] == {"password": MASK, "n": 3}
    assert description["identity"]["api_keys"]["static"][0]["key"] == MASK


def test_members_are_described_one_by_one_as_they_would_be_alone() -> None:
    """Also where they share groups of settings, and where a group has secrets or durations."""
    alike = "health: {interval: 90s}, timeouts: {connect: 250ms}}"
    engines = [
        "{name: a, runtime: external, url: 'https://g', api_key: key-secret, headers: {x-team: header-secret}, " + alike,
        "{name: b, runtime: external, url: 'https://h', tls: {ca: k.pem}, weight: 2, apis: [messages], " + alike,
        "{name: c, runtime: onnx, model: m, slots: 3, options: {password: option-secret, n: 3, deep: [{token: t, url: 'http://u:p@h'}]}}",
        "{name: d, runtime: onnx, model: m}",
    ]
    together = describe(read(BASE + "engines:\n" + "".join(f"  - {engine}\n" for engine in engines)))["engines"]
    alone = [describe(read(BASE + f"engines:\n  - {engine}\n"))["engines"][0] for engine in engines]
    assert together == alone
    assert together[0]["headers"] == {"x-team": MASK}
    assert [one["health"]["interval"] for one in together] == ["1m30s", "1m30s", *[together[3]["health"]["interval"]] * 2]
    assert together[1]["weight"] == 2.0 and together[1]["apis"] == ["messages"] and together[3]["options"] == {}
    assert together[2]["options"]["deep"] == [{"token": MASK, "url": f"http://u:{MASK}@h"}]


def test_groups_that_many_members_have_of_their_own_are_described_right() -> None:
    """More of them than are remembered."""
    engines = [f"  - {{name: e{n}, runtime: onnx, model: m, weight: {n % 900 + 1}.5, health: {{interval: {n + 1}s}}}}" for n in range(1500)]
    found = describe(read(BASE + "engines:\n" + "\n".join(engines)))["engines"]
    assert [one["weight"] for one in found] == [n % 900 + 1.5 for n in range(1500)]
    assert found[1400]["health"]["interval"] == "23m21s"


def test_a_runtime_that_does_not_exist() -> None:
    schemas = PluginSchemas(engines={"llama.cpp": Spec, "onnx": Spec})
    with pytest.raises(ConfigError, match=r"gate.yaml:2: engines\[0\].runtime: there is no runtime 'onx'; did you mean 'onnx'\?"):
        parse("version: 1\nengines: [{name: a, runtime: onx}]\n", file="gate.yaml", environ={}, schemas=schemas)


def test_no_error_shows_a_secret() -> None:
    """Whatever field a key is written to by mistake, and whatever is wrong with it."""
    secret = "Sup3r-S3cret-Value-0123456789-abcdef"
    places: list[Any] = [
        "listen: {data: %s}",
        "listen: {header_timeout: %s}",
        "listen: {max_body_bytes: %s}",
        "watch: %s",
        "version: %s",
        "state: %s: x",
        "identity: {api_keys: {static: %s}}",
        "identity: {api_keys: {static: [{id: a b, key: %s, tenant: t, models: []}]}}",
        "identity: {api_keys: {static: [{id: a, key: [%s], tenant: t, models: []}]}}",
        "engines: [{name: a, runtime: %s}]",
        "engines: [{name: %s!, runtime: onnx}]",
        "engines: [{name: a, runtime: onnx, slots: %s}]",
        "engines: [{name: a, runtime: external, api_key: %s}]",
        "engines: [{name: a, runtime: external, url: 'http://u:%s@h'}]",
    ]
    for place in places:
        for written, environ in ((secret, {}), ("${env:S}", {"S": secret})):
            message = error("version: 1\n" + place % written + "\n", **environ)
            assert secret not in message, message


def test_third_parties_authenticators_have_settings_of_their_own() -> None:
    spec = read("version: 1\nidentity: {plugins: {badge: {low: 1, high: 2, key: '${env:K}'}}}\n", K="plugin-secret")
    assert spec.identity.plugins["badge"]["high"] == 2 and spec.identity.plugins["badge"]["key"].reveal() == "plugin-secret"
    assert read("version: 1\nidentity:\n  plugins:\n    badge:\n").identity.plugins == {"badge": {}}


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        ("{bagde: {}}", "gate.yaml:2: identity.plugins.bagde: there is no authenticator 'bagde'; did you mean 'badge'?"),
        ("{api_keys: {}}", "gate.yaml:2: identity.plugins.api_keys: there is no authenticator 'api_keys'; known: badge"),
        ("{badge: {lwo: 1}}", "gate.yaml:2: identity.plugins.badge.lwo: unknown key 'lwo'; did you mean 'low'?"),
        ("{badge: {low: 2, high: 1}}", "gate.yaml:2: identity.plugins.badge: low is above high"),
        ("[badge]", "gate.yaml:2: identity.plugins: must be a mapping, {name: settings} (it is a sequence)"),
    ],
)
def test_what_is_wrong_with_an_authenticator_names_its_path(plugins: str, expected: str) -> None:
    assert error(f"version: 1\nidentity: {{plugins: {plugins}}}\n").startswith(expected)


def routed(routing: str) -> str:
    return BASE + f"engines: [{{name: e, runtime: external, url: 'http://e'}}]\nmodels: [{{name: m, pool: [e], routing: {routing}}}]\n"


def test_a_routing_policy_may_have_settings() -> None:
    assert read(routed("{policy: sticky, settings: {low: 1, high: 2}}")).models[0].routing.settings == {"low": 1, "high": 2}
    assert read(routed("{key: tenant}")).models[0].routing.policy == "consistent_hash"
    assert parse(routed("{policy: unheard}"), file="gate.yaml", environ={}).models[0].routing.policy == "unheard"


@pytest.mark.parametrize(
    ("routing", "expected"),
    [
        ("{policy: stikcy}", "gate.yaml:4: models[0].routing.policy: there is no routing policy 'stikcy'; did you mean 'sticky'?"),
        ("{policy: sticky, settings: {lwo: 1}}", "gate.yaml:4: models[0].routing.settings.lwo: unknown key 'lwo'; did you mean 'low'?"),
        ("{settings: {low: 1}}", "gate.yaml:4: models[0].routing.settings.low: unknown key 'low'; none is known here"),
    ],
)
def test_what_is_wrong_with_a_routing_policy_names_its_path(routing: str, expected: str) -> None:
    assert error(routed(routing)).startswith(expected)


class _Even(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError("must be even")


class _Inner(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    some: tuple[_Even, ...] = ()


class _Outer(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    inner: _Inner | None = None
    named: dict[str, _Even] = field(default_factory=dict)


@pytest.mark.parametrize("count", [3, 3 * MANY])
def test_members_of_long_lists_and_mappings_are_made_one_by_one_and_refused_at_their_place(count: int, monkeypatch: pytest.MonkeyPatch):
    def written(odd: int) -> str:
        listed = "\n".join(f"  - {{n: {2 * n + (n == odd)}}}" for n in range(count))
        return f"inner:\n  some:\n{listed}\nnamed:\n" + "\n".join(f"  k{n}: {{n: {2 * n}}}" for n in range(count))

    made: list[type] = []
    whole = Converter._construct
    monkeypatch.setattr(Converter, "_construct", lambda self, data, target, *at: made.append(target) or whole(self, data, target, *at))
    converter = Converter({}, Path(), NO_PLUGINS)
    found = converter.convert(yamltree.read(written(-1), file="f"), _Outer)
    assert found.inner is not None and [one.n for one in found.inner.some] == [2 * n for n in range(count)]
    assert [one.n for one in found.named.values()] == [2 * n for n in range(count)]
    assert made.count(_Even) == (0 if count < MANY else 2 * count) and made[-1] is _Outer
    with pytest.raises(ConfigError) as refused:
        converter.convert(yamltree.read(written(2), file="f"), _Outer)
    assert str(refused.value) == "f:5: inner.some[2]: must be even"


def test_the_tree_of_what_was_read_ends_member_by_member_also_when_it_is_refused(monkeypatch: pytest.MonkeyPatch):
    ended = []
    monkeypatch.setattr("gateway.wire.yamltree.let_go", lambda root: ended.append(root))
    parse("version: 1\ninsecure: true\n", file=None, environ={})
    with pytest.raises(ConfigError):
        parse("version: 1\nengines: [{}]\n", file=None, environ={})
    assert len(ended) == 2
