"""Templates that would fill the memory, or write out for ever, fail their request; what templates do otherwise is as in jinja's sandbox."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import pytest

from engines.chat import bounds
from engines.chat.needs import Needs
from engines.chat.template import ChatTemplate
from engines.sidecar.shell import ApiError

USER = [{"role": "user", "content": "hi"}]
GROWING = "{% set ns = namespace(s='xxxxxxxx', l=[1]) %}{% for i in range(60) %}"

FILLED = "{% set a = [] %}{% set b = [a] * 1000 %}{% set c = [b] * 60 %}{% for i in range(1000) %}"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


@pytest.mark.parametrize(
    "source",
    [
        GROWING + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
        GROWING + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        GROWING + "{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}",
        GROWING + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
        GROWING + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        GROWING + "{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ ns.l == ns.l }}",
        GROWING + "{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l | tojson }}",
        GROWING + "{% set ns.l = dict(a=ns.l, b=ns.l) %}{% endfor %}",
        "{% set s = 'xxxxxxxx' %}" + "{% set s = s ~ s %}" * 40,
        "{% set l = [1] %}" + "{% set l = [l, l] %}" * 40,
        "{% macro f(s) %}" + "{{ s }}" * 64 + "{% endmacro %}{{ f(f(f(f(f('xxxxxxxx'))))) | length }}",
        "{% set s = 'x' * 10000000 %}{{ (" + " ~ ".join(["s"] * 40) + ") | length }}",
        "{% set s = 'x' * 10000000 %}{{ ('y' + " + " + ".join(["s"] * 40) + ") | length }}",
        "{% set a = [] %}{% for i in range(100000) %}{% set _ = a.append('x' * 100000) %}{% endfor %}",
        FILLED + "{% set _ = a.append(i) %}{% endfor %}{{ c }}",
        FILLED + "{% set _ = a['append'](i) %}{% endfor %}{{ c == c }}",
        FILLED + "{% set _ = a['app' ~ 'end'](i) %}{% endfor %}",
        FILLED + "{% set _ = a.append(i) %}{% endfor %}{{ c | upper }}",
        FILLED + "{% set _ = a.append(i) %}{% endfor %}{{ c is eq c }}",
        "{% set a = [].append %}" + "{% set a = [a, a].append %}" * 40 + "{{ a }}{{ unknown.x }}",
        GROWING + "{% set ns.l = [ns.l, ns.l] | groupby(0) %}{% endfor %}",
        "{% for row in [1] | batch(60000, 'x' * 1000000) %}{{ row }}{% endfor %}",
        "{{ {}.fromkeys(range(60000), 'x' * 1000000) }}",
        "{{ ('x' * 9999)" + ".encode('utf-8').decode('latin-1').encode('utf-32').decode('latin-1')" * 20 + " | length }}",
        "{% set n = ('9' * 9999999) | int %}{{ n // 7 }}", "{{ ('ab ' * 4000000) | title }}", "{{ ('ab ' * 4000000) | wordcount }}",
        "{% macro f(a='x' * 1000000" + "".join(f", {b}={a} ~ {a}" for a, b in zip("abcdefghij", "bcdefghijk", strict=True))
        + ") %}{% endmacro %}{{ f() }}",
        "{% with s = 'x' * 8 %}" + "{% with s = s ~ s %}" * 40 + "{% endwith %}" * 41,
        "{% macro f(s, n) %}{{ f(s ~ s ~ s ~ s ~ s ~ s, n + 1) }}{% endmacro %}{{ f('x', 1) }}",
        "{% macro f(n) %}{% for x in ['x' * 999999 ~ n, 0] %}{% if x == 0 %}{{ f(n - 1) }}{% endif %}{% endfor %}{% endmacro %}{{ f(99) }}",
        "{% set l = range(99999) | list %}{% set l = l + l + l %}" + "".join(f"{{% set l{n} = l[:] %}}" for n in range(60)),
        "{% set l = range(99999) | list %}{% set l = l + l + l %}{% set x = [" + "l[:], " * 60 + "] %}",
        "{% set s = 'x' * 9999999 %}{% macro f() %}" + "{{ s | upper }}" * 60 + "{% endmacro %}{{ f() }}",
        "{% set s = 'x' * 9999999 %}{% set x = [" + "s.upper(), " * 60 + "] %}",
        "{{ ('x,' * 8000000).split(',') | length }}", "{{ ('x ' * 8000000).split() | length }}", "{{ ('é' * 16000000) | list | length }}",
        "{{ ('x' * 16000000) | map(attribute='y') | list | length }}", "{{ ('{:9999}' * 10000).format(*range(10000)) }}",
        "{{ ('x' | safe * 100000).replace('x', 'y' * 100000) }}", "{{ 'x' | replace(new='y' * 9999999, old='') | replace('y', 'zz') }}",
        "{{ strftime_now('%c' * 1000000) }}", "{{ {'a': 1} | tojson(separators=['x' * 1000000, ':']) }}",
        "{% set a = [] %}{% set _ = a.append(a) %}{{ a | tojson }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}{{ varargs }}{% endif %}{% endmacro %}{{ f(60, 1) }}",
        "{{ ('x' * 999) | list | map('replace', 'x', '') | map('default', 'y' * 100000, true) | join | length }}",
        "{{ ('x' * 999) | list | map('replace', 'x', '') | map('default', ['y'] * 60000, true) | list | length }}",
        "{{ '\"' " + "| tojson" * 60 + " | length }}",
        "{{ 'a' " + "| list | string" * 40 + " | length }}",
        "{% set s = 'x' * 100000 %}{{ s.replace('x', s) }}",
        "{% set s = 'x' * 100000 %}{{ s | replace('x', s) }}",
        "{% set s = 'x' * 100000 %}{{ (s | attr('replace'))('x', s) }}",
        "{% set s = 'x' * 100000 %}{{ s['replace']('x', s) }}",
        "{% set s = 'x' * 100000 %}{{ s.join(s) }}",
        "{% set s = 'x' * 100000 %}{{ s | join(s) }}",
        "{% set s = 'x' * 100000 %}{{ ''.join([s] * 60000) }}",
        "{% set s = 'x' * 100000 %}{{ '%s%s' * 1000 % ((s,) * 2000) }}",
        "{{ 'x'.ljust(n) }}", "{{ 'x' | center(n) }}", "{{ 'a' | indent(n, true) }}", "{{ '\t'.expandtabs(n) }}", "{{ 'x'.zfill(n) }}",
        "{{ ['x'] | map('center', n) | list }}", "{{ [1] | batch(n, 0) | list }}", "{{ {'a': 1} | tojson(indent=n) }}",
        "{{ '%1000000000d' % 1 }}", "{{ '%1000000000d' | format(1) }}", "{{ '%*d' | format(n, 1) }}",
        "{{ '{:1000000000d}'.format(1) }}", "{{ '{:{}}'.format('x', n) }}",
        "{{ 'a'.translate({97: 'x' * 10000}) }}", "{{ (1).to_bytes(n, 'big') }}", "{{ ([[1]] * 1000) | sum(start=[]) }}",
        "{{ ('<!-- -->' * 1000000) | striptags }}", "{{ cycler([1]) }}",
    ],
)  # fmt: skip
def test_much_of_little_fails_the_request_and_takes_no_memory(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.chat.template.find", lambda render: Needs())  # once is enough
    for name in ("MOST_GROWTH", "MOST_HELD"):
        monkeypatch.setattr(f"engines.chat.bounds.{name}", 24 << 20)
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), hard))
    try:
        with pytest.raises(ApiError) as caught:
            template(source).render(USER, extra={"n": 10**9})
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert caught.value.code in ("chat_template_failed", "context_length_exceeded")
    assert not str(caught.value).endswith("refused: "), "it ran out of memory"
    assert " s of processor time" not in str(caught.value)


def test_what_is_usual_is_as_ever() -> None:
    source = """{{ 'a-b' | replace('-', '+') }} {{ '%s-%d' | format('x', 3) }} {{ '{} {:>5}'.format('x', 1) }} {{ [1, 2] | join(', ') }}
{{ [1.5, 2] | sum }} {{ 'x' ~ 1 ~ [1] }} {{ 'x'.join(['a', 'b']) }} {{ 7 % 3 }} {{ '%d' % 3 }} {{ none ~ true }} {{ bos_token + 'x' }}
{{ messages | map(attribute='role') | join('/') }} {{ messages | join(d='/', attribute='role') }}
{{ messages[0].role.upper() }}
{{ messages[0].items() | list }} {{ {'a': [1]} | tojson(indent=2) }} {{ dict(a=1).a }} {{ ([1] + [2] + messages) | length }} {{ (1, 2) }}
{{ messages[0].nothing is undefined }} {{ messages[0].keys() | list }} {{ 'x' | center(5) }}|{{ 'a\nb' | indent(2) }}
{{ 1 in [1, messages] }}"""
    assert " ".join(template(source).render(USER).split()) == (
        "a+b x-3 x 1 1, 2 3.5 x1[1] axb 1 3 NoneTrue <s>x user user USER [('role', 'user'), ('content', 'hi')] "
        "{ \"a\": [ 1 ] } 1 3 (1, 2) True ['role', 'content'] x |a b True"
    )


def test_what_is_usual_is_as_ever_where_much_is_watched() -> None:
    """Of many variables in a statement, of lists that are filled, and of texts that are marked as safe."""
    many = "{% set s = 'ab' %}{{ (" + " ~ ".join(["s"] * 20) + ") | length }} {{ s[:1] | upper " + "+ s" * 20 + " }}"
    assert template(many).render(USER) == "40 A" + "ab" * 20
    filled = """{% set l = [] %}{% for m in messages %}{% set _ = l.append(m.role) %}{% endfor %}{{ l }} {{ l | join }} {{ l[0] | upper }}
{{ l == ['user'] }} {{ 'user' in l }} {{ l is sequence }} {{ l.pop() }} {{ l | length }} {{ l | map('upper') | list }} {{ 'x' ~ l }}"""
    assert " ".join(template(filled).render(USER).split()) == "['user'] user USER True True True user 0 [] x[]"
    marked = "{{ ('<a>' | safe).replace('a', 'b') }} {{ '<' | e }} {{ '{}' | safe }} {{ ('{:>4}' | safe).format('x') }}"
    assert template(marked).render(USER) == "<b> &lt; {}    x"
    pieces = "{% set s = 'a,b ' * 300000 %}{{ s.split(',') | length }} {{ s.split() | length }} {{ s.replace(',', '') | length }}"
    assert template(pieces).render(USER) == "300001 300000 900000"
    given = "{% macro f(a) %}{{ varargs | length }}{{ kwargs.b }}{% endmacro %}{{ f(1, 2, 3, b=4) }}"
    assert template(given).render(USER) == "24"


def test_a_template_that_makes_the_process_grow_fails_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1 << 30, 1 << 30, (1 << 30) + (512 << 20), (1 << 30) + (512 << 20) + 1])
    rendered = template("{% for i in range(50) %}x{% endfor %}")
    monkeypatch.setattr("engines.chat.bounds._memory", lambda: next(sizes))
    monkeypatch.setattr("engines.chat.bounds.LOOK_SECONDS", 0.0)
    with pytest.raises(ApiError, match="takes more than 512 MiB of memory for these messages"):
        rendered.render(USER)


@pytest.mark.parametrize(
    "source", ["x" * 600_000, "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% for a in b %}" * 40 + "{% endfor %}" * 40]
)
def test_a_template_that_is_too_large_or_nested_too_deeply_is_broken_and_the_engine_starts(source: str) -> None:
    with pytest.raises(ApiError, match="the model's chat template is broken"):
        template(source).render(USER)


def test_what_a_refused_template_held_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.chat.bounds.MOST_GROWTH", 24 << 20)
    rendered = template("{% set ns = namespace(l=[]) %}{% for i in range(9) %}{% set ns.l = ns.l + ['x' * 9999999 ~ i] %}{% endfor %}")
    gc.disable()
    try:
        for turn in range(20):
            with pytest.raises(ApiError) as caught:
                rendered.render(USER)
            assert "MiB" in str(caught.value)
            if turn == 1:
                before = bounds._memory()
        assert bounds._memory() - before < 200 << 20
    finally:
        gc.enable()
