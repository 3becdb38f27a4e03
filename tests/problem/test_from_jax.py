"""Primitives of JAX in CasADi, family by family, against JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from from_jax_oracle import agree, agree_all
from jax import lax

from warpmpc.problem.from_jax import from_jax

SMOOTH = {  # functions and an interval inside their domain
    "acos": (lax.acos, -0.9, 0.9),
    "acosh": (lax.acosh, 1.1, 3),
    "asin": (lax.asin, -0.9, 0.9),
    "asinh": (lax.asinh, -3, 3),
    "atan": (lax.atan, -3, 3),
    "atanh": (lax.atanh, -0.9, 0.9),
    "cbrt": (lax.cbrt, -3, 3),
    "cos": (lax.cos, -3, 3),
    "cosh": (lax.cosh, -3, 3),
    "erf": (lax.erf, -3, 3),
    "erfc": (lax.erfc, -3, 3),
    "exp": (lax.exp, -3, 3),
    "exp2": (lax.exp2, -3, 3),
    "expm1": (lax.expm1, -3, 3),
    "integer_pow": (lambda x: lax.integer_pow(x, 3) + lax.integer_pow(x, -2), 0.5, 3),
    "log": (lax.log, 0.1, 3),
    "log1p": (lax.log1p, -0.5, 3),
    "logistic": (lax.logistic, -3, 3),
    "neg": (lax.neg, -3, 3),
    "pow": (lambda x: x**2.5 + 1.5**x, 0.1, 3),
    "rsqrt": (lax.rsqrt, 0.1, 3),
    "sin": (lax.sin, -3, 3),
    "sinh": (lax.sinh, -3, 3),
    "sqrt": (lax.sqrt, 0.1, 3),
    "square": (lax.square, -3, 3),
    "tan": (lax.tan, -1, 1),
    "tanh": (lax.tanh, -3, 3),
}
KINKED = {
    "abs": lax.abs,
    "ceil": lax.ceil,
    "floor": lax.floor,
    "integer division": lambda x: lax.div(x.astype(int), 2) + 7 // jnp.maximum(x.astype(int), 1),
    "mod": lambda x: x % 1.5,
    "round": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO) + jnp.round(x),
    "sign": lax.sign,
    "to integer": lambda x: x.astype(int).astype(float),
}
PAIRS = {
    "add": lax.add,
    "atan2": lax.atan2,
    "div": lax.div,
    "max": lax.max,
    "min": lax.min,
    "mul": lax.mul,
    "pow": lambda x, y: lax.pow(lax.abs(x), y),
    "rem": lax.rem,
    "sub": lax.sub,
    "hypot": jnp.hypot,
    "logaddexp": jnp.logaddexp,
}

LOGIC = {
    "and, or, not": lambda x: (x > 0.3) & ~(x < 1) | (x == 0),
    "xor": lambda x: jnp.logical_xor(x >= 0, x <= 1),
    "where": lambda x: jnp.where((x != 1) & (x > 0), x, -x),
    "constant where": lambda x: jnp.where(jnp.array([True, False, True]), x, 5.0),
    "constant cases": lambda x: lax.select_n(jnp.array([2, 0, 1]), x, x + 10, x * 3),
    "cases": lambda x: lax.select_n(jnp.clip(x.astype(int), 0, 2), x, x + 10, x * 3),
    "select": lambda x: jnp.select([x < 0, x < 1], [jnp.sin(x), jnp.cos(x)], x),
    "to truth": lambda x: x.astype(bool).astype(float) + (x > 0),
    "finite": lambda x: jnp.isfinite(x) * x,
    "nan_to_num": lambda x: jnp.nan_to_num(x),
    "all, any": lambda x: jnp.all(x > -3) + jnp.any(x > 0) * 2,
}


class TestElementwise:
    def test_smooth(self):
        def stretched(x):
            return {
                name: function(low + (high - low) * x)
                for name, (function, low, high) in SMOOTH.items()
            }

        agree(stretched, 7, low=0, high=1)

    def test_kinked(self):
        agree_all(KINKED, 9, low=-3, high=3)

    def test_pairs(self):
        agree_all(PAIRS, (2, 3), (2, 3))

    def test_axes_of_length_one_are_stretched(self):
        agree(lambda x, y: (x * y, lax.max(x, 0.5), jnp.where(x > 0, y, x)), (2, 1), (1, 3))

    def test_erf_inv(self):
        agree(lax.erf_inv, 7, low=-0.9, high=0.9, tolerance=1e-6)  # as good as CasADi's

    def test_halves_are_rounded_as_in_jax(self):
        def both(x):
            return jnp.round(x), lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)

        halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999999999999994])
        for found, want in zip(from_jax(both, 7)(halves), both(halves), strict=True):
            np.testing.assert_array_equal(np.array(found)[:, 0], want)

    def test_clamp(self):
        agree(lambda x: lax.clamp(-0.5, x, 1.0), 9)
        agree(lax.clamp, (), 9, (), derivatives=False)

    def test_logic(self):
        agree_all(LOGIC, 3, derivatives=False)

    def test_identities(self):
        agree(lambda x: lax.optimization_barrier(lax.reduce_precision(x, 11, 52)) + x.copy(), 3)
        agree(lambda x: lax.stop_gradient(jnp.sin(x)), 3, derivatives=False)

    def test_widths_are_ignored(self):
        agree(lambda x: (x.astype("float32").astype("float64") - x) * 0, 3, derivatives=False)


MOVES = {
    "reshape": lambda A: A.reshape(2, 6) @ A.reshape(6, 2),
    "transpose": lambda A: A.T,
    "squeeze": lambda A: jnp.squeeze(A[:1]) + jnp.expand_dims(A[0], 0)[0],
    "broadcast": lambda A: jnp.broadcast_to(A[:, :1], (3, 5)) + A[2, 1],
    "concatenate": lambda A: jnp.concatenate([A, 2 * A[:, :2], np.ones((3, 1))], axis=1),
    "stack": lambda A: jnp.stack([A[0], A[1], np.arange(4.0)], axis=1),
    "unstack": lambda A: jnp.unstack(A, axis=1),
    "split": lambda A: jnp.split(A, [1, 3], axis=1),
    "tile": lambda A: jnp.tile(A, (2, 2)),
    "repeat": lambda A: jnp.repeat(A, 2, axis=0),
    "roll": lambda A: jnp.roll(A, 1, axis=1),
    "flip": lambda A: A[::-1, ::-2],
    "triangles": lambda A: jnp.tril(A) - jnp.triu(A, 1),
    "diagonal": lambda A: jnp.diag(A[:, :3]),
    "diagonal matrix": lambda A: jnp.diag(A[0]),
    "pad": lambda A: jnp.pad(A, ((1, 2), (0, 1)), constant_values=3.0),
    "pad between": lambda A: lax.pad(A, A[0, 0], ((1, 0, 2), (-1, 2, 1))),
    "pad negative": lambda A: lax.pad(A, 0.0, ((0, -1, 0), (-2, 0, 0))),
    "slice": lambda A: A[1:, ::2],
    "entry": lambda A: A[-1, 2] * A[0],
    "column": lambda A: A[:, 1],
    "list": lambda A: A[jnp.array([2, 0, 0])],
    "list of columns": lambda A: A[:, np.array([3, -1])],
    "pairs": lambda A: A[np.array([0, 2]), np.array([3, 1])],
    "open mesh": lambda A: A[np.ix_([0, 2], [1, 3])],
    "mask": lambda A: A[np.array([True, False, True])],
    "take": lambda A: jnp.take(A, jnp.array([0, 9]), axis=1, mode="clip"),
    "take along": lambda A: jnp.take_along_axis(A, jnp.array([[0], [3], [1]]), 1),
    "dynamic slice": lambda A: lax.dynamic_slice(A, (1, 7), (2, 2)),
    "dynamic update": lambda A: lax.dynamic_update_slice(A, 2 * A[:2, :1], (2, 1)),
    "set": lambda A: A.at[1, ::2].set(7.0).at[2].set(A[0]),
    "set list": lambda A: A.at[:, jnp.array([0, 2])].set(A[:, 2:]),
    "set outside": lambda A: A.at[jnp.array([1, 5])].set(0.0),
    "add": lambda A: A.at[jnp.array([0, 0, 2, 0])].add(jnp.concatenate([A, A[:1] ** 2])),
    "add outside": lambda A: A.at[jnp.array([0, 9])].add(A[:2]),
    "subtract": lambda A: A.at[0].subtract(A[1]),
    "multiply": lambda A: A.at[:, 1].multiply(A[:, 0]),
    "divide": lambda A: A.at[0, 1].divide(3.0),
    "least": lambda A: A.at[jnp.array([0, 0])].min(A[1:]),
    "largest": lambda A: A.at[0].max(A[1]),
    "constants first": lambda A: jnp.zeros(5).at[jnp.array([1, 3])].set(A[0, :2]),
}


class TestMoves:
    def test_matches(self):
        agree_all(MOVES, (3, 4), derivatives=False)  # entries that stand in the right place

    def test_outside_is_filled(self):
        def outside(x):
            return jnp.take(x, jnp.array([1, 5])), (x > 0)[jnp.array([0])].at[7].get(mode="fill")

        found, truth = from_jax(outside, 3)(np.arange(3.0))
        np.testing.assert_array_equal(found, [[1.0], [np.nan]])
        assert float(truth) == 1

    def test_moving_makes_no_operations(self):
        moved = from_jax(lambda A: A.T.reshape(-1)[::-1].at[2].set(A[0, 1]), (3, 4))
        instructions = moved.function.n_instructions()
        assert instructions == 11 + 12  # 11 entries are read, 12 written


REDUCTIONS = {
    "sum": lambda A: (jnp.sum(A), jnp.sum(A, 0), jnp.sum(A, 1)),
    "mean": lambda A: jnp.mean(A, axis=1) + jnp.var(A),
    "max": lambda A: (A.max(), A.max(0)),
    "min": lambda A: (A.min(), A.min(1)),
    "prod": lambda A: (A.prod(), A.prod(0)),
    "norm": lambda A: jnp.linalg.norm(A, axis=0) + jnp.linalg.norm(A),
    "cumsum": lambda A: (jnp.cumsum(A, 1), lax.cumsum(A, 0, reverse=True)),
    "cumprod": lambda A: (jnp.cumprod(A, 0), lax.cumprod(A, 1, reverse=True)),
    "cummax": lambda A: (lax.cummax(A, 0), lax.cummin(A, 1)),
    "cumlogsumexp": lambda A: lax.cumlogsumexp(A, 1),
    "logsumexp": lambda A: jax.nn.logsumexp(A, axis=1),
    "diff": lambda A: jnp.diff(A, axis=1),
    "empty": lambda A: jnp.sum(A[:, :0], axis=1) + jnp.prod(A[:, :0]),
}
PRODUCTS = {
    "matrix, matrix": (jnp.matmul, (2, 3), (3, 4)),
    "matrix, vector": (jnp.matmul, (2, 3), (3,)),
    "vector, matrix": (jnp.matmul, (3,), (3, 2)),
    "vectors": (jnp.dot, (3,), (3,)),
    "outer": (jnp.outer, (3,), (2,)),
    "kron": (jnp.kron, (2, 2), (1, 3)),
    "cross": (jnp.cross, (3,), (3,)),
    "contraction": (lambda A, B: jnp.einsum("ij,kj,kl->il", A, A, B), (2, 3), (2, 4)),
    "two axes": (lambda A, B: jnp.tensordot(A, B, axes=2), (2, 3), (2, 3)),
    "batched": (lambda A, B: jnp.einsum("bi,bi->b", A, B), (4, 3), (4, 3)),
    "batched matrices": (
        lambda A, B: (A.reshape(2, 2, 3) @ B.reshape(2, 3, 2)).reshape(4, 2),
        (4, 3),
        (6, 2),
    ),
    "nothing to sum": (lambda A, B: A[:, :0] @ B[:0], (2, 3), (3, 4)),
}


class TestContractions:
    def test_reductions(self):
        agree_all(REDUCTIONS, (3, 4))

    @pytest.mark.parametrize("name", PRODUCTS)
    def test_products(self, name):
        agree(*PRODUCTS[name])

    def test_products_with_constants(self):
        W = np.random.default_rng(1).normal(size=(3, 4))
        agree(lambda x: W @ x + x @ W.T, 4)
        identity = from_jax(lambda x: jnp.eye(4) @ x, 4)
        assert identity.function.n_instructions() == 8, "products with 0 and 1 are no operations"


def positive(A):
    return A @ A.T + jnp.eye(len(A))


SYSTEMS = {
    "solve": (lambda A, x: jnp.linalg.solve(A, x), (4, 4), (4,)),
    "solve matrix": (lambda A, B: jnp.linalg.solve(A, B), (3, 3), (3, 2)),
    "inverse": (jnp.linalg.inv, (3, 3)),
    "cholesky": (lambda A: jnp.linalg.cholesky(positive(A)), (4, 4)),
    "cho_solve": (
        lambda A, x: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(positive(A)), x),
        (4, 4),
        (4,),
    ),
    "triangles": (
        lambda A, x: (
            jax.scipy.linalg.solve_triangular(A, x, lower=True, trans=1),
            jax.scipy.linalg.solve_triangular(A, x, unit_diagonal=True),
        ),
        (3, 3),
        (3,),
    ),
    "from the right": (
        lambda A, B: (
            lax.linalg.triangular_solve(A, B, lower=True),
            lax.linalg.triangular_solve(A, B, transpose_a=True),
        ),
        (3, 3),
        (2, 3),
    ),
    "batched": (
        lambda A, x: jax.vmap(lambda a: jnp.linalg.solve(A + jnp.diag(a), x))(A),
        (3, 3),
        (3,),
    ),
    "constant matrix": (lambda x: jnp.linalg.solve(np.diag([1.0, 2.0]) + 0.1, x), (2,)),
    "determinant": (jnp.linalg.det, (3, 3)),
}


class TestLinearSystems:
    @pytest.mark.parametrize("name", SYSTEMS)
    def test_matches(self, name):
        agree(*SYSTEMS[name], low=0.5, high=1.5, tolerance=1e-9)

    def test_zero_on_the_diagonal(self):
        """Elimination without pivots would divide by it."""
        swap = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 1.0, 1.0]])
        found = from_jax(jnp.linalg.solve, (3, 3), 3)(swap, np.arange(3.0))
        np.testing.assert_allclose(
            np.array(found)[:, 0], np.linalg.solve(swap, np.arange(3.0)), atol=1e-12
        )

    def test_several_right_hand_sides_share_a_factor(self):
        one, six = (
            from_jax(jnp.linalg.solve, (4, 4), (4, n)).function.n_instructions() for n in (1, 6)
        )
        assert six < 3 * one
