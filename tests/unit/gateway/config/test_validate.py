"""Settings that are right by themselves and wrong together."""

from __future__ import annotations

import hashlib

import pytest

from gateway.config.convert import PluginSchemas
from gateway.config.load import parse
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec

KEY, OTHER = "k" * 40, "o" * 40
SHA = "dc66f7a1f6c4ecb8ed41cd4d0f4d8b3e7bb4d9b4e0d6e87b8a1c9bfdd5a6e1ff"
A = "engines: [{name: chat-a, runtime: external, url: 'http://h:1'}]\n"


def with_keys(*keys: str) -> str:
    return f"identity: {{api_keys: {{static: [{', '.join(keys)}]}}}}\n"


GOOD = with_keys(f"{{id: ci, key: {KEY}, tenant: t, models: ['*']}}")


def read(text: str) -> ConfigSpec:
    return parse("version: 1\n" + text, file="c.yaml", environ={})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: {data: '127.0.0.1'}", "c.yaml:3: listen.data: '127.0.0.1' is not an address to listen on; write HOST:PORT"),
        ("listen: {data: ':8080'}", "is not an address to listen on"),
        ("listen: {data: 'h:99999'}", "is not an address to listen on"),
        ("listen: {data: '::1:80'}", "is not an address to listen on"),
        ("listen: {data: '[::1]'}", "is not an address to listen on"),
        ("listen: {data: '[zz]:80'}", "is not an address to listen on"),
        ("listen: {data: 'h:8_0'}", "is not an address to listen on"),
        (f"listen: {{data: 'h:{'9' * 5000}'}}", "listen.data: a text of 5002 characters is not an address to listen on"),
        ("listen: {cors: {origins: ['*', chat.example]}}", "listen.cors.origins[1]: 'chat.example' is not an origin; write https://HOST"),
        ("listen: {cors: {origins: ['https://chat.example/']}}", "'https://chat.example/' is not an origin"),
        (
            "store: {upstreams: [10.0.0.0/99]}",
            "store.upstreams[0]: '10.0.0.0/99' is not a network or host name; write 10.1.0.0/16 or *.models",
        ),
        ("listen: {header_timeout: 0}", "listen.header_timeout: '0' is not allowed; it must be a duration of at least 1ms and at most"),
        ("store: {poll_interval: 0s}", "store.poll_interval: '0s' is not allowed; it must be a duration of at least 1ms"),
        ("audit: {timeout: 0}", "audit.timeout: '0' is not allowed; it must be a duration of at least 1ms"),
        (
            "stream: {buffer_bytes: 1}",
            "stream.buffer_bytes: '1' is not allowed; it must be a size of at least 16KiB and at most 256KiB",
        ),
        ("state_dir: ''", "state_dir: '' is not allowed"),
        ('engines: [{name: a, runtime: external, url: "http://h/x\\ny"}]', "engines[0].url: must not hold spaces or control characters"),
        ("engines: [{name: a, runtime: external, url: 'http://h h'}]", "engines[0].url: must not hold spaces or control characters"),
        ("engines: [{name: a, runtime: external, url: 'http://h', api_key: ''}]", "engines[0].api_key: is empty"),
        ("engines: [{name: a, runtime: external, url: 'http://h', headers: {Host: z}}]", "engines[0].headers.Host: is a header that Gate"),
        (
            "engines: [{name: a, runtime: external, url: 'http://h', headers: {content-length: '5'}}]",
            "engines[0].headers.content-length: is a header that Gatehouse sets itself",
        ),
        ("listen: {data: 'h:1', admin: 'h:1'}", "listen.admin: is the same address as listen.data"),
        ("listen: {memory_bytes: 1MiB}", "listen.memory_bytes: must be at least listen.max_body_bytes (8388608)"),
        ("listen: {trusted_peers: [10.0.0.0/8, nowhere]}", "listen.trusted_peers[1]: 'nowhere' is not an address or network"),
        ("listen: {tls: {cert: a, key: b, require_client: true}}", "listen.tls.require_client: needs listen.tls.client_ca"),
        (
            "listen: {admin_tls: {cert: a, key: b, require_client: true}}",
            "listen.admin_tls.require_client: needs listen.admin_tls.client_ca",
        ),
        ("engines: [{name: a, runtime: onnx}]", "c.yaml:3: engines[0]: 'model' is missing; an engine with the runtime 'onnx' needs"),
        ("engines: [{name: a, runtime: onnx, model: m, url: 'http://h'}]", "engines[0].url: is only for external engines"),
        ("engines: [{name: a, runtime: onnx, model: m, api_key: x}]", "engines[0].api_key: is only for external engines"),
        ("engines: [{name: a, runtime: external}]", "engines[0]: 'url' is missing"),
        ("engines: [{name: a, runtime: external, url: 'ftp://h'}]", "engines[0].url: must begin with http:// or https://"),
        ("engines: [{name: a, runtime: external, url: 'http://'}]", "engines[0].url: must begin with http:// or https:// and name a host"),
        ("engines: [{name: a, runtime: external, url: 'file:///etc/passwd'}]", "must begin with http:// or https://"),
        ("engines: [{name: a, runtime: external, url: 'http://h:99999'}]", "engines[0].url: is not a URL"),
        ("engines: [{name: a, runtime: external, url: 'http://u:p@h'}]", "engines[0].url: must not hold a user or password"),
        ("engines: [{name: a, runtime: external, url: 'http://h/?a=b'}]", "engines[0].url: must not hold a query"),
        ("engines: [{name: a, runtime: external, url: 'http://h', tls: {}}]", "engines[0].tls: is set, but the url is not https://"),
        ("engines: [{name: a, runtime: external, url: 'https://h', tls: {cert: c}}]", "engines[0].tls: needs 'cert' and 'key' together"),
        ("engines: [{name: a, runtime: external, url: 'http://h', fallback: cpu}]", "engines[0].fallback: is only for engines that"),
        ("engines: [{name: a, runtime: external, url: 'http://h', headers: {'x y': z}}]", "engines[0].headers.x y: is not a valid header"),
        (
            'engines: [{name: a, runtime: external, url: "http://h", headers: {x: "a\\r\\nb"}}]',
            "engines[0].headers.x: is not a valid header",
        ),
        (
            A.replace("}]", "}, {name: chat-a, runtime: onnx, model: m}]"),
            "engines[1].name: the engine 'chat-a' appears twice; the first is engines[0]",
        ),
        (A + "models: [{name: m, pool: [chat-b]}]", "models[0].pool[0]: there is no engine 'chat-b'; did you mean 'chat-a'?"),
        (A + "models: [{name: m, pool: [{engine: chatt-a}]}]", "models[0].pool[0]: there is no engine 'chatt-a'; did you mean 'chat-a'?"),
        (A + "models: [{name: m, pool: []}]", "models[0].pool: is empty"),
        (A + "models: [{name: m, pool: [chat-a, chat-a]}]", "models[0].pool[1]: the engine 'chat-a' appears twice in this pool"),
        (A + "models: [{name: m, pool: [{engine: chat-a, weight: 0}]}]", "models[0].pool: has only members of weight 0"),
        (A + "models: [{name: m, pool: [chat-a]}, {name: m, pool: [chat-a]}]", "models[1].name: the model 'm' appears twice"),
        (
            A + "models: [{name: m, pool: [chat-a]}, {name: n, pool: [chat-a], aliases: [m]}]",
            "models[1].aliases[0]: 'm' is already the name",
        ),
        (A + "models: [{name: m, pool: [chat-a], aliases: [x, x]}]", "models[0].aliases[1]: 'x' is already the name of something else"),
        (A + "models: [{name: m, pool: [chat-a], fallbacks: [nn]}]", "models[0].fallbacks[0]: there is no model 'nn'; known: m"),
        (A + "models: [{name: m, pool: [chat-a], shadow: {model: nn}}]", "models[0].shadow.model: there is no model 'nn'; known: m"),
        (A + "models: [{name: m, pool: [chat-a], canary: {engine: x}}]", "models[0].canary.engine: 'x' is not in the model's pool"),
        (A + "models: [{name: m, pool: [chat-a], canary: {engine: chat-a}}]", "models[0].canary.engine: is the only engine of the pool"),
        (A + "models: [{name: m, pool: [chat-a], canary: {engine: chat-a}, hedge: {}}]", "cannot be measured where the model hedges"),
        (A + "models: [{name: m, pool: [chat-a], hedge: {after: 200ms}}]", "models[0].hedge.after: "),
        (A + "models: [{name: m, pool: [chat-a], shadow: {model: m}}]", "models[0].shadow.model: is the model itself; name another one"),
        (A + "models: [{name: m, pool: [chat-a], fallbacks: [m]}]", "models[0].fallbacks: the fallbacks go round in a circle: m -> m"),
        (
            A + "models: [{name: a, pool: [chat-a], fallbacks: [b]}, {name: b, pool: [chat-a], fallbacks: [c]}, "
            "{name: c, pool: [chat-a], fallbacks: [b]}]",
            "models[2].fallbacks: the fallbacks go round in a circle: b -> c -> b",
        ),
        (
            "limits: [{name: a}]",
            "limits[0]: limits nothing; give it 'requests', 'tokens', 'bytes', 'elements', 'concurrent', 'queued', 'budget' or 'session'",
        ),
        ("limits: [{name: a, concurrent: 1}, {name: a, concurrent: 1}]", "limits[1].name: the limit 'a' appears twice"),
        ("limits: [{name: a, requests: {rate: 0.5}}]", "limits[0].requests: allows 0.5 requests at once, so none would ever pass"),
        ("limits: [{name: a, tokens: {rate: 5, burst: 0.5}}]", "limits[0].tokens: allows 0.5 tokens at once"),
        ("identity2: {}", "identity2: unknown key"),
        (
            "audit: {encryption: {master: {}}}",
            "audit.encryption.master: needs exactly one of file, environment, command and transit, and has nothing",
        ),
        ("audit: {encryption: {master: {file: a, environment: B}}}", "and has file and environment"),
        ("audit: {encryption: {master: {file: a}, former: [{}]}}", "audit.encryption.former[0]: needs exactly one"),
        (
            "audit: {encryption: {master: {transit: {url: 'ftp://v.example', key: k, token: t}}}}",
            "audit.encryption.master.transit.url: ",
        ),
        (
            "audit: {encryption: {master: {transit: {url: 'https://vault.example', key: k}}}}",
            "audit.encryption.master.transit: needs either 'token' or 'token_file'",
        ),
        ("audit: {text: {record: both, when: [{}]}}", "audit.text: needs 'audit.encryption': texts are never written unencrypted"),
        ("audit: {encryption: {master: {file: a}}, text: {record: both}}", "audit.text.when: is missing; it selects whose texts are kept"),
        ("audit: {encryption: {master: {file: a}}, text: {when: [{}]}}", "audit.text.record: is 'none', so 'when' has no effect"),
        ("audit: {sinks: []}", "audit.sinks: is empty: the audit log cannot be off"),
    ],
)
def test_contradictions(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(GOOD + text + "\n")
    assert expected in str(caught.value)
    assert str(caught.value).startswith("c.yaml:")


@pytest.mark.parametrize("origin", ["*", "null", "https://chat.example", "http://localhost:3000", "https://[::1]:8443"])
def test_origins_of_browsers(origin: str) -> None:
    assert read(GOOD + f"listen: {{cors: {{origins: ['{origin}']}}}}\n").listen.cors.origins == (origin,)


def test_waits_that_may_be_none_at_all() -> None:
    spec = read(GOOD + "listen: {keep_alive_timeout: 0, drain_timeout: 0}\nstream: {keep_alive: 0}\n")
    assert (spec.listen.keep_alive_timeout, spec.listen.drain_timeout, spec.stream.keep_alive) == (0, 0, 0)


def test_a_role_that_is_not_there_is_named() -> None:
    text = "version: 1\n" + with_keys(f"{{id: ci, key: {KEY}, tenant: t, models: ['*'], roles: [admin, amin]}}")
    with pytest.raises(ConfigError) as caught:
        parse(text, file="c.yaml", environ={}, schemas=PluginSchemas(roles=("admin", "viewer")))
    assert str(caught.value) == "c.yaml:2: identity.api_keys.static[0].roles[1]: there is no role 'amin'; did you mean 'admin'?"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gateway_tokens: {ttl: 1}", "gateway_tokens: needs 'issuer'"),
        ("gateway_tokens: {issuer: 'http://gw.example'}", "gateway_tokens.issuer: 'http://gw.example' must be https"),
        ("gateway_tokens: {issuer: 'https://gw.example', ttl: 2d}", "gateway_tokens.ttl: must be between"),
        ("gateway_tokens: {issuer: 'https://gw.example', rotate: 1s}", "gateway_tokens.rotate: must be 1m"),
        ("step_up: [{permissions: ['keys:*']}]", "step_up\\[0\\]: asks for nothing"),
        ("step_up: [{permissions: ['keys'], max_age: 1h}]", "step_up\\[0\\].permissions\\[0\\]: 'keys' is not a permission"),
        ("step_up: [{permissions: ['*'], max_age: 1h, exempt: [root]}]", "step_up\\[0\\].exempt\\[0\\]: 'root' is not a credential"),
    ],
)
def test_settings_of_tokens_that_cannot_be_meant_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(GOOD.replace("identity: {", "identity: {" + setting + ", "))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("", "identity.api_keys.static: is empty: nobody could be authenticated; add a key, say 'rely_on_store: true' beside it where"),
        ("{id: a, key: short, tenant: t, models: ['*']}", "static[0].key: has 5 characters; a key needs 32 or more"),
        (f"{{id: a, key: {KEY}ü, tenant: t, models: ['*']}}", "static[0].key: holds characters that no header can carry"),
        ("{id: a, tenant: t, models: ['*']}", "static[0]: needs exactly one of 'key' and 'key_sha256'"),
        (f"{{id: a, tenant: t, models: ['*'], key: {KEY}, key_sha256: {SHA}}}", "static[0]: needs exactly one of 'key' and 'key_sha256'"),
        ("{id: a, tenant: t, models: ['*'], key_sha256: abc}", "static[0].key_sha256: 'abc' is not allowed; it must be a SHA-256"),
        (
            f"{{id: a, tenant: t, models: ['*'], key_sha256: {hashlib.sha256(b'').hexdigest().upper()}}}",
            "static[0].key_sha256: is the digest of an",
        ),
        (f"{{id: a, key: {KEY}, tenant: t, models: []}}", "identity.api_keys.static: no key may use any model"),
        (f'{{id: a, key: {KEY}, tenant: t, models: ["*"], user: "a\\tb"}}', "static[0].user: 'a\\tb' is not a name; write 1 to 256"),
        (f'{{id: a, key: {KEY}, tenant: t, models: ["*"], groups: [b, ""]}}', "static[0].groups[1]: ' ' is not a name"),
        (
            f"{{id: a, key: {KEY}, tenant: t, models: ['*']}}, {{id: a, key: {OTHER}, tenant: t, models: []}}",
            "static[1].id: the key 'a' appears twice",
        ),
        (
            f"{{id: a, key: {KEY}, tenant: t, models: ['*']}}, {{id: b, key: {KEY}, tenant: t, models: []}}",
            "is the same key as that of 'a'",
        ),
        (
            f"{{id: a, key_sha256: {SHA}, tenant: t, models: ['*']}}, {{id: b, key_sha256: {SHA.upper()}, tenant: t, models: []}}",
            "is the same key as that of 'a'",
        ),
    ],
)
def test_static_keys(keys: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(with_keys(keys))
    assert expected in str(caught.value)
    assert KEY not in str(caught.value)


def test_the_same_key_in_both_forms_is_found() -> None:
    sha = hashlib.sha256(KEY.encode()).hexdigest()
    with pytest.raises(ConfigError, match=r"static\[1\]: is the same key as that of 'a'"):
        read(with_keys(f"{{id: a, key: {KEY}, tenant: t, models: ['*']}}, {{id: b, key_sha256: {sha}, tenant: t, models: []}}"))


def test_insecure_allows_what_is_otherwise_refused() -> None:
    spec = read("insecure: true\naudit: {sinks: []}\n")
    assert spec.insecure and spec.identity.api_keys.static == ()


@pytest.mark.parametrize("static", ["", f"static: [{{id: a, key: {KEY}, tenant: t, models: [], roles: [admin]}}], "])
def test_keys_of_the_store_are_enough_where_that_is_said(static: str) -> None:
    def text(word: str) -> str:
        return f"identity: {{api_keys: {{{static}rely_on_store: {word}}}}}\n"

    spec = read(text("true"))
    assert spec.identity.api_keys.rely_on_store and not spec.insecure
    with pytest.raises(ConfigError, match="rely_on_store: true"):
        read(text("false"))
    with pytest.raises(ConfigError, match=r"audit\.sinks: is empty"):
        read(text("true") + "audit: {sinks: []}\n")


TLS = "tls: {cert: a, key: b, client_ca: ca.pem}"
MESH = "{match: {san_uri: 'spiffe://example/*'}, tenant: acme}"


@pytest.mark.parametrize(
    ("listen", "mtls", "expected"),
    [
        ("", f"{{principals: [{MESH}]}}", "identity.mtls: no client is ever asked for a certificate: set listen.tls.client_ca"),
        (TLS, "{principals: []}", "identity.mtls.principals: has no members; it must have 1 or more"),
        (TLS, "{principals: [{match: {}, tenant: acme}]}", "identity.mtls.principals[0].match: matches every certificate"),
        (
            TLS,
            "{principals: [{match: {san_url: x}, tenant: acme}]}",
            "principals[0].match.san_url: unknown key 'san_url'; did you mean 'san_uri'?",
        ),
        (TLS, "{principals: [{match: {san_uri: x}, tenant: acme, roles: [amin]}]}", "principals[0].roles[0]: there is no role 'amin'"),
        (TLS, f"{{principals: [{MESH}], crl: x, on_crl_failure: opn}}", "did you mean open?"),
        ("", f"{{principals: [{MESH}], forwarded: {{peers: [10.0.0.1]}}}}", "identity.mtls.authorities: is needed"),
        (
            TLS,
            f"{{principals: [{MESH}], forwarded: {{peers: [10.0.0.1]}}}}",
            "forwarded.peers[0]: '10.0.0.1' is not among listen.trusted_peers",
        ),
        (
            f"trusted_peers: [10.0.0.0/24], {TLS}",
            f"{{principals: [{MESH}], forwarded: {{peers: [10.0.0.0/8]}}}}",
            "is not among listen.trusted",
        ),
        (TLS, f"{{principals: [{MESH}], forwarded: {{peers: [nowhere]}}}}", "forwarded.peers[0]: 'nowhere' is not an address or network"),
    ],
)
def test_logins_by_certificate_that_cannot_be_meant(listen: str, mtls: str, expected: str) -> None:
    text = GOOD.replace("identity: {", f"identity: {{mtls: {mtls}, ")
    with pytest.raises(ConfigError) as caught:
        parse(f"version: 1\n{text}listen: {{{listen}}}\n", file="c.yaml", environ={}, schemas=PluginSchemas(roles=("admin",)))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ("dpop: {urls: []}", "identity.dpop.urls: has no members; it must have 1 or more"),
        ("dpop: {}", "identity.dpop"),
        ("dpop: {urls: ['http://gateway.example']}", "identity.dpop.urls[0]: 'http://gateway.example' must be https://"),
        ("dpop: {urls: ['gateway.example']}", "must be https://"),
        ("dpop: {urls: ['https://gateway.example/llm/']}", "must be what comes before the path of a request"),
        ("dpop: {urls: ['https://gateway.example?x']}", "must be what comes before the path of a request"),
        ("dpop: {urls: ['https://a@gateway.example']}", "must be"),
        ("dpop: {urls: ['https://gateway.example'], algorithms: [HS256]}", "identity.dpop.algorithms[0]"),
        ("dpop: {urls: ['https://gateway.example'], algorithms: []}", "identity.dpop.algorithms"),
        ("dpop: {urls: ['https://gateway.example'], max_age: 6m}", "identity.dpop.max_age: must be between 1s and 5m"),
        ("dpop: {urls: ['https://gateway.example'], leeway: 2m}", "identity.dpop.leeway: at most 1m"),
        ("dpop: {urls: ['https://gateway.example'], nonce: always}", "identity.dpop.nonce"),
        ("gateway_tokens: {issuer: 'https://gw.example', binding: dpop}", "identity.gateway_tokens.binding: needs identity.dpop"),
        (
            "oidc: [{name: a, issuer: 'https://idp.example', audiences: [x], binding: dpop}]",
            "identity.oidc[0].binding: needs identity.dpop",
        ),
        (
            "oidc: [{name: a, issuer: 'https://idp.example', audiences: [x], binding: certificate}]",
            "identity.oidc[0].binding: no client is ever asked for a certificate",
        ),
        ("oidc: [{name: a, issuer: 'https://idp.example', audiences: [x], binding: either}]", "binding: needs identity.dpop or listen.tls"),
        ("oidc: [{name: a, issuer: 'https://idp.example', audiences: [x], binding: key}]", "identity.oidc[0].binding"),
    ],
)
def test_bindings_that_cannot_be_meant(identity: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(GOOD.replace("identity: {", f"identity: {{{identity}, "))
    assert expected in str(caught.value)


def test_bindings_that_can() -> None:
    dpop = "dpop: {urls: ['https://gateway.example/llm', 'http://127.0.0.1:8080', 'https://x.example/']}"
    issuer = "oidc: [{name: a, issuer: 'https://idp.example', audiences: [x], binding: either}]"
    spec = read(GOOD.replace("identity: {", f"identity: {{{dpop}, {issuer}, "))
    assert spec.identity.dpop is not None and spec.identity.oidc[0].binding == "either"
    certificate = issuer.replace("either", "certificate")
    assert read(GOOD.replace("identity: {", f"identity: {{{certificate}, ") + f"listen: {{{TLS}}}\n").identity.oidc


def test_the_authorities_are_the_listeners_where_nothing_else_is_said() -> None:
    text = GOOD.replace("identity: {", f"identity: {{mtls: {{principals: [{MESH}], crl: crl.pem}}, ")
    both = f"listen: {{{TLS}, admin_tls: {{cert: a, key: b, client_ca: admin.pem}}}}\n"
    mtls = read(text + both).identity.mtls
    assert mtls is not None and mtls.authorities == ("ca.pem", "admin.pem")
    own = read(text.replace("crl: crl.pem", "crl: crl.pem, authorities: [own.pem]") + both).identity.mtls
    assert own is not None and own.authorities == ("own.pem",)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:8080", "localhost:1", "0.0.0.0:65535", "gate.example:80"])
def test_addresses(address: str) -> None:
    assert read(GOOD + f"listen: {{data: '{address}'}}\n").listen.data == address


@pytest.mark.parametrize("address", ["0.0.0.0:8081", "[::]:8081", "192.0.2.1:1", "gate.example:80"])
def test_an_admin_listener_for_other_machines_needs_tls(address: str) -> None:
    listen = f"admin: '{address}'"
    with pytest.raises(ConfigError, match=r"takes administrators' credentials from other machines without TLS") as caught:
        read(GOOD + f"listen: {{{listen}}}\n")
    assert caught.value.path == "listen.admin" and caught.value.line is not None
    assert read(GOOD + f"listen: {{{listen}, admin_tls: {{cert: a, key: b}}}}\n").listen.admin == address
    assert read(GOOD + f"insecure: true\nlisten: {{{listen}}}\n").listen.admin == address


def test_two_listeners_on_ports_chosen_by_the_system() -> None:
    assert read(GOOD + "listen: {data: '127.0.0.1:0', admin: '127.0.0.1:0'}\n").listen.admin == "127.0.0.1:0"


def test_fallbacks_that_meet_again_are_no_circle() -> None:
    spec = read(
        GOOD + A + "models: [{name: a, pool: [chat-a], fallbacks: [b, c]}, {name: b, pool: [chat-a], fallbacks: [d]}, "
        "{name: c, pool: [chat-a], fallbacks: [d]}, {name: d, pool: [chat-a]}]\n"
    )
    assert len(spec.models) == 4


def test_a_text_from_the_environment_is_not_shown_by_later_checks() -> None:
    text = "version: 1\n" + GOOD + A + "models: [{name: m, pool: ['${env:POOL}']}]\n"
    with pytest.raises(ConfigError) as caught:
        parse(text, file="c.yaml", environ={"POOL": "s3cret"})
    assert "s3cret" not in str(caught.value)
    assert "there is no engine '(not shown)'" in str(caught.value)
