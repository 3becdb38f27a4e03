"""Run the notebooks, keep their outputs, and turn them into pages of the site.

    python tools/notebooks.py [NAME ...]     # runs notebooks in place (extra `notebooks`)

The notebooks are in `notebooks/`.  A slow test runs each of them and compares what it prints with
what is stored.  As a hook of mkdocs this module adds one page per notebook to the site, with the
stored outputs, a link to the file and, where the address of the repository is known, one that opens
it in a hosted service (`links.py`).
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads this file alone

import links

FOLDER = links.ROOT / "notebooks"
LARGEST = 150_000  # bytes of a notebook with its outputs
TIMEOUT = 600  # seconds per cell


def paths() -> list[Path]:
    """All notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> dict[str, Any]:
    """The content of a notebook file."""
    return json.loads(path.read_text(encoding="utf-8"))


def text_of(value: str | list[str]) -> str:
    """Text of a notebook, which may be stored as lines."""
    return value if isinstance(value, str) else "".join(value)


def printed(notebook: dict[str, Any]) -> list[str]:
    """What the cells of a notebook print on their standard output, one entry per code cell."""
    return [
        "".join(text_of(one["text"]) for one in cell["outputs"] if one.get("name") == "stdout")
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def run(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Runs all cells in a new kernel, in a folder; returns the notebook with its outputs.

    Progress and log lines on the standard error are not kept: they differ from run to run.
    """
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.reads(json.dumps(notebook), as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        made, timeout=TIMEOUT, startup_timeout=200, kernel_name="python3", resources=resources
    ).execute()
    for cell in made.cells:
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    made.metadata["language_info"] = {"name": "python"}
    return json.loads(nbformat.writes(made))


def write(path: Path, notebook: dict[str, Any]) -> None:
    """Writes a notebook file."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def title(notebook: dict[str, Any]) -> str:
    """The first heading of a notebook."""
    return text_of(notebook["cells"][0]["source"]).splitlines()[0].removeprefix("# ")


def _words(output: dict[str, Any]) -> str:
    """What an output says; pictures say nothing."""
    data = output.get("data", {})
    return text_of(output.get("text", "" if "image/png" in data else data.get("text/plain", "")))


def page(path: Path, address: str | None) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook's page, and its pictures by file name."""
    pictures: dict[str, bytes] = {}
    parts = []
    for cell in read(path)["cells"]:
        source = text_of(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        if said := "".join(_words(output) for output in cell["outputs"]).rstrip():
            parts.append(f"```text\n{said}\n```")
        for output in cell["outputs"]:
            if drawn := output.get("data", {}).get("image/png"):
                name = f"{path.stem}_{len(pictures)}.png"
                pictures[name] = base64.b64decode(text_of(drawn))
                parts.append(f"![What the cell draws]({name})")
    opened = f"[Download the notebook]({path.name})"
    if link := links.colab_link(f"notebooks/{path.name}", address):
        opened += f" · [Open in Colab]({link})"
    parts.insert(1, opened)
    return "\n\n".join(parts) + "\n", pictures


def on_config(config: Any) -> Any:
    """Hook of mkdocs: links the repository, where its address is known."""
    if address := links.repository():
        config.repo_url = address
    return config


def on_files(files: Any, config: Any) -> Any:
    """Hook of mkdocs: adds a page per notebook, its pictures and the file itself."""
    from mkdocs.structure.files import File

    address = links.repository()
    for path in paths():
        markdown, pictures = page(path, address)
        made: dict[str, str | bytes] = {f"{path.stem}.md": markdown, path.name: path.read_bytes()}
        for name, content in (made | pictures).items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def main(arguments: list[str] | None = None) -> int:
    """Runs notebooks and writes their outputs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="stems of the notebooks (default: all)")
    options = parser.parse_args(arguments)
    for path in paths():
        if not options.names or path.stem in options.names:
            write(path, run(read(path), FOLDER))
            sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
