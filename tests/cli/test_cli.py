"""The command line: reports, exit codes, and errors in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from warpmpc import systems
from warpmpc.cli import environment
from warpmpc.cli.main import build_parser, commands, main
from warpmpc.codegen.cache import cache_folder

COMMANDS = commands()


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout


def test_info_json(capsys):
    assert main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["jax"] == jax.__version__
    assert None not in [report["versions"][name] for name in ("numpy", "scipy", "warp-lang")]
    assert [d["id"] for d in report["devices"]] == [device.id for device in jax.devices()]
    assert report["cuda"] == (jax.default_backend() == "gpu")
    works = {feature["name"]: feature["works"] for feature in report["features"]}
    assert works["warp backend"]
    assert works["float64"]  # conftest turns it on
    assert works["CUDA"] == report["cuda"]
    assert all(feature["detail"] for feature in report["features"])


def test_info_text_names_everything(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for word in (*environment.REQUIRED, *environment.OPTIONAL, "Devices", "cpu:0"):
        assert word in text
    for folder in (environment.warp_cache_folder(), cache_folder()):
        assert f" {folder} " in text


@pytest.mark.parametrize("moved", [False, True])
def test_kernel_cache_is_the_one_warp_uses(monkeypatch, tmp_path, moved):
    if moved:
        monkeypatch.setenv("WARP_CACHE_PATH", str(tmp_path))
    else:
        monkeypatch.delenv("WARP_CACHE_PATH", raising=False)
    told = python("import warp as wp; wp.init(); print(wp.config.kernel_cache_dir)")
    assert environment.warp_cache_folder() == Path(told.splitlines()[-1])


def test_system_json(capsys):
    """Sizes of the published cartpole; K in full has both triangles."""
    assert main(["info", "cartpole", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["horizon"], report["n_x"], report["n_u"]) == (100, 4, 1)
    assert report["n"] == 505
    solver = systems.make("cartpole").solver()
    K = solver.qp.structure.kkt.K_pattern
    assert report["nnz_K"] == 2 * K.nnz - K.n_cols
    assert report["n_params"] == 4 + sum(report["params"].values())
    assert sum(g["stages"] for g in report["programs"]) == 101
    assert report["bytes_per_instance"] == solver.bytes_per_instance
    if report["engine"] == "staged":
        assert report["nnz_L"] == solver.qp.loop.program.n_L


def test_system_text(capsys):
    assert main(["info", "obstacles"]) == 0  # the short name of quadrotor_obstacles
    text = capsys.readouterr().out
    for part in ("quadrotor_obstacles: ", "horizon 40", "1 SQP x 100 ADMM", "MB per instance"):
        assert part in text


@pytest.mark.slow
def test_system_info_of_the_humanoid(capsys):
    pytest.importorskip("mujoco")
    assert main(["info", "humanoid"]) == 0
    text = capsys.readouterr().out
    assert "n = 1704, m = 3234" in text
    assert "nnz(K) = 63142" in text


def test_pattern_json(capsys):
    assert main(["info", "--pattern", "ldl_benchmark", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    expected = {
        "n": 396, "m": 684, "dimension": 1080, "nnz_P": 396, "nnz_A": 2076, "nnz_K_upper": 3156,
        "nnz_K_full": 5232, "nnz_L": 5732, "levels": 287, "segments": 16, "stages": 25,
        "repeating_stages": 0, "repeating_from": None, "figures": [],
    }  # fmt: skip
    assert {key: report[key] for key in expected} == expected
    assert 0 < report["segments_padded_share"] < 1


def test_pattern_text_and_figures(capsys, tmp_path):
    arguments = ["info", "--pattern", "cartpole", "--ordering", "stage", "--segments", "8"]
    assert main([*arguments, "--figures", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "nnz(L) = 3802" in text
    assert "8 for the columns of L" in text
    assert "101, of which 99 repeat (1 to 99); frontier of 4 nodes" in text
    written = sorted(tmp_path.glob("*.png"))
    assert len(written) == 3
    assert all(str(path) in text for path in written)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pattern", "nothing"], "Unknown pattern 'nothing'"),
        (["--pattern", "cartpole", "--ordering", "best"], "Unknown ordering 'best'"),
        (["--pattern", "cartpole", "--segments", "0"], "at least 1, got 0"),
        (["--figures", "somewhere"], "--figures needs --pattern"),
        (["--segments", "0"], "--segments needs --pattern"),
        (["carpole"], "Unknown system 'carpole'"),
        (["cartpole", "--pattern", "cartpole"], "NAME and --pattern are different reports"),
        (["cartpole", "--figures", "somewhere"], "--figures needs --pattern"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert main(["info", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["info", "--segments", "many"]])
def test_usage_errors(capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: warpmpc" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert COMMANDS[name].HELP.split()[0] in capsys.readouterr().out


def examples(text):
    """Command lines of a help text, without their explanations."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("  warpmpc ")]
    return [re.split(r"\s{2,}", line)[0].split()[1:] for line in lines]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches(capsys, name):
    """Examples that parse, and exit codes."""
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert "exit codes:" in text
    assert "130" in text
    found = [words for words in examples(text) if "NAME" not in words]
    assert len(found) >= 2
    for words in found:
        assert build_parser().parse_args(words).command == name


def test_general_help_names_all_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert {words[0] for words in examples(text)} - {"COMMAND"} == set(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["slove"], "solve"), (["bench", "cartpol"], "cartpole")]
)
def test_misspelt_names_are_guessed(capsys, arguments, meant):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err


def test_reader_may_stop_early():
    command = f"'{sys.executable}' -m warpmpc.cli.main info --pattern cartpole | true"
    run = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True)
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("driver", "plugin", "advice"),
    [(False, None, "No NVIDIA driver"), (True, None, "jax[cuda13]"), (True, "1", "nvidia-smi")],
)
def test_missing_cuda_is_explained(monkeypatch, tmp_path, driver, plugin, advice):
    monkeypatch.setattr(environment, "NVIDIA_DRIVER", tmp_path if driver else tmp_path / "none")
    monkeypatch.setattr(environment, "version_of", lambda name: plugin)
    cuda = {f.name: f for f in environment.features(on_cuda=False)}["CUDA"]
    assert not cuda.works
    assert advice in cuda.detail


def test_missing_packages_are_explained(monkeypatch):
    monkeypatch.setattr(environment, "version_of", lambda name: None)
    found = {f.name: f for f in environment.features(on_cuda=False)}
    assert "pip install matplotlib" in found["figures"].detail
    assert "pip install nvmath-python" in found["cuDSS baseline"].detail


def test_broken_jax_is_reported(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend\nlong story")

    monkeypatch.setattr(jax, "devices", fail)
    report = environment.describe()
    assert report["devices"] == []
    assert report["device_error"] == "Unable to initialize backend"
    assert not any(f["works"] for f in report["features"] if f["name"].endswith("backend"))
