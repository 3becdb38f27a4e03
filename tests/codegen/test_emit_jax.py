"""Programs as JAX functions against CasADi's own evaluation."""

import time

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from codegen_cases import all_operations, differences, edge_pairs

from warpmpc._errors import ProblemError
from warpmpc.codegen import emit_jax
from warpmpc.codegen.emit_jax import _kept, jax_function
from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.ir import Op
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel
from warpmpc.systems import humanoid
from warpmpc.systems.synthetic import sample, synthetic_function

ACCURACY = {"float32": 2e-6, "float64": 1e-14}


@pytest.fixture(scope="module", params=["float32", "float64"])
def at_edges(request) -> tuple[str, np.ndarray]:
    function = jax.jit(jax_function(translate(all_operations())))
    return request.param, np.asarray(function(jnp.asarray(edge_pairs(request.param)))[0])


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_operation_at_its_edges(at_edges, op):
    dtype, values = at_edges
    assert values.dtype == dtype
    assert differences(values[:, op], op, dtype) == []


def test_subnormal_numbers_count_as_zero():
    """The one deviation that XLA brings."""
    x = ca.SX.sym("x")
    function = jax.jit(jax_function(translate(ca.Function("f", [x], [2 * x]))))
    assert function(jnp.array([1e-310]))[0] == 0


def test_infinity_times_a_comparison_that_fails():
    """No number, though XLA would rather select than multiply."""
    x = ca.SX.sym("x", 2)
    products = ca.vertcat(x[0] * (x[1] < 0), ca.logic_not(x[1]) * x[0])
    function = jax.jit(jax_function(translate(ca.Function("f", [x], [products]))))
    assert np.isnan(function(jnp.array([np.inf, 1.0]))[0]).all()


@pytest.mark.parametrize("dtype", ACCURACY)
def test_synthetic_function(dtype):
    function = synthetic_function(2000)
    x, u = sample(np.random.default_rng(0), 5)
    (s,) = jax.jit(jax_function(translate(function)))(x.astype(dtype), u.astype(dtype))
    assert s.dtype == dtype
    np.testing.assert_allclose(s, np.array(function.map(5)(x.T, u.T)).T, atol=ACCURACY[dtype])


def product() -> ca.Function:
    """Two inputs of different size, two outputs, one of them sparse."""
    x, p = ca.SX.sym("x", 3), ca.SX.sym("p", 2)
    sparse = ca.diag(ca.vertcat(x[0] * p[0], x[1]))
    return ca.Function("f", [x, p], [sparse, ca.sum1(x) * p[1]])


def test_leading_axes_broadcast():
    rng = np.random.default_rng(1)
    x, p = rng.normal(size=(4, 1, 3)), rng.normal(size=(5, 2))
    with jax.numpy_rank_promotion("allow"):
        diagonal, total = jax_function(translate(product()))(jnp.asarray(x), jnp.asarray(p))
    assert diagonal.shape == (4, 5, 2)
    np.testing.assert_allclose(total[..., 0], x.sum(-1) * p[:, 1])
    np.testing.assert_allclose(diagonal[..., 0], x[..., 0] * p[:, 0])


def test_single_point_and_vmap():
    function = jax_function(translate(product()))
    rng = np.random.default_rng(2)
    x, p = jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(rng.normal(size=(6, 2)))
    batched = function(x, p)
    for mapped, single, whole in zip(
        jax.vmap(function)(x, p), function(x[2], p[2]), batched, strict=True
    ):
        np.testing.assert_allclose(mapped, whole)
        np.testing.assert_allclose(single, whole[2])


def test_derivatives_through_kept_values():
    """Long enough that values are kept; CasADi differentiates on its own."""
    function = synthetic_function(200)
    x, u = sample(np.random.default_rng(3), 1)
    assert _kept(translate(function)).any()
    program = jax_function(translate(function))
    jacobian = jax.jit(jax.jacfwd(lambda x: program(x, jnp.asarray(u[0]))[0]))(jnp.asarray(x[0]))
    oracle = np.array(function.jacobian()(x[0], u[0], 0)[0])
    np.testing.assert_allclose(jacobian, oracle, rtol=1e-10, atol=1e-12)


def test_work_grows_linearly():
    """What XLA emits per operation does not grow with the length of the program."""

    def instructions(target: int) -> float:
        program = translate(synthetic_function(target))
        point = jnp.zeros((64, 8), dtype="float32")
        text = jax.jit(jax_function(program)).lower(point, point).compile().as_text()
        return text.count(" = ") / program.n_ops

    assert instructions(2000) < 1.2 * instructions(600) < 6


@pytest.mark.parametrize("not_a_number", [np.nan, np.inf])
def test_first_input_does_not_matter(not_a_number):
    """The opaque one is one even where the value it is made from is NaN."""
    function = synthetic_function(500)
    wide = ca.SX.sym("wide", 9)
    shifted = ca.Function("f", [wide], [function(wide[1:], -wide[1:])])
    x = np.append(not_a_number, np.linspace(-0.1, 0.1, 8))
    (s,) = jax.jit(jax_function(translate(shifted)))(jnp.asarray(x))
    np.testing.assert_allclose(s, np.array(shifted(x)).ravel(), rtol=1e-13)


def test_no_inputs_and_empty_outputs():
    x = ca.SX.sym("x", 2)
    (constant,) = jax_function(translate(ca.Function("f", [], [ca.SX([1, 2])])))()
    np.testing.assert_array_equal(constant, [1, 2])
    (empty,) = jax_function(translate(ca.Function("f", [x], [ca.SX(0, 1)])))(jnp.zeros((3, 2)))
    assert empty.shape == (3, 0)


def test_outputs_that_repeat_values():
    """Stacked once: thousands of copies compile as quickly as one."""
    x = ca.SX.sym("x", 2)
    function = jax.jit(jax_function(translate(ca.Function("f", [x], [ca.repmat(2 * x, 3000, 1)]))))
    (values,) = function(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(values, np.tile([[2.0, 4.0], [6.0, 8.0]], 3000))


def test_whole_numbers_become_floats():
    (total, *_) = jax_function(translate(product()))(jnp.arange(3), jnp.arange(2))
    assert total.dtype == jnp.result_type(float)


class TestRefusals:
    function = staticmethod(jax_function(translate(product())))

    def test_number_of_arrays(self):
        with pytest.raises(ProblemError, match=r"f takes 2 arrays \('i0', 'i1'\), got 1"):
            self.function(jnp.zeros(3))

    @pytest.mark.parametrize("shape", [(), (4,), (3, 5)])
    def test_shape(self, shape):
        with pytest.raises(ProblemError, match=r"i0 has shape .* must have length 3"):
            self.function(jnp.zeros(shape), jnp.zeros(2))


def test_long_programs_on_a_gpu_warn(monkeypatch):
    """XLA for CUDA would seem to hang."""
    function = jax_function(translate(synthetic_function(4200)))
    x, u = sample(np.random.default_rng(0), 2)
    monkeypatch.setattr(emit_jax.jax, "default_backend", lambda: "gpu")
    with pytest.warns(RuntimeWarning, match=r"has 4\d\d\d operations: .* Evaluate it natively"):
        jax.eval_shape(function, x, u)


@pytest.mark.slow
def test_a_stage_of_the_humanoid():
    """Violations and rows of a stage; compile time grows no faster than the length."""
    pytest.importorskip("mujoco")
    problem = humanoid.build(7)
    rng, rates = np.random.default_rng(0), []
    for k, outputs in ((7, None), (7, ["q", "A"])):
        model = StageModel.build(problem, problem.stages[k], HessianRule())
        casadi = model.evaluate("f") if outputs is None else model.linearize("f", outputs)
        program = translate(casadi)
        function = jax.jit(jax_function(program))
        given = [0.1 * rng.normal(size=(3, size)) for size in program.input_sizes]
        begin = time.process_time()
        compiled = function.lower(*given).compile()
        rates.append((time.process_time() - begin) / program.n_ops)
        for b in range(3):
            wanted = casadi.call([array[b] for array in given])
            for found, value in zip(compiled(*given), wanted, strict=True):
                np.testing.assert_allclose(found[b], value.nonzeros(), rtol=1e-10, atol=1e-10)
    assert program.n_ops > 6000
    assert rates[1] < 3 * rates[0]
    assert rates[1] < 0.02
