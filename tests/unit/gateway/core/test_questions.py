"""Questions that may share an answer, and those that must not, whatever an embedding says of them."""

from __future__ import annotations

import pytest

from gateway.core.questions import MOST, Words, edited, read

ALIKE = [
    ("How do I reset my password?", "how do i reset my password"),
    ("How do I reset my password?", "Hello, please tell me: how do I reset my password?"),
    ("How do I reset my password?", "Could you please tell me how you reset my password"),
    ("What's the capital of Norway?", "what is the capital of Norway"),
    ("When I ask, do I wait?", "when i ask do we wait"),
    ("I don't like it, why?", "I do not like it. Why?"),
    ("You can't stop it", "you cannot stop it"),
    ("Is 5% of \u20ac100 much?", "is 5% of the \u20ac100 much"),
    ("Wie setze ich mein Passwort zur\u00fcck?", "wie setze ich mein Passwort zur\u00fcck"),
]
APART = [
    ("What is 2+2?", "What is 2+3?"),
    ("What is 2+2?", "What is 2-2?"),
    ("What is 2 + 2?", "What is 2 * 2?"),
    ("Is 5 more than 4?", "Is 4 more than 5?"),
    ("What happened in 1918?", "What happened in 1945?"),
    ("Give me two examples", "Give me three examples"),
    ("Is aspirin safe?", "Is aspirin not safe?"),
    ("Is aspirin safe?", "Isn't aspirin safe?"),
    ("Is aspirin safe?", "Is aspirin unsafe?"),
    ("Is aspirin safe?", "Is ibuprofen safe?"),
    ("Is aspirin safe?", "Is aspirin safe with alcohol?"),
    ("Is aspirin safe?", "Is aspirin never safe?"),
    ("Ist das sicher?", "Ist das nicht sicher?"),
    ("C'est dangereux", "Ce n'est pas dangereux"),
    ("Can I smoke here?", "Must I smoke here?"),
    ("Who is the president?", "Who was the president?"),
    ("Where is Paris?", "Where is London?"),
    ("Paris weather", "London weather"),
    ("where is paris", "where is london"),
    ("flights from Paris to London", "flights to Paris from London"),
    ("convert EUR to USD", "convert USD to EUR"),
    ("The dog bites the man", "The man bites the dog"),
    ("turn the light on", "turn the light off"),
    ("What is v1.2?", "What is v1.3?"),
    ("What does C++ have?", "What does C# have?"),
    ("delete foo_bar", "delete foo_baz"),
    ("mail ann@example.com", "mail bob@example.com"),
    ('What is "a b"?', 'What is "a  b"?'),
    ("Say `x`", "Say `X`"),
    ("my salary", "your salary"),
    ("What is 2\u00b2?", "What is 2\u00b3?"),
    ("x < y", "x > y"),
    ("What is 2\u00b2?", "What is 22?"),
    ("What caused World War I?", "What caused World War?"),
    ("what caused world war i", "what caused world war"),
    ("Is the US policy good?", "Is the policy good?"),
    ("US policy", "policy"),
    ("Where is ME?", "Where is?"),
    ("Do I need vitamin A?", "Do I need vitamin?"),
    ("do i need vitamin a", "do i need vitamin"),
    ("polish the table", "Polish the table, Polish"),
]
UNREADABLE = [
    "",
    "  ?! ",
    "please",
    "two\nlines",
    "a\ttab",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u4f60\u597d\u5417",
    "zero\u200bwidth",
    "soft\u00adhyphen",
    "right \u202e to left",
    "p\u0430ypal with a Cyrillic letter",
    "lone \ud800 surrogate",
    "word " * MOST,
]


def may_share(one: str, other: str, words: Words) -> bool:
    left, right = read(one, words), read(other, words)
    assert left is not None and right is not None
    return left.facts == right.facts and not edited(left, right)


@pytest.mark.parametrize("words", ["same", "free"])
@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_questions_that_differ_in_nothing_that_matters_may_share_an_answer(one: str, other: str, words: Words) -> None:
    assert may_share(one, other, words)
    assert may_share(other, one, words)


@pytest.mark.parametrize("words", ["same", "free"])
@pytest.mark.parametrize(("one", "other"), APART)
def test_questions_that_differ_in_what_an_embedding_does_not_see_never_do(one: str, other: str, words: Words) -> None:
    assert not may_share(one, other, words)
    assert not may_share(other, one, words)


@pytest.mark.parametrize("words", ["same", "free"])
@pytest.mark.parametrize("text", UNREADABLE)
def test_what_cannot_be_judged_is_not_compared(text: str, words: Words) -> None:
    assert read(text, words) is None


def test_other_words_are_for_the_embedding_to_judge_where_that_is_configured() -> None:
    one, other = "How do I reset my password?", "How is a forgotten login changed?"
    assert may_share(one, other, "free")
    assert not may_share(one, other, "same")
    assert not may_share(one, "How do I reset my username?", "free")
