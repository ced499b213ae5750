"""What records of answers may look like, and how they are divided."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace.routing.records import read_records, split


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def test_a_table_has_a_column_for_each_model(tmp_path: Path) -> None:
    path = written(tmp_path, "wide.csv.gz", 'domain,prompt,a,b\nx,"1+1?\nA. 2",True,0.5\ny,why?,False,\n')
    records = read_records(path)
    assert records.models == ("a", "b")
    assert records.prompts == ("1+1?\nA. 2", "why?")
    np.testing.assert_array_equal(records.scores, [[1, 0.5], [0, np.nan]])
    assert read_records(path, ["b"]).models == ("b",)


def test_long_records_of_a_prompt_become_one_row(tmp_path: Path) -> None:
    rows = [("p", "a", 1), ("p", "b", 0), ("q", "a", 0.25), ("p", "a", 0)]
    lines = [json.dumps(dict(zip(("prompt", "model", "score"), row, strict=True))) for row in rows]
    records = read_records(written(tmp_path, "long.jsonl", "\n".join(lines)), ["b", "a"])
    assert records.prompts == ("p", "q")
    np.testing.assert_array_equal(records.scores, [[0, 0.5], [np.nan, 0.25]])


def test_a_preference_scores_the_winner_and_the_loser(tmp_path: Path) -> None:
    text = "prompt,winner,loser,tie\np,a,b,\nq,a,b,true\n"
    records = read_records(written(tmp_path, "pairs.csv", text))
    np.testing.assert_array_equal(records.scores, [[1, 0], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prompt,a\n", "holds no records"),
        ("question,a\nx,1\n", "no column `prompt`"),
        ("prompt,a\nx,1\ny,7\n", "record 2: a is '7', which is no score"),
        ("prompt,a\nx,1\ny,good\n", "record 2: a is 'good', which is no score"),
        ("prompt,a\nx,1\nwell, y,1\n", "line 3 has more fields than the 2"),
        ("question,a\nwell, y,1\n", "line 2 has more fields than the 2"),
        ("prompt,model,score\nx,a,1\ny,,1\n", "record 2: the model is no text"),
        ("prompt,winner,loser\nx,a,b\ny,a\n", "record 2: the loser is no text"),
        ("prompt,a\nx,text\n", "no column holds scores"),
    ],
)
def test_broken_records_are_refused_by_file_and_line(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, "broken.csv", text)
    with pytest.raises(ConfigError, match=f"broken.csv: .*{told}"):
        read_records(path)


def test_a_model_whose_first_score_is_not_known_is_one(tmp_path: Path) -> None:
    table = written(tmp_path, "wide.csv", "prompt,a,b,note\nx,1,,\ny,0,1,\n")
    lines = written(tmp_path, "wide.jsonl", '{"prompt": "x", "a": 1}\n{"prompt": "y", "a": 0, "b": NaN}\n'
                    '{"prompt": "z", "b": 1}\n')  # fmt: skip
    assert read_records(table).models == ("a", "b")
    records = read_records(lines, ["a", "b"])
    np.testing.assert_array_equal(records.scores, [[1, np.nan], [0, np.nan], [np.nan, 1]])


def test_a_prompt_without_a_score_is_no_record(tmp_path: Path) -> None:
    path = written(tmp_path, "wide.csv", "prompt,a,b,c\nx,1,,0\ny,,,1\nz,,,\n")
    assert read_records(path).prompts == ("x", "y")
    assert read_records(path, ["a", "b"]).prompts == ("x",)


def test_a_spreadsheets_marks_are_no_part_of_names(tmp_path: Path) -> None:
    assert read_records(written(tmp_path, "wide.csv", "\ufeffprompt, a, b,\r\nx, 1, 0,\r\n")).models == (
        "a",
        "b",
    )
    assert read_records(written(tmp_path, "a.jsonl", '\ufeff{"prompt": "x", "a": 1}\r\n')).models == ("a",)


def test_what_lacks_a_field_is_refused_by_its_record(tmp_path: Path) -> None:
    path = written(
        tmp_path, "a.jsonl", '{"prompt": "x", "model": "a", "score": 1}\n{"prompt": "y", "score": 1}'
    )
    with pytest.raises(ConfigError, match="record 2: the model is no text"):
        read_records(path)


def test_a_model_is_named_once(tmp_path: Path) -> None:
    path = written(tmp_path, "wide.csv", "prompt,a,b\nx,1,0\n")
    for models in (["a", "b", "a"], []):
        with pytest.raises(ConfigError, match="expected models that differ"):
            read_records(path, models)


def test_an_unknown_model_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column 'c'; it has prompt, a, b"):
        read_records(written(tmp_path, "wide.csv", "prompt,a,b\nx,1,0\n"), ["c"])


def test_equal_prompts_stay_on_one_side() -> None:
    prompts = [f"prompt {number % 60}" for number in range(100)]
    for seed in range(20):
        one, other = split(prompts, 50, seed)
        assert 50 <= len(one) <= 51
        assert sorted([*one, *other]) == list(range(100))
        assert not {prompts[row] for row in one} & {prompts[row] for row in other}
