"""Programs as users write them: networks, dynamics, loops, derivatives inside, constants."""

import itertools

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from from_jax_oracle import agree, agree_all, evaluate
from jax import lax

from warpmpc.problem.from_jax import from_jax

SIZES = (4, 8, 8, 2)
RNG = np.random.default_rng(3)
LAYERS = [(RNG.normal(size=(m, n)), RNG.normal(size=n)) for m, n in itertools.pairwise(SIZES)]


def network(layers, x, activation):
    *hidden, last = layers
    for W, b in hidden:
        x = activation(x @ W + b)
    return x @ last[0] + last[1]


NAMES = """celu elu gelu hard_tanh leaky_relu log_sigmoid log_softmax mish relu relu6 selu sigmoid
silu soft_sign softmax softplus squareplus tanh"""
ACTIVATIONS = {name: getattr(jax.nn, name) for name in NAMES.split()}


class TestNetworks:
    def test_activations(self):
        agree_all(ACTIVATIONS, 5)
        agree(lambda x: jax.nn.gelu(x, approximate=False), 5)

    def test_constant_weights(self):
        layers = [(jnp.asarray(W), b) for W, b in LAYERS]
        names = ("tanh", "relu", "gelu")
        agree_all({name: lambda x, f=ACTIVATIONS[name]: network(layers, x, f) for name in names}, 4)

    def test_float32_weights_keep_their_values(self):
        layers = [(jnp.asarray(W, "float32"), jnp.asarray(b, "float32")) for W, b in LAYERS]
        agree(lambda x: network(layers, x, jnp.tanh), 4)

    def test_weights_as_arguments(self):
        def policy(x, W1, b1, W2, b2):
            return network([(W1, b1), (W2, b2)], x, jnp.tanh)

        agree(policy, 4, (4, 8), 8, (8, 2), 2)

    @pytest.mark.parametrize("x", [0.0, 30.0, -30.0, 800.0, -800.0])
    def test_softplus_is_smooth_and_never_overflows(self, x):
        """JAX's form is max(x, 0) + log1p(exp(-abs(x))): no second derivative at 0."""
        symbol = ca.SX.sym("x")
        first = from_jax(jax.nn.softplus, ())(symbol)
        found = [first, ca.gradient(first, symbol), ca.hessian(first, symbol)[0]]
        sigmoid = 1 / (1 + np.exp(-np.clip(x, -700, None)))
        want = [np.logaddexp(x, 0), sigmoid, sigmoid * (1 - sigmoid)]
        values = np.ravel(evaluate([symbol], found, [x]))
        np.testing.assert_allclose(values, want, atol=1e-15, rtol=1e-12)

    @pytest.mark.parametrize("name", ["sigmoid", "silu", "tanh", "gelu"])
    def test_derivatives_far_out(self, name):
        symbol = ca.SX.sym("x")
        slope = ca.gradient(from_jax(ACTIVATIONS[name], ())(symbol), symbol)
        curvature = ca.gradient(slope, symbol)
        for x in (-900.0, 900.0):
            found = evaluate([symbol], [slope, curvature], [x])
            assert np.ravel(found)[0] == pytest.approx(float(name in ("silu", "gelu") and x > 0))
            assert np.ravel(found)[1] == pytest.approx(0)


MASS_CART, MASS_POLE, LENGTH, GRAVITY = 1.0, 0.1, 0.5, 9.81


def cartpole(x, u, sin=jnp.sin, cos=jnp.cos, stack=jnp.stack):
    _, theta, speed, omega = (x[i] for i in range(4))
    total = MASS_CART + MASS_POLE * sin(theta) ** 2
    swing = MASS_POLE * sin(theta) * (LENGTH * omega**2 + GRAVITY * cos(theta))
    angular = -u[0] * cos(theta) - MASS_POLE * LENGTH * omega**2 * cos(theta) * sin(theta)
    angular -= (MASS_CART + MASS_POLE) * GRAVITY * sin(theta)
    return stack([speed, omega, (u[0] + swing) / total, angular / (LENGTH * total)])


def double_pendulum(q, dq):
    """Accelerations from a Lagrangian: d/dt (dL/d dq) = dL/dq, by derivatives inside of JAX."""

    def lagrangian(q, dq):
        kinetic = dq[0] ** 2 + 0.5 * dq[1] ** 2 + dq[0] * dq[1] * jnp.cos(q[0] - q[1])
        return kinetic + 2 * GRAVITY * jnp.cos(q[0]) + GRAVITY * jnp.cos(q[1])

    mass = jax.hessian(lagrangian, 1)(q, dq)
    mixed = jax.jacobian(jax.grad(lagrangian, 1), 0)(q, dq)
    return jnp.linalg.solve(mass, jax.grad(lagrangian)(q, dq) - mixed @ dq)


class TestDynamics:
    def test_cartpole_is_that_of_casadi(self):
        x, u = ca.SX.sym("x", 4), ca.SX.sym("u")
        by_hand = cartpole(x, u, ca.sin, ca.cos, lambda rows: ca.vertcat(*rows))
        translated = agree(cartpole, 4, 1)
        points = RNG.normal(size=(4, 4)), RNG.normal(size=(1, 4))
        both = ca.Function("both", [x, u], [translated(x, u), by_hand])
        np.testing.assert_allclose(*map(np.array, both.map(4)(*points)), atol=1e-14)
        n_translated = translated.function.n_nodes()
        assert n_translated <= ca.Function("by_hand", [x, u], [by_hand]).n_nodes() + 2

    def test_lagrangian(self):
        agree(double_pendulum, 2, 2, tolerance=1e-10)

    def test_second_derivatives(self):
        symbols = [ca.SX.sym("x", 4), ca.SX.sym("u", 1)]
        weights = np.array([1.0, -2.0, 0.5, 3.0])
        cost = ca.dot(weights, from_jax(cartpole, 4, 1)(*symbols))
        point = [RNG.normal(size=4), RNG.normal(size=1)]
        (found,) = evaluate(symbols, [ca.hessian(cost, symbols[0])[0]], point)
        want = jax.jit(jax.hessian(lambda x, u: weights @ cartpole(x, u)))(*point)
        np.testing.assert_allclose(found, want, atol=1e-12)

    def test_mixed_with_casadi(self):
        x, u = ca.SX.sym("x", 4), ca.SX.sym("u", 1)
        step = from_jax(lambda x, u: x + 0.1 * cartpole(x, u), 4, 1)
        twice = step(ca.sin(step(x, 2 * u)), u)
        x0, u0 = jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([0.5])
        first = x0 + 0.1 * cartpole(x0, 2 * u0)
        want = jnp.sin(first) + 0.1 * cartpole(jnp.sin(first), u0)
        np.testing.assert_allclose(evaluate([x, u], [twice], [x0, u0])[0][:, 0], want, atol=1e-14)


def rk4(x, u):
    def stage(carry, factor):
        k, total = carry
        k = cartpole(x + factor[0] * k, u)
        return (k, total + factor[1] * k), k

    factors = 0.05 * np.array([[0.0, 1 / 6], [0.5, 1 / 3], [0.5, 1 / 3], [1.0, 1 / 6]])
    (_, total), slopes = lax.scan(stage, (jnp.zeros(4), jnp.zeros(4)), factors)
    return x + total, slopes


LOOPS = {
    "scan": lambda x: lax.scan(lambda c, a: (c * a, c + a), 1.0, x),
    "reverse": lambda x: lax.scan(lambda c, a: (c * a, (c, 2)), 1.0, x, reverse=True),
    "no inputs": lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0],
    "no steps": lambda x: lax.scan(lambda c, a: (c * a, c), x[0], x[:0]),
    "counter": lambda x: lax.fori_loop(0, 4, lambda i, c: c.at[i].add(i * x[3 - i]), x),
    "while": lambda x: lax.while_loop(
        lambda c: c[0] * 2 < 7, lambda c: (c[0] + 1, c[1] * x), (0, x)
    ),
    "nested": lambda x: lax.fori_loop(
        0, 2, lambda i, c: lax.fori_loop(0, i + 2, lambda j, d: jnp.sin(d) + j, c), x
    ),
    "map": lambda x: lax.map(lambda a: a**2, x),
    "associative": lambda x: lax.associative_scan(jnp.multiply, x),
    "cond": lambda x: lax.cond(x[0] > x[1], lambda y: (y, 1), lambda y: (2 * y, 1), x),
    "constant cond": lambda x: lax.cond(jnp.sum(jnp.ones(3)) > 2, jnp.sin, jnp.sort, x),
    "switch": lambda x: lax.switch(x[0].astype(int), [jnp.sin, jnp.cos, jnp.tan], x),
    "jit": jax.jit(lambda x: jax.checkpoint(jnp.sin)(x) * jax.jit(jnp.cos)(x)),
    "vmap": lambda x: jax.vmap(lambda a: a * jnp.sum(x))(x),
    "gradient": jax.grad(lambda x: jnp.sum(jnp.where(x > 0, x**3, jnp.sin(x)) / (1 + x**2))),
    "random": lambda x: x + jax.random.normal(jax.random.key(1), (4,)),
}


@jax.custom_jvp
def doubled(x):
    return 2 * x


doubled.defjvp(lambda x, dx: (2 * x[0], 2 * dx[0]))


@jax.custom_vjp
def tripled(x):
    return 3 * x


tripled.defvjp(lambda x: (3 * x, None), lambda _, g: (3 * g,))


class TestControlFlow:
    def test_matches(self):
        agree_all(LOOPS, 4, derivatives=False)

    def test_runge_kutta(self):
        agree(rk4, 4, 1)

    def test_custom_derivatives(self):
        agree(doubled, 3)
        agree(tripled, 3, derivatives=False)  # JAX has no forward mode for it

    def test_agreed_outputs_of_branches_stay_numbers(self):
        """So that they can still be indices."""

        def entry(x):
            i = lax.cond(x[0] > 0, lambda: 2, lambda: 2)
            return x[i]

        agree(entry, 3)


class TestConstants:
    def test_are_folded(self):
        def scaled(x):
            A = jnp.linalg.inv(jnp.diag(jnp.logaddexp(jnp.arange(3.0), 1.0)) + 0.1)
            return A[0, 0] * x

        assert agree(scaled, 2).function.n_instructions() == 2 * 3 + 1  # read, multiply, write

    def test_python_numbers_keep_their_digits_without_64_bit_mode(self):
        with jax.enable_x64(False):
            translated = from_jax(lambda x: 0.1 * x + jnp.pi, ())
        assert float(translated(1.0)) == 0.1 + np.pi

    def test_strict_promotion_does_not_matter(self):
        with jax.numpy_dtype_promotion("strict"):
            translated = from_jax(lambda x: jnp.float32(2.0) * x, ())
        assert float(translated(1.5)) == 3

    def test_integers_and_truth_values(self):
        def counts(x):
            n = jnp.array([1, 2, 3], dtype=jnp.int32)
            return n * x, n // 2, (n > 1) & (x > 0), n[n.shape[0] - 1]

        agree(counts, 3, derivatives=False)

    def test_integers_wrap_around_as_in_jax(self):
        def wrapped(x):
            n = jnp.uint32(2**31) + jnp.uint32(2**31) - jnp.uint32(1)
            return x * n, x * (jnp.float64(1e308) * 10), x * jnp.int8(100) * jnp.int8(2)

        agree(wrapped, ())

    def test_constant_outputs(self):
        translated = from_jax(lambda x: (jnp.eye(2), 3, x[0]), 2)
        identity, three, entry = translated(ca.SX.sym("x", 2))
        np.testing.assert_array_equal(ca.DM(identity), np.eye(2))
        assert float(three) == 3
        assert entry.shape == (1, 1)


class TestArguments:
    def test_pytrees_are_returned(self):
        def outputs(x):
            return {"a": x[0], "b": (x, jnp.outer(x, x)), "none": None}

        found = from_jax(outputs, 3)(ca.SX.sym("x", 3))
        shapes = [leaf.shape for leaf in jax.tree.leaves(found)]
        assert shapes == [(1, 1), (3, 1), (3, 3)]
        assert set(found) == {"a", "b", "none"}

    def test_matrices_are_not_transposed(self):
        A, x = np.arange(6.0).reshape(2, 3), np.array([1.0, 10.0, 100.0])
        translated = from_jax(lambda A, x: (A @ x, A + 1, A[0, 2]), (2, 3), 3)
        product, more, entry = translated(A, x)
        np.testing.assert_array_equal(np.array(product)[:, 0], A @ x)
        np.testing.assert_array_equal(more, A + 1)
        assert float(entry) == 2

    def test_kinds_of_arguments(self):
        add = from_jax(lambda x, y: x + y, 2, ())
        assert isinstance(add(ca.MX.sym("x", 2), 1.0), ca.MX)
        assert isinstance(add(ca.SX.sym("x", 2), np.float32(1)), ca.SX)
        assert isinstance(add(jnp.ones(2), 1), ca.DM)
        sparse = add(ca.SX(2, 1), ca.SX(1, 1))
        np.testing.assert_array_equal(ca.DM(ca.densify(sparse)), np.zeros((2, 1)))

    def test_shapes(self):
        for shape in (3, np.int32(3), (3,), [3]):
            assert from_jax(jnp.sum, shape).shapes == ((3,),)
        assert from_jax(lambda x: x, 0)(ca.SX(0, 1)).shape == (0, 1)

    def test_inside_of_jit(self):
        """What is folded is not part of the program around."""
        found = []

        def outer(x):
            found.append(from_jax(lambda y: y[jnp.array([1, 0])] * jnp.exp(2.0), 2))
            return x

        jax.jit(outer)(1.0)
        np.testing.assert_allclose(np.array(found[0](np.arange(2.0)))[:, 0], [np.exp(2), 0])

    def test_repr(self):
        assert repr(from_jax(cartpole, 4, 1)) == "JaxExpression(cartpole, (4,), (1,))"
