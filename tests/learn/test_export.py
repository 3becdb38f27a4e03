"""Exported policies: C, integers, ONNX and the contract compute what Python computes."""

import json
import os
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from learn_policies import needs_compiler, needs_cortex, random_policy

from warpmpc import SettingsError
from warpmpc.learn import DataError, export, parity
from warpmpc.learn.export.cortex_m4 import missing_tools, run_on_cortex_m4
from warpmpc.learn.export.export import extreme_states, output_range, typical_states
from warpmpc.learn.export.host import HostPolicy, host_compiler
from warpmpc.learn.export.onnx_file import onnx_bytes
from warpmpc.learn.export.quantize import quantize, run_quantized


@pytest.fixture(scope="module")
def crazyflie():
    """The published network's size."""
    return random_policy()


@pytest.fixture(scope="module")
def exported(crazyflie, tmp_path_factory):
    return export(crazyflie, tmp_path_factory.mktemp("export"))


@needs_compiler
@pytest.mark.parametrize("activation", ["leaky_relu", "relu", "tanh"])
@pytest.mark.parametrize("sizes", [(12, 32, 32, 32, 4), (2, 7, 5, 1), (3, 2)])
def test_c_is_python(sizes, activation, tmp_path):
    policy = random_policy(sizes, activation)
    export(policy, tmp_path)
    host = HostPolicy(tmp_path / "policy.c", tmp_path / "build", (sizes[0], sizes[-1]))
    x = np.concatenate([typical_states(policy, 10_000, 1), extreme_states(policy, 100, 2)])
    error = np.abs(host(x) - np.asarray(policy(x))) / output_range(policy)
    assert error.max() < 1e-5


@needs_compiler
def test_states_that_are_not_finite_give_the_safe_input(exported, crazyflie, tmp_path):
    for name in ("policy.c", "int16/policy.c", "int8/policy.c"):
        host = HostPolicy(exported.folder / name, tmp_path / name[:5], (12, 4))
        for value in (np.nan, np.inf, -np.inf):
            x = np.zeros((12, 12), dtype=np.float32)
            np.fill_diagonal(x, value)
            np.testing.assert_array_equal(host(x), np.tile(crazyflie.safe, (12, 1)))


@needs_compiler
@pytest.mark.parametrize("bits", [16, 8])
def test_integer_c_is_its_arithmetic_in_numpy(exported, crazyflie, tmp_path, bits):
    states = typical_states(crazyflie, 10_000, 2026)
    quantized = quantize(crazyflie, bits, states)
    source = exported.folder / f"int{bits}" / "policy.c"
    host = HostPolicy(source, tmp_path, (12, 4))
    x = np.concatenate([states[:2000], extreme_states(crazyflie, 100, 2)])
    error = np.abs(host(x) - run_quantized(crazyflie, quantized, x)) / output_range(crazyflie)
    assert error.max() < 1e-4
    assert np.median(error) < 1e-6


def test_quantisation_loses_what_is_stated(exported, crazyflie):
    assert exported.weight_bytes == {32: 10_640, 16: 2 * 2560 + 800, 8: 2560 + 800}
    assert exported.losses[16]["rms"] < 2e-5
    assert exported.losses[16]["rms"] < exported.losses[8]["rms"] < 5e-3
    states = typical_states(crazyflie, 10_000, 2026)
    found = run_quantized(crazyflie, quantize(crazyflie, 8, states), states)
    change = (found - np.asarray(crazyflie(states))) / output_range(crazyflie)
    assert exported.losses[8]["largest"] == pytest.approx(np.abs(change).max())
    stated = json.loads((exported.folder / "contract.json").read_text())["quantisation"]["int8"]
    assert stated == {**exported.losses[8], "weight_bytes": 3360}


def test_onnx_is_python(crazyflie, exported):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(
        exported.folder / "policy.onnx", providers=["CPUExecutionProvider"]
    )
    x = np.concatenate([typical_states(crazyflie, 10_000, 1), extreme_states(crazyflie, 100, 2)])
    error = np.abs(session.run(None, {"x": x})[0] - np.asarray(crazyflie(x)))
    assert (error / output_range(crazyflie)).max() < 1e-6
    assert session.run(None, {"x": x[:1]})[0].shape == (1, 4)  # any batch


@pytest.mark.parametrize("activation", ["leaky_relu", "relu", "tanh"])
def test_onnx_has_products_activations_and_limits_only(activation):
    onnx = pytest.importorskip("onnx")
    model = onnx.load_model_from_string(onnx_bytes(random_policy((3, 4, 2), activation)))
    kinds = {node.op_type for node in model.graph.node}
    expected = {"leaky_relu": "LeakyRelu", "relu": "Relu", "tanh": "Tanh"}[activation]
    assert kinds == {"Gemm", "Clip", expected}


def test_contract_has_everything_and_its_vectors_hold(policy, tmp_path):
    export(policy, tmp_path)
    contract = json.loads((tmp_path / "contract.json").read_text())
    assert [entry["name"] for entry in contract["states"]] == ["position", "velocity"]
    assert [entry["unit"] for entry in contract["inputs"]] == ["N"]
    assert contract["fingerprint"] == policy.fingerprint
    assert len(contract["problem"]) == 64
    x, u = np.array(contract["vectors"]["x"]), np.array(contract["vectors"]["u"])
    assert x.shape == (64, 2)
    np.testing.assert_allclose(policy(x), u, atol=1e-5)
    assert "fingerprint of the policy: " + policy.fingerprint in (tmp_path / "policy.h").read_text()


@needs_compiler
def test_c_is_plain_c99_and_c_plus_plus_can_call_it(exported, tmp_path):
    source = (exported.folder / "policy.c").read_text()
    assert set(re.findall(r"#include (\S+)", source)) == {'"policy.h"', "<stdint.h>"}
    symbols = tmp_path / "policy.o"
    command = [host_compiler(), "-std=c99", "-O2", "-ffreestanding", "-c"]
    path = str(exported.folder / "policy.c")
    subprocess.run([*command, path, "-o", str(symbols)], check=True)
    found = subprocess.run(["nm", str(symbols)], capture_output=True, text=True, check=True)
    names = [line.split()[-2:] for line in found.stdout.splitlines()]
    assert [name for kind, name in names if kind == "T"] == ["policy"]
    assert {name for kind, name in names if kind == "U"} <= {"_GLOBAL_OFFSET_TABLE_", "memcpy"}
    assert not [name for kind, name in names if kind in "BbDd"]  # all data are constant


@needs_compiler
def test_parity_agrees_and_notices_a_changed_weight(exported, crazyflie):
    found = parity(crazyflie, exported.folder)
    assert found.agrees, found.table()
    assert found.row("C float32").ran
    assert "ok    C float32" in found.table()
    weight, bias = crazyflie.weights[0]
    other = replace(crazyflie, weights=((weight * 1.01, bias), *crazyflie.weights[1:]))
    wrong = parity(other, exported.folder)
    assert not wrong.row("C float32").agrees
    assert not wrong.agrees
    assert "WRONG" in wrong.table()


@needs_cortex
def test_cortex_m4_is_the_host_within_the_budget(exported, crazyflie, tmp_path):
    x = np.concatenate([typical_states(crazyflie, 60, 1), extreme_states(crazyflie, 20, 2)])
    x = np.concatenate([x, np.full((1, 12), np.nan, np.float32)])
    for label, flash in (("float32", 13_000), ("int16", 9_000), ("int8", 6_000)):
        source = exported.folder / ("" if label == "float32" else label) / "policy.c"
        report = run_on_cortex_m4(source, tmp_path / label, x, 4)
        host = HostPolicy(source, tmp_path / label, (12, 4))(x)
        error = np.abs(report.u - host) / output_range(crazyflie)
        assert error.max() < (1e-6 if label == "float32" else 1e-4)
        assert report.flash < flash
        assert report.ram == 0
        assert report.stack < 1024
        assert 2560 < report.instructions < (8_500 if label == "float32" else 20_000)


def test_tools_that_are_missing_are_named(exported, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len(missing_tools()) == 3
    with pytest.raises(DataError, match="apt-get install"):
        run_on_cortex_m4(exported.folder / "policy.c", tmp_path, np.zeros((1, 12)), 4)
    with pytest.raises(DataError, match="No C compiler"):
        HostPolicy(exported.folder / "policy.c", tmp_path, (12, 4))


def test_parity_without_tools_says_so(exported, crazyflie, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = parity(crazyflie, exported.folder)
    assert not found.row("C float32").ran
    assert "no C compiler" in found.table()


@needs_compiler
def test_source_that_does_not_compile_is_said(tmp_path):
    (tmp_path / "policy.c").write_text("this is no C")
    with pytest.raises(DataError, match="cannot be compiled"):
        HostPolicy(tmp_path / "policy.c", tmp_path / "build", (1, 1))


def test_wrong_bits(crazyflie):
    with pytest.raises(SettingsError, match="4"):
        quantize(crazyflie, 4, np.zeros((1, 12)))


@needs_compiler
def test_wrong_states_for_the_host(exported, tmp_path):
    host = HostPolicy(exported.folder / "policy.c", tmp_path, (12, 4))
    with pytest.raises(DataError, match="takes 12 states"):
        host(np.zeros((1, 3)))


def test_folder_of_a_read_only_disk(crazyflie, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        export(crazyflie, blocked / os.sep.join(["a", "b"]))
