"""Settings of data synthesis and of training."""

from __future__ import annotations

from dataclasses import dataclass

from warpmpc._errors import SettingsError

# Share of the network in the input that is applied, round by round, as published.
BETAS = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.0, 1.0)


@dataclass(frozen=True)
class DataSettings:
    """Amount of data, and the seeds of its random numbers.

    Attributes:
        rollouts: Closed loops per shard; one shard is one batch on the device.
        shards: Number of shards.
        seed: Every random number follows from it, the round and the number of the shard.
        keep: Share of the valid pairs that is kept, drawn at random.
        derivatives: Whether the expert's du0/dx0 is a label, too; it costs an adjoint solve per
            input and pair.
        bound_rollouts: Noise-free closed loops that the bounds of valid samples come from.
        theta_max: Largest violation measure of a valid sample.
        residual_max: Largest residual of a quadratic program of a valid sample.
        round: Number of the DAgger round; part of the seed.
        beta: Share of the policy in the input that is applied; 0: the expert drives alone.
    """

    rollouts: int = 256
    shards: int = 8
    seed: int = 0
    keep: float = 1.0
    derivatives: bool = False
    bound_rollouts: int = 256
    theta_max: float = 100.0
    residual_max: float = 1e4
    round: int = 0
    beta: float = 0.0

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        _positive(self, ("rollouts", "shards", "bound_rollouts"))
        _at_least_zero(self, ("seed", "round"))
        for name, low, high in (("keep", 0.0, 1.0), ("beta", 0.0, 1.0)):
            value = getattr(self, name)
            if not low <= value <= high or (name == "keep" and value == 0):
                raise SettingsError(f"{name} must be a share between 0 and 1, got {value!r}.")


@dataclass(frozen=True)
class TrainSettings:
    """Network and optimiser.

    Attributes:
        hidden: Units of each hidden layer.
        activation: "leaky_relu", "relu" or "tanh".
        epochs: Passes through the data, at most.
        minibatch: Pairs per step of the optimiser.
        learning_rate: Learning rate of AdamW at the start.
        schedule: "cosine": the learning rate falls to zero over the epochs; or "constant".
        weight_decay: Weight decay of AdamW.
        sobolev: Weight of the derivative's error in the loss; needs data with derivatives.
        patience: Epochs without a better validation loss after which training stops; 0: never.
        validation: Share of the rollouts that is kept for validation.
        seed: Seed of initial weights, of the split and of permutations.
        device_bytes: Data larger than this are moved to the device in parts, part by part.
        checkpoint_every: Epochs between two checkpoints, where a folder for them is given.
    """

    hidden: tuple[int, ...] = (32, 32, 32)
    activation: str = "leaky_relu"
    epochs: int = 100
    minibatch: int = 2048
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    weight_decay: float = 1e-4
    sobolev: float = 0.0
    patience: int = 20
    validation: float = 0.2
    seed: int = 0
    device_bytes: int = 2**31
    checkpoint_every: int = 10

    def __post_init__(self) -> None:
        """Refuses values out of range."""
        _positive(self, ("epochs", "minibatch", "device_bytes", "checkpoint_every"))
        _at_least_zero(self, ("patience", "seed", "sobolev", "weight_decay"))
        if self.learning_rate <= 0:
            raise SettingsError(f"learning_rate must be positive, got {self.learning_rate!r}.")
        if self.schedule not in ("cosine", "constant"):
            raise SettingsError(f'schedule must be "cosine" or "constant", got {self.schedule!r}.')
        if not 0 < self.validation < 1:
            raise SettingsError(
                f"validation must be a share between 0 and 1, got {self.validation!r}."
            )


def _positive(settings: object, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingsError(f"{name} must be a positive integer, got {value!r}.")


def _at_least_zero(settings: object, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(settings, name) < 0:
            raise SettingsError(f"{name} must not be negative, got {getattr(settings, name)!r}.")
