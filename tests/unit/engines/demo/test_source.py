"""The data files are read strictly."""

import shutil
from pathlib import Path

import pytest

from engines.demo.source import DATA, DataError, load


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA, tmp_path / "data"))


def test_the_data_of_the_repository_is_whole() -> None:
    source = load()
    assert len(source.topics) > 120
    assert len(source.talks) >= 12
    assert {
        "gatehouse",
        "circuit-breaker",
        "create-key",
        "quickstart",
        "drain",
        "audit",
        "error-401",
        "error-403",
        "error-429",
        "error-503",
    } <= {topic.id for topic in source.topics}
    assert sum(len(questions) for questions in source.heldout.values()) >= 100


def test_data_stays_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 200_000


def test_every_answer_is_one_to_three_sentences() -> None:
    for topic in load().topics:
        assert 20 < len(topic.answer) < 220, topic.id
        assert topic.answer.endswith((".", "...")), topic.id


def test_an_unknown_key_is_named(folder: Path) -> None:
    (folder / "topics-more.yaml").write_text("- {id: x, ask: [a], answer: b, anwser: c}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"topics-more\.yaml: x: unknown keys \['anwser'\]"):
        load(folder)


def test_a_topic_needs_questions(folder: Path) -> None:
    (folder / "topics-more.yaml").write_text("- {id: x, answer: b}\n", encoding="utf-8")
    with pytest.raises(DataError, match="needs questions"):
        load(folder)


def test_a_list_of_other_things_than_texts_is_refused(folder: Path) -> None:
    (folder / "topics-more.yaml").write_text("- {id: x, ask: [yes, no], answer: b}\n", encoding="utf-8")
    with pytest.raises(DataError, match="x: expected a list of texts"):
        load(folder)


def test_ids_are_unique(folder: Path) -> None:
    (folder / "topics-more.yaml").write_text("- {id: greet, ask: [a], answer: b}\n", encoding="utf-8")
    with pytest.raises(DataError, match="same id"):
        load(folder)


def test_held_out_questions_belong_to_a_topic(folder: Path) -> None:
    (folder / "heldout.yaml").write_text("nothing: [a]\n", encoding="utf-8")
    with pytest.raises(DataError, match="no such topics"):
        load(folder)
