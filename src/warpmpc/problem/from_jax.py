"""Translation of JAX functions to CasADi, so that a problem can be written in either language.

Reads: a JAX function and the shapes of its arguments.  Produces: a callable on CasADi matrices.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import casadi as ca
import jax
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem.jaxpr.translator import Translator
from warpmpc.problem.jaxpr.values import Refused, Shape, Symbolic, Value, flat_of

_Numbers = int | float | np.number | np.ndarray | jax.Array
_MAX_AXES = 2  # matrices of CasADi have no more


def from_jax(fn: Callable[..., Any], *shapes: int | Sequence[int]) -> JaxExpression:
    """Translates a JAX function into CasADi, for use in costs, dynamics and constraints.

    ```python
    def policy(x, W):                        # W: an argument, so a parameter of the problem
        return jnp.tanh(W @ x)

    u = wm.from_jax(policy, (4,), (2, 4))(x, W)      # x: SX 4x1, W: SX 2x4; u: SX 2x1
    ```

    The function is traced once, in float64 regardless of JAX's 64-bit mode, and translated
    primitive by primitive.  Arrays that it closes over (weights of a network) become constants, and
    expressions of constants are evaluated right away.  There are translations of elementwise
    functions, comparisons, `jnp.where`, constant indices (`x[i]`, `x.at[i].set`, slices), shapes,
    matrix products, reductions and cumulative sums, `jnp.linalg.solve`, `inv` and `cholesky`,
    activation functions, `jax.jit`, `jax.vmap` and `jax.grad` inside, `lax.scan` and
    `lax.fori_loop` (unrolled), and `lax.cond` (both branches are evaluated if the predicate depends
    on arguments).

    Derivatives are CasADi's, of the expression: `jax.custom_jvp` and `jax.custom_vjp` rules are not
    used, and `lax.stop_gradient` does not stop them.  Values are taken to be finite: `jnp.isnan` is
    false.

    Args:
        fn: Function of arrays that returns an array, or a pytree of arrays, with up to two axes.
        *shapes: Shape of each argument: `()`, `(n,)` or `(rows, columns)`; `n` means `(n,)`.

    Returns:
        A callable with one CasADi matrix per argument: a scalar, a column or a matrix.

    Raises:
        ProblemError: If shapes do not fit or a primitive cannot be translated; the message names
            the primitive, the line and what to write instead.
    """
    return JaxExpression(fn, *shapes)


class JaxExpression:
    """A JAX function translated to CasADi; call it with SX, MX, DM or numbers.

    Attributes:
        shapes: Shapes of the arguments, as in JAX.
        function: The CasADi function; its inputs and outputs are matrices.
    """

    def __init__(self, fn: Callable[..., Any], *shapes: int | Sequence[int]):
        """Traces and translates; see `from_jax`."""
        if not callable(fn):
            raise ProblemError(f"from_jax needs a function, got {type(fn).__name__}.")
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.shapes = tuple(_checked_shape(shape, self.name) for shape in shapes)
        _check_count(fn, self.name, len(shapes))
        symbols = [ca.SX.sym(f"a{i}", *_matrix_shape(s)) for i, s in enumerate(self.shapes)]
        arguments = [Symbolic(_to_flat(m), s) for m, s in zip(symbols, self.shapes, strict=True)]
        # Folding constants runs small pieces of JAX, which are faster on the host than on a GPU.
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), _on_host():
            traced = [jax.ShapeDtypeStruct(shape, np.float64) for shape in self.shapes]
            closed, structure = jax.make_jaxpr(fn, return_shape=True)(*traced)
            with jax.ensure_compile_time_eval():
                outputs = Translator().evaluate(closed, arguments)
        self._tree = jax.tree_util.tree_structure(structure)
        matrices = [_to_matrix(output, self.name) for output in outputs]
        self.function = ca.Function("from_jax", symbols, matrices)

    def __call__(self, *arguments: Any) -> Any:
        """Returns expressions of the outputs in the pytree that the JAX function returns."""
        if len(arguments) != len(self.shapes):
            raise ProblemError(
                f"{self.name} takes {len(self.shapes)} arguments, got {len(arguments)}."
            )
        matrices = [self._checked(i, argument) for i, argument in enumerate(arguments)]
        return jax.tree_util.tree_unflatten(self._tree, self.function.call(matrices))

    def __repr__(self) -> str:
        """Name and shapes."""
        return f"JaxExpression({self.name}, {', '.join(map(str, self.shapes))})"

    def _checked(self, i: int, argument: Any) -> Any:
        if isinstance(argument, _Numbers):
            argument = np.asarray(argument, dtype=np.float64)
            argument = ca.DM(argument) if argument.ndim <= _MAX_AXES else argument
        elif not isinstance(argument, ca.SX | ca.MX | ca.DM):
            raise ProblemError(
                f"Argument {i} of {self.name} must be a CasADi matrix or numbers, got "
                f"{type(argument).__name__}; stack expressions with ca.vertcat."
            )
        expected = _matrix_shape(self.shapes[i])
        if tuple(argument.shape) != expected:
            raise ProblemError(
                f"Argument {i} of {self.name} is {_by(argument.shape)}, but from_jax got the shape "
                f"{self.shapes[i]} for it; pass a matrix of {_by(expected)}."
            )
        return argument


def _checked_shape(shape: Any, name: str) -> Shape:
    axes = (shape,) if isinstance(shape, Integral) else shape
    if not isinstance(axes, Sequence) or not all(_is_length(length) for length in axes):
        raise ProblemError(
            f"A shape of {name} must be an integer or a tuple of integers, at least 0, got "
            f"{shape!r}; scalars have the shape ()."
        )
    if len(axes) > _MAX_AXES:
        raise ProblemError(
            f"{name} has an argument of shape {tuple(axes)}; CasADi has matrices only, so pass it "
            f"with at most {_MAX_AXES} axes and reshape it inside."
        )
    return tuple(int(length) for length in axes)


def _is_length(length: Any) -> bool:
    if isinstance(length, bool):
        return False
    return isinstance(length, Integral) and int(length) >= 0


def _check_count(fn: Callable[..., Any], name: str, n_shapes: int) -> None:
    try:
        signature = inspect.signature(fn)
    except ValueError:  # a builtin; tracing finds out
        return
    try:
        signature.bind(*range(n_shapes))
    except TypeError as reason:
        raise ProblemError(
            f"from_jax got {n_shapes} shapes, which does not fit {name}{signature}: {reason}; "
            "give one shape per argument."
        ) from None
    if not n_shapes:
        raise ProblemError(f"{name} has no arguments, so it is a constant; use its value.")


def _on_host() -> contextlib.AbstractContextManager[Any]:
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX was told to do without its CPU backend
        return contextlib.nullcontext()


def _matrix_shape(shape: Shape) -> Shape:
    return (*shape, 1, 1)[:_MAX_AXES]


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _to_flat(matrix: ca.SX) -> ca.SX:
    """The entries of a matrix in row-major order."""
    return ca.vec(matrix.T)


def _to_matrix(output: Value | Refused, name: str) -> ca.SX:
    """The matrix with the row-major entries of an output."""
    if isinstance(output, Refused):
        raise ProblemError(output.message)
    if len(output.shape) > _MAX_AXES:
        raise ProblemError(
            f"{name} returns an array of shape {output.shape}; CasADi has matrices only, so return "
            f"at most {_MAX_AXES} axes."
        )
    rows, columns = _matrix_shape(output.shape)
    return ca.reshape(flat_of(output), columns, rows).T
