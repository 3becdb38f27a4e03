"""How a system is made at any size, and what the commands say about it.

Produces: `Recipe`, the entries of `warpmpc.systems.SYSTEMS`, and `Description`, which help texts,
benchmarks and demos read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.mpc.settings import SQPSettings
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.systems.base import MOST_ITERATIONS, Metrics, Plant, References, Sampler, System


@dataclass(frozen=True)
class Description:
    """Description of a system for the commands, before it is built.

    Attributes:
        title: What many instances do, for help texts and headlines ("cars drive around an obstacle
            and park").
        benchmark: Sizes of the benchmark where they differ from the defaults of the system.
        alias: Second, shorter name on the command line.
        scene: Picture of the closed-loop demo: a callable that gets the `LoopDemo` and returns a
            scene, or its place as "module:name", which is imported when a demo is drawn.  None: the
            states and inputs over time.
        demo_batch: Instances of the demo.
        demo: Options that the demo makes the system with.
        is_large: Whether the problem is so large that its kernels take minutes to compile; tests
            that run over all systems leave it to tests of its own.
    """

    title: str
    benchmark: Mapping[str, int] = field(default_factory=dict)
    alias: str | None = None
    scene: str | Callable[..., Any] | None = None
    demo_batch: int = 256
    demo: Mapping[str, Any] = field(default_factory=dict)
    is_large: bool = False


@dataclass(frozen=True, eq=False)
class Recipe:
    """Builds a `System` at any size: ``recipe(horizon, sqp_iter=..., admm_iter=...)``.

    Attributes:
        name: Key in `warpmpc.systems.SYSTEMS`.
        description: Description and sizes for the commands.
        build: ``build(horizon, **options)``: the `OCP` or `MPCProblem`.
        sample: Draws initial states; see `System`.
        simulate: The plant; see `System`.
        metrics: Figures of closed loops; see `System`.
        settings: ``settings(sqp_iter=..., admm_iter=...)``: the benchmarked settings.  It gets all
            of `sizes` but the horizon.
        sizes: Default of "horizon" and of the arguments of `settings`.
        control_dt: Time between two solves.
        steps: Solves in a closed loop.
        converged_settings: Settings for accurate solutions.
        references: Parameters over time; see `System`.
        nominal: ``nominal(problem)``: the point at which QPs are scaled; see `System`.
    """

    name: str
    description: Description
    build: Callable[..., OCP | MPCProblem]
    sample: Sampler
    simulate: Plant
    metrics: Callable[..., Metrics]
    settings: Callable[..., SQPSettings]
    sizes: Mapping[str, int]
    control_dt: float
    steps: int
    converged_settings: SQPSettings = field(
        default_factory=lambda: SQPSettings(max_iter=MOST_ITERATIONS)
    )
    references: References | None = None
    nominal: Callable[[MPCProblem], tuple[np.ndarray, np.ndarray]] | None = None

    def __call__(self, horizon: int | None = None, **options: Any) -> System:
        """Builds the system.

        Args:
            horizon: Number of intervals; None: the default of `sizes`.
            **options: Other sizes by name, and options of `build`.
        """
        options |= {} if horizon is None else {"horizon": horizon}
        check_options(self.name, self, options)
        sizes = {name: options.pop(name, size) for name, size in self.sizes.items()}
        built = self.build(sizes.pop("horizon"), **options)
        problem = built.problem() if isinstance(built, OCP) else built
        return System(
            name=self.name,
            problem=problem,
            sample=self.sample,
            simulate=self.simulate,
            metrics=self.metrics,
            settings=self.settings(**sizes),
            control_dt=self.control_dt,
            steps=self.steps,
            converged_settings=self.converged_settings,
            references=self.references,
            nominal=None if self.nominal is None else self.nominal(problem),
        )

    @property
    def __signature__(self) -> inspect.Signature:
        """The horizon, the other sizes and the options of `build`, with their defaults."""
        kind = inspect.Parameter.KEYWORD_ONLY
        sizes = {
            name: inspect.Parameter(name, kind, default=size) for name, size in self.sizes.items()
        }
        sizes["horizon"] = sizes["horizon"].replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        _, *own = inspect.signature(self.build).parameters.values()
        options = [one for one in own if one.kind is kind]
        return inspect.Signature([sizes.pop("horizon"), *sizes.values(), *options])


def describe(name: str, make: Callable[..., System]) -> Description:
    """The description of an entry of `SYSTEMS`; that of a plain function is its docstring.

    Args:
        name: Key of the entry.
        make: The entry.
    """
    if isinstance(make, Recipe):
        return make.description
    title = (inspect.getdoc(make) or f"instances of {name}").splitlines()[0]
    return Description(title.rstrip("."))


def default_sizes(make: Callable[..., System]) -> dict[str, Any]:
    """Options of an entry of `SYSTEMS` that have a default, by name."""
    known = inspect.signature(make).parameters.values()
    return {one.name: one.default for one in known if one.default is not one.empty}


def check_options(name: str, make: Callable[..., System], options: Mapping[str, Any]) -> None:
    """Refuses options that an entry of `SYSTEMS` does not have.

    Args:
        name: Key of the entry.
        make: The entry.
        options: Options that the entry is to be called with.
    """
    known = inspect.signature(make).parameters
    if any(one.kind is one.VAR_KEYWORD for one in known.values()):
        return
    for option in options:
        if option not in known:
            raise ProblemError(
                f"{option} is no option of system {name!r}; its options are {', '.join(known)}."
            )
