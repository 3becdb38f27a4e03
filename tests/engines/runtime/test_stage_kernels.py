"""Stage kernels on tiles against CasADi's evaluation of every stage and problem."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import warp as wp
from codegen_cases import all_operations, differences, edge_pairs

from warpmpc._errors import CodegenError, ProblemError
from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.ir import Op
from warpmpc.engines.runtime import loading
from warpmpc.engines.runtime.batching import LANES, from_tiles, to_tiles
from warpmpc.engines.runtime.loading import start_warp
from warpmpc.engines.runtime.stage_kernels import StageCase, StageKernels
from warpmpc.systems.synthetic import sample, synthetic_function

N = 4  # stages before the last one
ACCURACY = {"float32": 1e-5, "float64": 1e-13}
DTYPES = list(ACCURACY)


def functions() -> tuple[ca.Function, ca.Function]:
    """A stage and a last stage; p is a shared value, then two per stage."""
    z, z_next, p = ca.SX.sym("z", 3), ca.SX.sym("z_next", 3), ca.SX.sym("p", 3)
    cost = p[0] * ca.sumsqr(z)
    g = ca.vertcat(z_next[0] - ca.sin(z[0]), ca.if_else(z[1] > 0, p[1], z[2] * p[2]))
    middle = ca.Function("middle", [ca.vertcat(z, z_next), p], [cost, g])
    return middle, ca.Function("last", [z, p], [2 * cost, z[0] - p[1]])


def example_cases() -> list[StageCase]:
    middle, last = functions()
    ks = np.arange(N)
    return [
        StageCase(
            translate(middle),
            ks,
            (3 * ks[:, None] + np.arange(6), np.stack([0 * ks, 2 * ks + 1, 2 * ks + 2], axis=1)),
            (ks[:, None], 2 * ks[:, None] + np.arange(2)),
        ),
        StageCase(
            translate(last),
            np.array([N]),
            (3 * N + np.arange(3)[None], np.array([[0, 2 * N + 1, 2 * N + 2]])),
            (np.array([[N]]), np.array([[2 * N]])),
        ),
    ]


def example(dtype: str) -> StageKernels:
    outputs = {"cost": N + 1, "g": 2 * N + 1}
    return StageKernels("example", example_cases(), ["z", "p"], outputs, dtype, 'A "title"\\')


def arguments(z_tiles: int, p_tiles: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    shapes = (z_tiles, 3 * (N + 1), LANES), (p_tiles, 2 * N + 3, LANES)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype=dtype) for shape in shapes)


def expected(z: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cost and g of one problem."""
    middle, last = functions()
    costs, rows = [], []
    for k in range(N + 1):
        function, size = (middle, 6) if k < N else (last, 3)
        cost, g = function(z[3 * k : 3 * k + size], p[[0, 2 * k + 1, 2 * k + 2]])
        costs.append(float(cost))
        rows += np.array(g).ravel().tolist()
    return np.array(costs), np.array(rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p_tiles", [3, 1])
def test_every_stage_of_every_problem(dtype, p_tiles):
    """Parameters that all tiles share are read again and again."""
    z, p = arguments(3, p_tiles, dtype)
    cost, g = jax.jit(example(dtype))(z, p)
    assert (cost.dtype, g.dtype) == (dtype, dtype)
    assert (cost.shape, g.shape) == ((3, N + 1, LANES), (3, 2 * N + 1, LANES))
    for tile in range(3):
        for lane in range(0, LANES, 5):
            wanted = expected(
                np.asarray(z[tile, :, lane], dtype=np.float64),
                np.asarray(p[tile % p_tiles, :, lane], dtype=np.float64),
            )
            for got, want in zip((cost, g), wanted, strict=True):
                np.testing.assert_allclose(got[tile, :, lane], want, atol=ACCURACY[dtype])


@pytest.mark.parametrize("batch", [1, 3])
def test_long_programs_are_kernels_of_their_own(batch):
    """Same bits, and the rows of the others stay; short programs share a kernel."""
    z, p = arguments(batch, batch, "float32")
    outputs = {"cost": N + 1, "g": 2 * N + 1}
    given = (example_cases(), ["z", "p"], outputs, "float32")
    apart = StageKernels("apart", *given, long=1)
    assert [source.name for source in apart.sources] == ["apart", "apart_1"]
    assert [plan.n_items for plan in apart.plans] == [N, 1]  # the longest program first
    for found, wanted in zip(jax.jit(apart)(z, p), example("float32")(z, p), strict=True):
        np.testing.assert_array_equal(found, wanted)
    lengths = [case.program.n_ops for case in example_cases()]
    assert len(StageKernels("one", *given, long=max(lengths)).sources) == 1


def test_outside_of_jit_and_in_another_order_of_tiles():
    kernels = example("float64")
    z, p = arguments(2, 2, "float64")
    forward, backward = kernels(z, p), kernels(z[::-1], p[::-1])
    for a, b in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(a, b[::-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_operations_at_their_edges(dtype):
    program = translate(all_operations())
    n = len(Op)
    case = StageCase(program, np.array([0]), (np.arange(2)[None],), (np.arange(n)[None],))
    pairs = jnp.asarray(edge_pairs(dtype))
    (values,) = StageKernels("operations", [case], ["x"], {"y": n}, dtype)(to_tiles(pairs))
    values = np.asarray(from_tiles(values, len(pairs)))
    found = {op.name: differences(values[:, op], op, dtype) for op in Op}
    assert {name: bad for name, bad in found.items() if bad} == {}


def synthetic_kernels(target: int, dtype: str) -> StageKernels:
    rows = np.arange(8)[None]
    case = StageCase(translate(synthetic_function(target)), np.array([0]), (rows, rows), (rows,))
    return StageKernels("synthetic", [case], ["x", "u"], {"s": 8}, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_program_in_chunks(dtype):
    kernels = synthetic_kernels(2500, dtype)
    x, u = sample(np.random.default_rng(1), 40)
    (s,) = kernels(to_tiles(jnp.asarray(x, dtype)), to_tiles(jnp.asarray(u, dtype)))
    oracle = np.array(synthetic_function(2500).map(40)(x.T, u.T)).T
    np.testing.assert_allclose(from_tiles(s, 40), oracle, atol=ACCURACY[dtype])


def test_rows_in_no_order_and_unused_inputs():
    """Rows that follow no rule at all, one row read by several elements, an input of size 0."""
    rng = np.random.default_rng(2)
    x, unused = ca.SX.sym("x", 4), ca.SX.sym("unused", 0)
    program = translate(ca.Function("f", [x, unused], [ca.vertcat(x[0] * x[1], x[2] - x[3])]))
    in_rows = rng.integers(0, 10, size=(6, 4))
    out_rows = rng.permutation(12).reshape(6, 2)
    stages = np.array([3, 1, 4, 1, 5, 9])
    case = StageCase(program, stages, (in_rows, np.zeros((6, 0), dtype=int)), (out_rows,))
    kernels = StageKernels("mixed", [case], ["x", "unused"], {"y": 12}, "float64")
    values = rng.normal(size=(2, 10, LANES))
    (y,) = kernels(jnp.asarray(values), jnp.zeros((1, 0, LANES)))
    a, b, c, d = (values[:, in_rows[:, i]] for i in range(4))
    np.testing.assert_allclose(y[:, out_rows[:, 0]], a * b)
    np.testing.assert_allclose(y[:, out_rows[:, 1]], c - d)


@pytest.mark.parametrize("dtype", DTYPES)
def test_builds_for_cuda_without_a_device(dtype, tmp_path):
    kernel = synthetic_kernels(2500, dtype).sources[0].kernel()
    wp.compile_aot_module(kernel.module, arch=90, module_dir=str(tmp_path), use_ptx=True)
    (path,) = tmp_path.glob("*.ptx")
    text = path.read_text()
    assert text.count("ld.global.nc") >= 16  # read-only arrays come through the read-only path


class TestRefusals:
    def make(self, cases=None, inputs=("z", "p"), outputs=None):
        outputs = {"cost": N + 1, "g": 2 * N + 1} if outputs is None else outputs
        return StageKernels(
            "k", example_cases() if cases is None else cases, inputs, outputs, "float64"
        )

    def changed(self, number: int, **change: object) -> list[StageCase]:
        cases = example_cases()
        cases[number] = replace(cases[number], **change)
        return cases

    @pytest.mark.parametrize(
        ("inputs", "outputs", "message"),
        [
            (("z", "my p"), None, "'my p' is no name for generated code"),
            (("z", "class"), None, "'class' is no name for generated code"),
            (("z", "wp"), None, "no keyword and none of BODY, wp"),
            (("z", "z"), None, "inputs with different names"),
            (("z",), None, "one input per input array"),
            (None, {"cost": N + 1}, "one output per output array"),
            (None, {"cost": N + 2, "g": 2 * N + 1}, "'cost' must be written exactly once"),
            (None, {"cost": N + 1, "g": 2 * N}, "'g' must be written exactly once"),
        ],
    )
    def test_arrays(self, inputs, outputs, message):
        with pytest.raises(CodegenError, match=message):
            self.make(inputs=inputs or ("z", "p"), outputs=outputs)

    def test_no_cases(self):
        with pytest.raises(CodegenError, match="at least one program"):
            self.make(cases=[])

    def test_case_without_stages(self):
        with pytest.raises(CodegenError, match="every program a stage"):
            self.make(self.changed(0, stages=np.zeros(0, dtype=int)))

    def test_rows_of_wrong_shape(self):
        with pytest.raises(CodegenError, match="one row per stage and element"):
            self.make(self.changed(0, stages=np.arange(N - 1)))

    def test_negative_row(self):
        cases = example_cases()
        with pytest.raises(CodegenError, match="negative row"):
            self.make(self.changed(1, in_rows=(cases[1].in_rows[0] - 50, cases[1].in_rows[1])))

    def test_row_written_twice(self):
        with pytest.raises(CodegenError, match="'cost' must be written exactly once"):
            self.make(self.changed(1, out_rows=(np.array([[0]]), np.array([[2 * N]]))))

    def test_number_of_arrays(self):
        with pytest.raises(CodegenError, match=r"example takes 2 arrays \('z', 'p'\), got 1"):
            example("float64")(jnp.zeros((1, 15, LANES)))

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [
            ((1, 14, 32), "float64"),
            ((1, 15, 31), "float64"),
            ((15, 32), "float64"),
            ((1, 15, 32), "float32"),
        ],
    )
    def test_arrays_that_do_not_fit(self, shape, dtype):
        with pytest.raises(CodegenError, match=r"z is .* expected float64.*at least 15 rows, 32"):
            example("float64")(jnp.zeros(shape, dtype), jnp.zeros((1, 11, 32)))

    def test_too_many_threads(self):
        z = jax.ShapeDtypeStruct((20_000_000, 15, 32), "float64")
        p = jax.ShapeDtypeStruct((1, 11, 32), "float64")
        with pytest.raises(ProblemError, match="split the batch"):
            jax.eval_shape(example("float64"), z, p)


# Another process: nothing of this one's kernels is left in memory.
SCRIPT = """
import sys
import jax.numpy as jnp
import numpy as np
import warp as wp
from warpmpc.codegen.ir import Op, ScalarProgram
from warpmpc.engines.runtime.stage_kernels import StageCase, StageKernels
program = ScalarProgram(
    "double", ("x",), (1,), ("y",), np.zeros(0), np.array([Op.TWICE], dtype=np.uint8),
    np.array([0]), np.array([-1]), (np.array([1]),),
)
rows = np.array([[0]])
kernels = StageKernels("double", [StageCase(program, np.array([0]), (rows,), (rows,))], ["x"],
                       {"y": 1}, "float32")
(y,) = kernels(jnp.full((1, 1, 32), 3.0, dtype="float32"))
assert float(y[0, 0, 31]) == 6
"""


def run_script(folder: Path, **more: str) -> str:
    """Standard error of a process whose caches are below `folder`; it lists what was compiled."""
    environment = {
        **os.environ,
        "WARPMPC_CACHE_DIR": str(folder / "modules"),
        "WARP_CACHE_PATH": str(folder / "kernels"),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning" not in done.stderr
    assert "NVIDIA CUDA driver" not in done.stderr
    return done.stderr


def files_of(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}


def test_a_second_process_compiles_nothing_and_damage_is_mended(tmp_path):
    run_script(tmp_path)
    first = files_of(tmp_path)
    mine = [name for name in first if "double" in name]  # beside them, what shares launches
    (binary,) = (name for name in mine if name.endswith((".o", ".cubin", ".ptx")))
    (module,) = (name for name in mine if name.startswith("modules"))
    assert "RuntimeWarning" not in run_script(tmp_path)
    assert files_of(tmp_path) == first
    size = (tmp_path / binary).stat().st_size
    (tmp_path / binary).write_bytes((tmp_path / binary).read_bytes()[:500])
    (tmp_path / module).write_text("damaged")
    said = run_script(tmp_path)
    assert "is damaged; its code is generated again" in said
    assert "compiled kernel" in said
    assert (tmp_path / binary).stat().st_size == size
    assert "RuntimeWarning" not in run_script(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [bytes(512), np.random.default_rng(0).bytes(512)])
def test_full_length_damage_and_open_files_are_mended_in_a_fresh_process(tmp_path, noise):
    """Zeroed and random blocks, then files and folders that everybody may write."""
    run_script(tmp_path)
    mine = [name for name in files_of(tmp_path) if "double" in name]
    (binary,) = (tmp_path / name for name in mine if name.endswith((".o", ".cubin", ".ptx")))
    content = binary.read_bytes()
    binary.write_bytes(content[:300] + noise[: len(content) - 300] + content[300 + len(noise) :])
    assert binary.stat().st_size == len(content)
    assert "is not what was written); it is built again" in run_script(tmp_path)
    assert "RuntimeWarning" not in run_script(tmp_path)
    binary.chmod(0o666)
    assert "can be written by every user); it is built again" in run_script(tmp_path)
    assert "RuntimeWarning" not in run_script(tmp_path)
    for folder in ("modules", "kernels"):
        (tmp_path / folder).chmod(0o777)
        assert "can be written by every user" in run_script(tmp_path)
        (tmp_path / folder).chmod(0o700)
        assert "RuntimeWarning" not in run_script(tmp_path)


def test_unwritable_folders(tmp_path):
    (tmp_path / "file").write_text("no folder")
    blocked = str(tmp_path / "file" / "below")
    said = run_script(tmp_path, WARPMPC_CACHE_DIR=blocked, WARP_CACHE_PATH=blocked)
    assert "Set WARPMPC_CACHE_DIR to a folder that can be written" in said
    assert "Set WARP_CACHE_PATH to a folder that can be written" in said


def test_kernel_cache_that_became_unwritable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    start_warp()  # it chooses the folder that is put back afterwards
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / "file" / "below"))
    loading.load_kernel.cache_clear()
    x = ca.SX.sym("x")
    rows = np.array([[0]])
    case = StageCase(translate(ca.Function("f", [x], [x * 17])), np.array([0]), (rows,), (rows,))
    kernels = StageKernels("unwritable", [case], ["x"], {"y": 1}, "float64")
    with pytest.warns(RuntimeWarning, match="Warp's kernel cache is not writable"):
        (y,) = kernels(jnp.ones((1, 1, LANES)))
    assert float(y[0, 0, 0]) == 17


def test_text_that_does_not_compile(monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("WARPMPC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("warpmpc.codegen.stage_functions.PREAMBLE", {"float64": "#error broken"})
    x = ca.SX.sym("x")
    rows = np.array([[0]])
    case = StageCase(translate(ca.Function("f", [x], [x + 1])), np.array([0]), (rows,), (rows,))
    kernels = StageKernels("broken", [case], ["x"], {"y": 1}, "float64")
    with pytest.raises(CodegenError, match="Kernel broken could not be built"):
        kernels(jnp.ones((1, 1, LANES)))
    assert "broken" in "".join(capfd.readouterr())
