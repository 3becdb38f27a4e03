"""`warpmpc learn`: from an MPC to C for a microcontroller, in one command or part by part."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpmpc._errors import SettingsError
from warpmpc.cli.arguments import DONE, WRONG_RESULT, epilog

if TYPE_CHECKING:
    from warpmpc.learn import DataSettings, Policy, Task, TrainSettings

PARTS = ("data", "train", "evaluate", "export")
HELP: str = "imitate an MPC by a small network, test it in closed loop, export it as C"
EPILOG: str = "tasks: quadrotor, pendulum, cartpole, car, or module:function of yours\n"
EPILOG += "parts: data, train, evaluate, export; each takes up what the ones before wrote\n\n"
EPILOG += epilog("""\
  warpmpc learn quadrotor                   data, training, evaluation, export: quadrotor_policy/
  warpmpc learn data quadrotor --shards 40  only (or more) data
  warpmpc learn evaluate quadrotor --starts 5000
  warpmpc learn evaluate quadrotor --firmware   with the exported C as the controller
  warpmpc learn my_robot:task --rounds 5    five rounds of DAgger with a task of your own
  warpmpc learn data quadrotor --ray auto   shards on a Ray cluster
""")
# Published sizes: 100 000 rollouts of 200 steps, minibatches of 100 000.  A GPU needs batches of
# 10 000 to be busy.
FULL_DATA: dict[str, Any] = {"rollouts": 10_000, "shards": 10}
FULL_TRAINING: dict[str, Any] = {
    "minibatch": 100_000,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "epochs": 100,
}
DEFAULT_TRAINING: dict[str, Any] = {"epochs": 60, "minibatch": 2048}
STARTS, EXPERT_STARTS = 1000, 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("words", nargs="+", metavar="[PART] TASK", help="what to learn")
    parser.add_argument("--out", metavar="DIR", help="folder of all files (default TASK_policy)")
    parser.add_argument("--full", action="store_true", help="sizes of the publication (for a GPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    data = parser.add_argument_group("data")
    data.add_argument("--rollouts", metavar="N", type=int, help="closed loops per shard")
    data.add_argument("--shards", metavar="N", type=int, help="number of shards")
    data.add_argument("--seed", metavar="N", type=int, default=0, help="of all random numbers")
    data.add_argument("--rounds", metavar="N", type=int, default=1, help="rounds of DAgger")
    data.add_argument("--keep", metavar="SHARE", type=float, help="share of the pairs to keep")
    data.add_argument("--ray", metavar="ADDRESS", help='Ray cluster; "local" starts one')
    train = parser.add_argument_group("training")
    train.add_argument("--epochs", metavar="N", type=int, help="passes through the data")
    train.add_argument("--minibatch", metavar="N", type=int, help="pairs per optimiser step")
    train.add_argument("--hidden", metavar="N,N", help="units of the hidden layers (32,32,32)")
    train.add_argument("--activation", metavar="NAME", help="leaky_relu, relu or tanh")
    train.add_argument("--sobolev", metavar="WEIGHT", type=float, help="match derivatives, too")
    test = parser.add_argument_group("evaluation")
    test.add_argument("--starts", metavar="N", type=int, default=STARTS, help="unseen starts")
    test.add_argument(
        "--firmware",
        action="store_true",
        help="closed loops with the C of the robot, here and on an emulated Cortex-M4F, instead",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the requested parts; exits 1 if the exported code is wrong."""
    parts, name = _parts(args.words)
    from warpmpc.learn import make_task

    began = time.perf_counter()
    if os.getcwd() not in sys.path:  # modules of the user, as with `python -m`
        sys.path.insert(0, os.getcwd())
    task = make_task(name)
    folder = Path(args.out or f"{task.name}_policy")
    data, training = settings(args)
    job = Job(task, folder, (data, training), args)
    report: dict[str, Any] = {"task": task.name, "folder": str(folder), "seconds": {}}
    for part in parts:
        start = time.perf_counter()
        report[part] = getattr(job, part)()
        report["seconds"][part] = round(time.perf_counter() - start, 1)
    report["seconds"]["all"] = round(time.perf_counter() - began, 1)
    print(json.dumps(report, indent=2) if args.json else _summary(report))
    return DONE if report.get("export", {}).get("agrees", True) else WRONG_RESULT


def _parts(words: list[str]) -> tuple[tuple[str, ...], str]:
    if len(words) == 1 and words[0] not in PARTS:
        return PARTS, words[0]
    if len(words) == 2 and words[0] in PARTS:
        return (words[0],), words[1]
    raise SettingsError(
        f"Say a task, or one of the parts {', '.join(PARTS)} and a task; got {' '.join(words)!r}."
    )


def settings(args: argparse.Namespace) -> tuple[DataSettings, TrainSettings]:
    """Settings of data and training from the command line."""
    from warpmpc.learn import DataSettings, TrainSettings

    data = DataSettings(seed=args.seed, **(FULL_DATA if args.full else {}))
    given = {"rollouts": args.rollouts, "shards": args.shards, "keep": args.keep}
    data = replace(data, **{name: value for name, value in given.items() if value is not None})
    training = TrainSettings(**(FULL_TRAINING if args.full else DEFAULT_TRAINING))
    names = ("epochs", "minibatch", "activation", "sobolev")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.hidden is not None:
        given["hidden"] = _sizes(args.hidden)
    training = replace(training, seed=args.seed, **given)
    return replace(data, derivatives=training.sobolev > 0), training


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise SettingsError(f"--hidden needs numbers with commas, got {text!r}.") from None


class Job:
    """The parts of `warpmpc learn` for one task and folder."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        how: tuple[DataSettings, TrainSettings],
        args: argparse.Namespace,
    ):
        """Only remembers; every part reads what it needs from the folder."""
        from warpmpc.learn import BETAS

        self._task, self._folder, self._args = task, folder, args
        self._data, self._training = how
        if not 1 <= args.rounds <= len(BETAS):
            raise SettingsError(f"--rounds must be from 1 to {len(BETAS)}, got {args.rounds}.")
        self._betas = BETAS[: args.rounds]

    def data(self) -> dict[str, Any]:
        """Makes what is missing of the first round's data."""
        from warpmpc.learn import synthesize

        where = self._folder / "data" / "round-00"
        bar = _ShardBar()
        options: dict[str, Any] = {"executor": self._executor(), "progress": bar}
        start = time.perf_counter()
        found = synthesize(self._task, folder=where, settings=self._data, **options)
        pairs = {"pairs": found.pairs, "offered": found.offered}
        made = bar.made * found.offered / max(self._data.shards, 1)
        return {**pairs, "pairs_per_s": round(made / (time.perf_counter() - start))}

    def train(self) -> dict[str, Any]:
        """Trains; with more than one round, makes the data of the next ones in between."""
        from warpmpc.learn import learn_policy

        more = {"executor": self._executor(), "losses": _show_losses}
        policy, data = learn_policy(
            self._task, self._folder, self._data, self._training, self._betas, **more
        )
        policy.save(self._folder / "policy.npz")
        if find_spec("matplotlib") is not None:
            from warpmpc.viz.learn_figures import plot_history

            plot_history(policy, self._folder / "training.png")
        losses = {name: values[-1] for name, values in policy.history.items()}
        epochs = len(policy.history["train"])
        return {"pairs": data.pairs, "epochs": epochs, "losses": losses}

    def evaluate(self) -> dict[str, Any]:
        """Closed loops of expert and policy, or of the policy as C."""
        from warpmpc.learn import evaluate, evaluate_firmware
        from warpmpc.learn.files import write_json

        if self._args.firmware:
            where, starts = self._folder / "app", self._args.starts
            report = evaluate_firmware(self._task, self._policy(), where, starts=starts)
            write_json(self._folder / "firmware.json", report.to_json())
            return {**report.to_json(), "folder": str(where), "table": report.table()}
        few = min(EXPERT_STARTS, self._args.starts)
        found = evaluate(self._task, self._policy(), starts=self._args.starts, expert_starts=few)
        write_json(self._folder / "evaluation.json", found.to_json())
        if find_spec("matplotlib") is not None:
            from warpmpc.viz.learn_figures import plot_evaluation

            plot_evaluation(found, self._task.control_dt, self._folder / "evaluation.png")
        return {**found.to_json(), "table": found.table()}

    def export(self) -> dict[str, Any]:
        """C, ONNX, contract and the robot's app; all but the app are compared with each other."""
        from warpmpc.learn import Dataset, export, parity, write_firmware

        policy = self._policy()
        made = self._folder / "data" / "round-00"
        states = Dataset.open(made).shards[0]["x"][:10_000] if made.exists() else None
        written = export(policy, self._folder / "firmware", states=states)
        found = parity(policy, written.folder, states=states)
        if self._task.firmware is not None:
            write_firmware(self._task, policy, self._folder / "app")
        return {
            "folder": str(written.folder),
            "losses": written.losses,
            "weight_bytes": written.weight_bytes,
            "agrees": found.agrees,
            "table": found.table(),
        }

    def _policy(self) -> Policy:
        from warpmpc.learn import Policy

        path = self._folder / "policy.npz"
        if not path.exists():
            name = self._task.name
            raise SettingsError(f"{path} is missing; `warpmpc learn train {name}` makes it.")
        return Policy.load(path)

    def _executor(self) -> Any:
        if self._args.ray is None:
            return "local"
        from warpmpc.learn.ray_executor import RayExecutor

        return RayExecutor(None if self._args.ray == "local" else self._args.ray)


class _ShardBar:
    """Counts shards, and shows them on a terminal."""

    def __init__(self) -> None:
        self.made = -1  # the first report gives the number of existing shards

    def __call__(self, done: int, total: int) -> None:
        self.made += 1
        _line(f"data: {done} of {total} shards" if done < total else "")


def _show_losses(epoch: int, epochs: int, losses: dict[str, float]) -> None:
    text = ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items())
    _line(f"training: epoch {epoch} of {epochs}, {text}" if epoch < epochs else "")


def _line(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def _summary(report: dict[str, Any]) -> str:
    """The report as text."""
    lines = [f"{report['task']} in {report['folder']}"]
    if "data" in report:
        d = report["data"]
        lines.append(
            f"  data         {d['pairs']} pairs of {d['offered']}, {d['pairs_per_s']} pairs/s"
        )
    if "train" in report:
        t = report["train"]
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in t["losses"].items())
        lines.append(f"  training     {t['pairs']} pairs, {t['epochs']} epochs, losses: {losses}")
    for part in ("evaluate", "export"):
        if part in report:
            lines += ["", report[part]["table"]]
    if "export" in report:
        for bits, loss in report["export"]["losses"].items():
            lines.append(
                f"int{bits}: changes outputs by {loss['rms']:.1e} of their range (rms), "
                f"{loss['largest']:.1e} at most; {report['export']['weight_bytes'][bits]} bytes"
            )
    seconds = ", ".join(f"{part} {s} s" for part, s in report["seconds"].items())
    return "\n".join([*lines, "", f"time: {seconds}"])
