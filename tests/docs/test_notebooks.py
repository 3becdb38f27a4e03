"""The notebooks run, print what is stored, and become pages."""

from __future__ import annotations

import base64
import json

import links
import notebooks
import pytest

NAMES = [path.stem for path in notebooks.paths()]
FIVE = {"first_batch", "own_problem", "learn_policy", "robot_from_file", "differentiate"}


def test_there_are_five():
    assert set(NAMES) == FIVE


@pytest.mark.parametrize("path", notebooks.paths(), ids=NAMES)
def test_a_notebook_is_executed_and_small(path):
    notebook = notebooks.read(path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(one["output_type"] == "error" for cell in cells for one in cell["outputs"])
    assert any(notebooks.printed(notebook))
    assert path.stat().st_size < notebooks.LARGEST
    assert "pip install '.[" in notebooks.text_of(notebook["cells"][0]["source"])


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks.paths(), ids=NAMES)
def test_a_notebook_prints_what_is_stored(path, tmp_path):
    stored = notebooks.read(path)
    assert notebooks.printed(notebooks.run(stored, tmp_path)) == notebooks.printed(stored)


@pytest.mark.slow
def test_a_failing_cell_ends_the_run(tmp_path):
    notebook = notebooks.read(notebooks.FOLDER / "first_batch.ipynb")
    notebook["cells"] = [{**notebook["cells"][1], "source": ["1 / 0"], "outputs": []}]
    with pytest.raises(Exception, match="ZeroDivisionError"):
        notebooks.run(notebook, tmp_path)


def test_the_page_of_a_notebook(tmp_path):
    picture = base64.b64encode(b"png").decode()
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["two\n"]},
        {"output_type": "display_data", "data": {"image/png": picture, "text/plain": "<Figure>"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# A title\n", "Words."]},
        {"cell_type": "code", "source": ["print('two')"], "outputs": outputs},
    ]
    path = tmp_path / "lesson.ipynb"
    path.write_text(json.dumps({"cells": cells}))
    markdown, pictures = notebooks.page(path, None)
    assert markdown == (
        "# A title\nWords.\n\n[Download the notebook](lesson.ipynb)\n\n"
        "```python\nprint('two')\n```\n\n```text\ntwo\n```\n\n"
        "![What the cell draws](lesson_0.png)\n"
    )
    assert pictures == {"lesson_0.png": b"png"}
    markdown, _ = notebooks.page(path, "https://github.com/some/one")
    colab = "https://colab.research.google.com/github/some/one/blob/main/notebooks/lesson.ipynb"
    assert f"[Open in Colab]({colab})" in markdown
    assert links.colab_link("notebooks/lesson.ipynb", "https://gitlab.com/some/one") is None
