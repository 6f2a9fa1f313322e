"""Implement ``recommend()``, which recommends a strategy and hosts, with reasons. Pure, except for reading a
calibration.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from container.contract import rules
from container.contract.frozen import dataclass
from container.contract.names import unknown
from estimators.job import fleets, instances
from estimators.job.errors import ConfigurationError
from estimators.results import tables
from estimators.results.advice import calibration as calibrations
from estimators.results.advice.model import CPU, GPU, Constants, Hardware, Prediction, Workload, predict
from estimators.results.advice.published import MODELS, KnownModel
from estimators.results.result import Result
from estimators.results.summary import bytes_text, dollars_text, number_text, percent_text, time_text

if TYPE_CHECKING:
    from estimators.results.plots import Plot

STRATEGIES = calibrations.STRATEGIES
#: The relative difference below which speeds are treated as equal. Among equal speeds, fewer hosts are preferred, then
#: the lower price, then the order of the strategies.
_ALIKE = 0.01


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A possible choice: a strategy on a number of hosts, with the predicted time of a step.

    Attributes:
        strategy: The strategy's name. ``none`` for a single process.
        hosts: The number of hosts.
        processes_per_host: The number of processes on each host.
        instance_type: The hosts' instance type, or None.
        prediction: The predicted step.
        dollars_per_million: The price of training on a million records, in US dollars. None if the price is unknown.
    """

    strategy: str
    hosts: int
    processes_per_host: int
    instance_type: str | None
    prediction: Prediction
    dollars_per_million: float | None = None

    @property
    def title(self) -> str:
        """Return a title such as ``mpi on 2 × 4 processes, ml.p3.8xlarge``."""
        where = f", {self.instance_type}" if self.instance_type else ""
        return f"{self.strategy} on {self.hosts} × {self.processes_per_host} processes{where}"


class Recommended(abc.ABC):
    """The base class of recommendations. A recommendation is shown as a choice, reasons, and a table of options."""

    reasons: tuple[str, ...]

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """Return the recommended choice as one line of text."""

    @abc.abstractmethod
    def rows(self) -> list[list[str]]:
        """Return the rows of the table as texts; the first row is the heading."""

    def __str__(self) -> str:
        width, (head, *rows) = tables.terminal_width(), self.rows()
        reasons = tables.paragraphs(self.reasons, width, indent="  ")
        return "\n".join(
            [*tables.paragraphs([f"take {self.title}"], width), *reasons, "", tables.numbers(head, rows, width)]
        )

    def _repr_html_(self) -> str:
        from estimators.results.html import render

        head, *rows = self.rows()
        return render("results/templates/recommendation", choice=self.title, reasons=self.reasons, head=head, rows=rows)


@dataclass(frozen=True)
class Recommendation(Recommended):
    """The recommended configuration, and the other configurations that were considered.

    Attributes:
        options: All considered configurations, the best first.
        reasons: The reasons why the first configuration is the best, as sentences.
    """

    options: tuple[Candidate, ...]
    reasons: tuple[str, ...]

    @property
    def choice(self) -> Candidate:
        """Return the recommended configuration."""
        return self.options[0]

    @property
    def title(self) -> str:
        """Return the recommended strategy and hosts as one line of text."""
        return self.choice.title

    @property
    def strategy(self) -> str:
        """Return the name of the recommended strategy."""
        return self.choice.strategy

    @property
    def distribution(self) -> Any:
        """Return the value for an estimator's argument ``distribution``. Return None for a single process."""
        from container.contract.strategies import MPI, CollectiveAllReduce, ParameterServer

        if self.choice.hosts * self.choice.processes_per_host == 1:
            return None
        if self.strategy == "parameter_server":
            return ParameterServer()
        kind = MPI if self.strategy == "mpi" else CollectiveAllReduce
        return kind(processes_per_host=self.choice.processes_per_host)

    def __repr__(self) -> str:
        return f"<Recommendation: {self.choice.title}>"

    def rows(self) -> list[list[str]]:
        """Return the rows of the table as texts; the first row is the heading."""
        found = [["", "step", "waiting", "exchange", "samples/s", "efficiency", "limited by", "$ per million"]]
        for option in self.options:
            one = option.prediction
            found.append(
                [
                    option.title, time_text(one.step_s), time_text(one.waiting_s), time_text(one.exchange_s),
                    number_text(one.samples_per_second), percent_text(one.efficiency), one.limit,
                    dollars_text(option.dollars_per_million),
                ]
            )  # fmt: skip
        return found

    def plot(self) -> Plot:
        """Draw a plot with a bar for each configuration. A bar shows the parts of a step's time.

        Raises:
            UnsupportedError: matplotlib is not installed.
        """
        from estimators.results.plots.advice import draw

        return draw(self)


def recommend(
    model: Any,
    *,
    hosts: int,
    processes_per_host: int | None,
    instance_type: str | None,
    bandwidth_gbps: float | None,
    device: str | None,
    compute_s: float | None,
    batch_size: int | None,
    strategies: Sequence[str],
    constants: Constants | None,
    calibration: calibrations.Calibration | None,
) -> Recommendation:
    """Recommend a strategy, based on the predicted time of a step under each strategy.

    :func:`estimators.planning.recommend` describes the arguments and the errors.
    """
    workload = workload_of(model, compute_s, batch_size)
    known = instances.describe(instance_type) if instance_type is not None else None
    for name in strategies:
        rules.one_of(*STRATEGIES)("strategy", name)
    if not strategies:
        raise ConfigurationError(f"recommend(strategies=…) is empty. Choose from {', '.join(STRATEGIES)}.")
    per_host = processes_per_host or (known.gpus if known is not None and known.gpus else 1)
    for what, count in (("hosts", hosts), ("processes_per_host", per_host)):
        rules.whole(1)(f"recommend({what}=…)", count)
    kind = device or ("gpu" if known is not None and known.gpus else "cpu")
    rules.one_of("cpu", "gpu")("device", kind)
    gbps = bandwidth_gbps if bandwidth_gbps is not None else (known.network_gbps if known is not None else None)
    if gbps is not None and not (isinstance(gbps, int | float) and gbps > 0 and math.isfinite(gbps)):
        raise ConfigurationError(f"recommend(bandwidth_gbps=…) must be a number over 0, got {gbps!r}.")
    local = instance_type is not None and fleets.is_own(instance_type)
    if calibration is None and instance_type is not None:
        calibration = calibrations.load(instance_type)
    if hosts > 1 and gbps is None and calibration is None and not local:
        raise ConfigurationError(
            "recommend() needs the network bandwidth of a host. Pass bandwidth_gbps= (in Gbit/s), or an instance_type= "
            f"that fleetfit knows, for example {', '.join(instances.offered()[:4])}."
        )
    assumed = constants or (GPU if kind == "gpu" else CPU)
    fleet = Hardware(hosts=hosts, processes_per_host=per_host, bandwidth=(gbps or 80.0) * 1e9 / 8)
    price = known.on_demand if known is not None else None
    options = [
        _option(name, workload, fleet, instance_type, price, assumed, calibration)
        for name in strategies
        if not (name == "parameter_server" and per_host > 1 and hosts == 1)
    ]
    replaced = fleet.size if kind == "gpu" else hosts
    for bigger in bigger_hosts(instance_type, replaced, kind) if hosts > 1 else ():
        alone = Hardware(hosts=1, processes_per_host=fleet.size if kind == "gpu" else 1)
        scaled = (
            workload if kind == "gpu" else dataclasses.replace(workload, batch_size=workload.batch_size * fleet.size)
        )
        options += [
            _option(name, scaled, alone, bigger.name, bigger.on_demand, assumed, None)
            for name in strategies
            if name != "parameter_server" and (kind == "gpu" or name == strategies[0])
        ]
    ranked = _ranked(options)
    return Recommendation(tuple(ranked), tuple(_reasons(ranked, workload, calibration, hosts)))


def bigger_hosts(instance_type: str | None, processes: int, device: str) -> list[instances.InstanceType]:
    """Return the smallest instance type with which one host can replace several hosts. Pure.

    The one host has at least as many GPUs of the same model as the hosts together. For hosts without GPUs, the one host
    is of the same family and has at least as many processors.

    Args:
        instance_type: The type of the hosts to replace.
        processes: The number of GPUs of all hosts together. For hosts without GPUs, the number of hosts.
        device: ``cpu`` or ``gpu``.

    Returns:
        A list that contains only this type. The list is empty if there is no such type.
    """
    mine = instances.describe(instance_type) if instance_type is not None else None
    if mine is None:
        return []
    candidates = [found for name in instances.offered() if (found := instances.describe(name)) is not None]
    if device == "gpu":
        fit = [one for one in candidates if one.device == mine.device and one.gpus >= processes and one.gpus]
        fit.sort(key=lambda one: (one.gpus, one.on_demand or math.inf))
    else:
        family = mine.name.split(".")[1]
        wanted = (mine.vcpus or 0) * processes
        fit = [one for one in candidates if one.name.split(".")[1] == family and (one.vcpus or 0) >= wanted > 0]
        fit.sort(key=lambda one: one.vcpus or 0)
    return [one for one in fit if one.name != mine.name][:1]


def workload_of(model: Any, compute_s: float | None, batch_size: int | None) -> Workload:
    """Return the workload of a model. ``model`` may be anything that :func:`recommend` accepts.

    Raises:
        ConfigurationError: a value is missing, unknown or out of range.
    """
    if compute_s is not None and not (isinstance(compute_s, int | float) and 0 < compute_s < math.inf):
        raise ConfigurationError(f"recommend(compute_s=…) must be a number of seconds over 0, got {compute_s!r}.")
    if isinstance(model, Result):
        if model.model is None:
            raise ConfigurationError(
                f"the result of {model.job_name!r} does not have the model's size: train with cluster.callbacks(), or "
                "give the number of parameters and compute_s=."
            )
        seconds = compute_s if compute_s is not None else calibrations.own_s(model)
        if not seconds:
            raise ConfigurationError(f"the result of {model.job_name!r} has no step times. Give compute_s=.")
        batch = (model.global_batch_size or 1) // (model.processes if model.strategy != "parameter_server" else 1)
        return Workload(
            compute_s=seconds,
            gradient_bytes=model.model.gradient_bytes,
            largest_bytes=model.model.largest_bytes,
            tensors=max(1, model.model.tensors),
            batch_size=batch_size or max(1, batch),
        )
    if isinstance(model, str):
        if model not in MODELS:
            raise ConfigurationError(unknown("model", model, tuple(MODELS)))
        return _sized(MODELS[model], compute_s, batch_size)
    if isinstance(model, KnownModel):
        return _sized(model, compute_s, batch_size)
    variables = getattr(model, "trainable_variables", None)
    if variables:
        sizes = [math.prod(int(size) for size in variable.shape) for variable in variables]
        described = KnownModel(
            name="model", parameters=float(sum(sizes)), largest=float(max(sizes)), tensors=len(sizes)
        )  # fmt: skip
        return _sized(described, compute_s, batch_size)
    if isinstance(model, int | float) and not isinstance(model, bool) and 0 < model < math.inf:
        described = KnownModel(name="model", parameters=float(model), largest=float(model) / 10, tensors=50)
        return _sized(described, compute_s, batch_size)
    raise ConfigurationError(
        "recommend() takes a result, a built Keras model, a published model's name "
        f"({', '.join(MODELS)}) or a number of parameters; got {model!r}."
    )


def _sized(model: KnownModel, compute_s: float | None, batch_size: int | None) -> Workload:
    if compute_s is None:
        raise ConfigurationError(
            "recommend() needs compute_s=, the seconds that one process alone needs for its part of a step. Instead, "
            "you can pass the result of a short run of one process: recommend(job.result(), …)."
        )
    return model.workload(compute_s=compute_s, batch_size=batch_size or 1)


def _option(
    strategy: str,
    workload: Workload,
    fleet: Hardware,
    instance_type: str | None,
    price: float | None,
    constants: Constants,
    calibration: calibrations.Calibration | None,
) -> Candidate:
    if calibration is not None and strategy in calibration.strategies and fleet.size > 1:
        found = _calibrated(strategy, workload, fleet, calibration)
    else:
        found = predict(strategy, workload, fleet, constants)
    dollars = None
    if price is not None:
        dollars = 1e6 / found.samples_per_second / 3600.0 * price * fleet.hosts
    return Candidate(
        strategy=strategy if fleet.size > 1 else "none",
        hosts=fleet.hosts,
        processes_per_host=fleet.processes_per_host,
        instance_type=instance_type,
        prediction=found,
        dollars_per_million=dollars,
    )


def _calibrated(
    strategy: str, workload: Workload, fleet: Hardware, calibration: calibrations.Calibration
) -> Prediction:
    step_s = calibration.step_s(
        strategy, alone_s=workload.compute_s, gradient_bytes=workload.gradient_bytes, processes=fleet.size
    )
    compute_s = calibration.compute_s(strategy, workload.compute_s, fleet.size)
    exchange_s = step_s - compute_s
    return Prediction(
        strategy=strategy,
        step_s=step_s,
        compute_s=compute_s,
        waiting_s=0.0,
        exchange_s=exchange_s,
        limit="computing" if exchange_s < 0.05 * compute_s else "links",
        samples_per_second=fleet.size * workload.batch_size / step_s,
        efficiency=workload.compute_s / step_s,
    )


def _ranked(options: Sequence[Candidate]) -> list[Candidate]:
    """Sort the options by speed, the fastest first.

    Speeds that are almost equal to the best speed are treated as equal. Options with these speeds are sorted by the
    number of hosts, then by price. Options with equal numbers and prices keep their order.
    """
    best = max(option.prediction.samples_per_second for option in options)
    alike = [option for option in options if option.prediction.samples_per_second >= best * (1 - _ALIKE)]
    alike.sort(key=lambda option: (option.hosts, option.dollars_per_million or 0.0))
    others = [option for option in options if option not in alike]
    others.sort(key=lambda option: -option.prediction.samples_per_second)
    return [*alike, *others]


_WHY = {
    "mpi": "Horovod reduces gradients in a ring while other gradients are still being computed",
    "collective_all_reduce": "CollectiveAllReduce reduces gradients in a ring, packed",
    "parameter_server": "parameter servers do not wait for slow processes",
    "none": "one process exchanges nothing",
}


def _reasons(
    ranked: Sequence[Candidate], workload: Workload, calibration: calibrations.Calibration | None, hosts: int
) -> list[str]:
    choice = ranked[0]
    found = [
        f"{_WHY[choice.strategy]}: {percent_text(choice.prediction.efficiency)} of the speed of processes that "
        f"exchange nothing, limited by {choice.prediction.limit}."
    ]
    if choice.hosts == 1 and hosts > 1:
        found.append(
            f"One host with the same number of devices is preferred to {hosts} hosts: gradients do not leave the host."
        )
    for other in ranked[1:]:
        if other.strategy != choice.strategy or other.hosts != choice.hosts:
            ratio = choice.prediction.samples_per_second / other.prediction.samples_per_second
            found.append(
                f"{other.title}: {ratio:.2f} times slower, limited by {other.prediction.limit} "
                f"({bytes_text(workload.gradient_bytes)} of gradients, {time_text(workload.compute_s)} of computing)."
            )
            break
    if choice.strategy == "parameter_server":
        found.append(
            "Updates are asynchronous: to learn as much per step as with synchronous updates, the training may need a "
            "smaller learning rate."
        )
    if calibration is None:
        found.append("Based on assumptions about links and libraries; `fleetfit calibrate` measures their costs.")
    elif calibration.error is None:
        found.append("Based on measured costs (fleetfit calibrate), which were not checked.")
    else:
        found.append(
            "Based on measured costs (fleetfit calibrate), which were off by "
            f"{percent_text(calibration.error)} in held-out runs."
        )
    return found
