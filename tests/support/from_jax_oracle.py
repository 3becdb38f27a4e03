"""JAX itself as the oracle of `wm.from_jax`: values and first derivatives at random points."""

from __future__ import annotations

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.problem.from_jax import from_jax

TOLERANCE = 1e-12


def sample(shapes, low, high, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(shape,) if isinstance(shape, int) else shape for shape in shapes]
    return [jnp.asarray(rng.uniform(low, high, shape)) for shape in shapes]


def row_major(matrix):
    return ca.vec(matrix.T)


def agree(fn, *shapes, low=-2.0, high=2.0, derivatives=True, tolerance=TOLERANCE):
    """Asserts that the translated function has JAX's values and, if asked, JAX's Jacobians."""
    translated = from_jax(fn, *shapes)
    point = sample(shapes, low, high)
    symbols = [ca.SX.sym(f"x{i}", *matrix_shape(x)) for i, x in enumerate(point)]
    outputs = jax.tree.leaves(translated(*symbols))
    names, values, jacobians = jax_results(fn, point, derivatives)
    for name, found, want in zip(names, evaluate(symbols, outputs, point), values, strict=True):
        assert found.shape == matrix_shape(want), name
        compare(found, want, tolerance, name)
    for name, output, blocks in zip(names, outputs, jacobians, strict=True) if derivatives else ():
        found = [ca.jacobian(row_major(output), row_major(symbol)) for symbol in symbols]
        for block, want in zip(evaluate(symbols, found, point), blocks, strict=True):
            compare(block, want, tolerance, f"derivative of {name}")
    return translated


def agree_all(functions, *shapes, **options):
    """`agree` for a dictionary of functions of the same arguments, compiled in one go."""
    agree(lambda *x: {name: fn(*x) for name, fn in functions.items()}, *shapes, **options)


def jax_results(fn, point, derivatives):
    """Names and values of the outputs and, per output, Jacobians by each argument."""

    def leaves(*x):
        return jax.tree.leaves(fn(*x))

    def both(*x):
        return fn(*x), jax.jacfwd(leaves, tuple(range(len(x))))(*x) if derivatives else []

    outputs, jacobians = jax.jit(both)(*point)
    paths, values = zip(*jax.tree_util.tree_leaves_with_path(outputs), strict=True)
    return [jax.tree_util.keystr(path) for path in paths], values, jacobians


def compare(found, want, tolerance, name):
    want = np.asarray(want, dtype=float).reshape(found.shape)
    np.testing.assert_allclose(found, want, atol=tolerance, rtol=tolerance, err_msg=name)


def evaluate(symbols, expressions, point):
    function = ca.Function("f", symbols, [ca.densify(ca.SX(each)) for each in expressions])
    return [np.array(value) for value in function.call([np.asarray(x) for x in point])]


def matrix_shape(array):
    return (*np.shape(array), 1, 1)[:2]
