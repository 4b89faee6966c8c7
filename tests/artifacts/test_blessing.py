"""blessing: one empty file, the right one, whatever lay there before."""

import os
from pathlib import Path

import pytest

from assay.artifacts import blessing


@pytest.mark.parametrize("blessed", [True, False])
def test_one_empty_file(tmp_path: Path, blessed: bool) -> None:
    folder = tmp_path / "new" / "blessing"
    blessing.write(str(folder), blessed)
    assert os.listdir(folder) == ["BLESSED" if blessed else "NOT_BLESSED"]
    assert (folder / os.listdir(folder)[0]).stat().st_size == 0


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("blessed", [True, False])
def test_replaces_an_earlier_verdict(tmp_path: Path, before: bool, blessed: bool) -> None:
    blessing.write(str(tmp_path), before)
    (tmp_path / "NOT_BLESSED").write_text("left half-way")
    blessing.write(str(tmp_path), blessed)
    assert os.listdir(tmp_path) == ["BLESSED" if blessed else "NOT_BLESSED"]
    assert (tmp_path / os.listdir(tmp_path)[0]).read_bytes() == b""


def test_names_are_those_of_tfx() -> None:
    from tfx.components.evaluator import constants

    assert blessing.BLESSED_FILE == constants.BLESSED_FILE_NAME
    assert blessing.NOT_BLESSED_FILE == constants.NOT_BLESSED_FILE_NAME
    assert blessing.BLESSED == constants.ARTIFACT_PROPERTY_BLESSED_KEY
    assert blessing.CURRENT_MODEL == constants.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY
    assert blessing.CURRENT_MODEL_ID == constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY
    assert blessing.BASELINE_MODEL == constants.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY
    assert blessing.BASELINE_MODEL_ID == constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY
    assert blessing.MESSAGE == constants.ARTIFACT_PROPERTY_BLESSING_MESSAGE_KEY


def test_properties() -> None:
    assert blessing.properties(True, [], current_model="/m/6", current_model_id=6) == {
        "blessed": 1,
        "current_model": "/m/6",
        "current_model_id": 6,
    }
    found = blessing.properties(
        False,
        ["no thresholds"],
        current_model="gs://m",
        current_model_id="projects/p/artifacts/1",
        baseline_model="gs://b",
        baseline_model_id=0,
        component_id="Evaluator",
    )
    assert found == {
        "blessed": 0,
        "current_model": "gs://m",
        "current_model_id": "projects/p/artifacts/1",
        "baseline_model": "gs://b",
        "baseline_model_id": 0,
        "component_id": "Evaluator",
        "blessing_message": "no thresholds",
    }
    assert type(found["blessed"]) is int


def test_message_keeps_whole_reasons_and_counts_the_rest() -> None:
    reasons = [f"auc on hour={hour}: 0.61, asked >= 0.65" for hour in range(5000)]
    text = blessing.message(reasons)
    assert len(text.encode()) <= blessing.MESSAGE_BYTES
    *kept, more = text.split("; ")
    assert kept == reasons[: len(kept)] and len(kept) >= 8
    assert more == f"and {5000 - len(kept)} more"


@pytest.mark.parametrize("rest", [0, 3])
def test_message_cuts_one_long_reason_between_characters(rest: int) -> None:
    text = blessing.message(["é" * 1000] + ["x"] * rest)
    assert len(text.encode()) <= blessing.MESSAGE_BYTES
    assert text.startswith("éé") and "…" in text and "\ufffd" not in text
    assert text.endswith("; and 3 more" if rest else "…")
    assert blessing.message([]) == ""
