"""Which strategy: the cost model against what is published, its calibration, and what is recommended."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import scaling
from hypothesis import given
from hypothesis import strategies as st
from synthetic import result

from estimators import ConfigurationError
from estimators.cli.main import main
from estimators.client import calibrate
from estimators.job.errors import RecordError
from estimators.planning import Recommendation, recommend
from estimators.results import result as result_module
from estimators.results.advice import calibration as calibrations
from estimators.results.advice import published
from estimators.results.advice.calibration import Calibration, MeasuredSize, Observation, StepCost
from estimators.results.advice.model import GPU, Constants, Hardware, Workload, predict, ring_latency, ring_seconds
from estimators.results.advice.recommending import bigger_hosts
from estimators.results.result import Result

INCEPTION, VGG = published.MODELS["inception_v1"], published.MODELS["vgg16"]


# --- the model ---


def test_a_ring_moves_what_it_must() -> None:
    fleet = Hardware(hosts=4, bandwidth=1e9)
    plain = Constants(ring_share=1.0, latency_s=1e-3)
    assert ring_seconds(1e9, fleet, 1.0) == pytest.approx(2 * 3 / 4)
    assert ring_latency(fleet, plain) == pytest.approx(6e-3)


@pytest.mark.parametrize("name", scaling.HOROVOD_EFFICIENCY)
def test_horovod_on_512_gpus_as_published(name: str) -> None:
    found = predict("mpi", scaling.on_p100(name), scaling.HOROVOD_FLEET, scaling.HOROVOD_CONSTANTS)
    assert found.efficiency == pytest.approx(scaling.HOROVOD_EFFICIENCY[name], abs=0.03)


@pytest.mark.parametrize("name", scaling.SERVERS_EFFICIENCY)
def test_parameter_servers_lose_half_of_128_gpus_as_published(name: str) -> None:
    found = predict("parameter_server", scaling.on_p100(name), scaling.SERVERS_FLEET)
    assert found.efficiency == pytest.approx(scaling.SERVERS_EFFICIENCY[name], abs=0.1)


def test_parameter_servers_fall_behind_as_hosts_grow_and_a_ring_does_not() -> None:
    workload = scaling.on_p100("inception_v3")
    fleets = [dataclasses.replace(scaling.HOROVOD_FLEET, hosts=hosts) for hosts in (2, 4, 8, 16, 32, 64, 128)]
    servers = [predict("parameter_server", workload, fleet).efficiency for fleet in fleets]
    ring = [predict("mpi", workload, fleet).efficiency for fleet in fleets]
    assert servers == sorted(servers, reverse=True) and servers[-1] < 0.3
    assert min(ring) > 0.88
    assert predict("parameter_server", workload, fleets[-1]).limit == "a server's link"


def test_horovod_sends_during_the_backward_pass_and_collective_all_reduce_afterwards() -> None:
    many = Workload(compute_s=0.1, gradient_bytes=28e6, tensors=116, batch_size=32)
    fleet = Hardware(hosts=8, bandwidth=1.25e9)
    alike = dataclasses.replace(GPU, collective_share=GPU.ring_share)
    ring, pack = (predict(name, many, fleet, alike).exchange_s for name in ("mpi", "collective_all_reduce"))
    assert ring < pack / 2
    assert pack == pytest.approx(ring_seconds(28e6, fleet, GPU.ring_share) + ring_latency(fleet, GPU))


def test_one_process_exchanges_nothing() -> None:
    found = predict("mpi", VGG.workload(compute_s=0.1, batch_size=32), Hardware(hosts=1))
    assert found.efficiency == 1 and found.samples_per_second == pytest.approx(320)


def test_an_unknown_strategy_has_no_model() -> None:
    with pytest.raises(ValueError, match="no cost model of 'gossip'"):
        predict("gossip", VGG.workload(compute_s=0.1), Hardware(hosts=2))


# --- the AWS guide's table: model size × CPU or GPU ---


def cell(model: published.KnownModel, instance_type: str, compute_s: float) -> Recommendation:
    """Four hosts; the seconds are of a batch of 64 on such a host."""
    return recommend(
        model, hosts=4, instance_type=instance_type, compute_s=compute_s, batch_size=64,
        strategies=("mpi", "parameter_server"),
    )  # fmt: skip


def test_models_on_processors_take_parameter_servers() -> None:
    assert cell(INCEPTION, "ml.c5.9xlarge", 1.0).strategy == "parameter_server"
    assert cell(VGG, "ml.c5.9xlarge", 6.0).strategy == "parameter_server"


def test_small_models_on_gpus_take_horovod() -> None:
    found = cell(INCEPTION, "ml.p3.2xlarge", 0.14)
    assert found.strategy == "mpi"
    several = {option.strategy: option for option in found.options if option.hosts == 4}
    ratio = several["mpi"].prediction.samples_per_second / several["parameter_server"].prediction.samples_per_second
    assert ratio > 1.1  # also where there is no bigger host


def test_large_models_on_gpus_take_horovod_on_a_single_host() -> None:
    found = cell(VGG, "ml.p3.2xlarge", 0.28)
    assert (found.strategy, found.choice.hosts, found.choice.processes_per_host) == ("mpi", 1, 4)
    assert found.choice.instance_type == "ml.p3.8xlarge"
    several = max(option.prediction.efficiency for option in found.options if option.hosts == 4)
    assert several < 0.5 < found.choice.prediction.efficiency


# --- recommend() ---


def test_one_bigger_host_is_considered_before_several() -> None:
    assert [one.name for one in bigger_hosts("ml.p3.2xlarge", 4, "gpu")] == ["ml.p3.8xlarge"]
    assert [one.name for one in bigger_hosts("ml.c5.9xlarge", 2, "cpu")] == ["ml.c5.18xlarge"]
    assert bigger_hosts("ml.p3.16xlarge", 16, "gpu") == []
    found = recommend("resnet50", hosts=4, instance_type="ml.p3.2xlarge", compute_s=0.2, batch_size=64)
    assert found.choice.hosts == 1
    assert any("is preferred to 4 hosts" in reason for reason in found.reasons)


@pytest.mark.parametrize("processes", [1, 4])
def test_a_bigger_host_without_gpus_has_the_cores_of_all_hosts(processes: int) -> None:
    found = recommend("vgg16", hosts=2, processes_per_host=processes, instance_type="ml.c5.2xlarge", compute_s=1.0)
    assert [one.instance_type for one in found.options if one.hosts == 1] == ["ml.c5.4xlarge"]


def test_it_says_why_and_shows_itself() -> None:
    found = recommend("vgg16", hosts=4, bandwidth_gbps=10, device="gpu", compute_s=0.3, batch_size=64)
    assert found.distribution is not None
    assert "times slower" in str(found) and "fleetfit calibrate" in str(found)
    assert "<table" in found._repr_html_()
    assert found.plot()._repr_png_().startswith(b"\x89PNG")


def test_from_a_result_of_one_process() -> None:
    found = recommend(result("mpi", hosts=1, ranks=1, waits_s=(0.0,)), hosts=4, bandwidth_gbps=1)
    assert found.choice.prediction.compute_s == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    ("model", "options", "part"),
    [
        ("vgg61", {"compute_s": 1}, "vgg16"),
        ("vgg16", {}, "needs compute_s="),
        ("vgg16", {"compute_s": 0}, "over 0"),
        ("vgg16", {"compute_s": 1, "hosts": 2}, "bandwidth_gbps="),
        ("vgg16", {"compute_s": 1, "hosts": 0}, "at least 1"),
        ("vgg16", {"compute_s": 1, "device": "tpu"}, "cpu"),
        ("vgg16", {"compute_s": 1, "strategies": ["mpii"]}, "mpi"),
        ("vgg16", {"compute_s": 1, "hosts": 2, "bandwidth_gbps": -1}, "over 0"),
        (None, {"compute_s": 1}, "a number of parameters"),
        (result(None, events=[]), {}, "does not have the model's size"),
    ],
)
def test_what_is_missing_or_wrong_is_said(model: object, options: dict, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        recommend(model, **options)


# --- calibration ---


def test_a_line_is_found_and_never_negative() -> None:
    line = calibrations.line_through([(1e6, 0.003), (2e6, 0.004), (10e6, 0.012)], [9.0, 4.0, 1.0])
    assert line.fixed_s == pytest.approx(0.002) and line.bandwidth == pytest.approx(1e9)
    steep = calibrations.line_through([(1e6, 0.001), (2e6, 0.004)], [16.0, 1.0])
    assert steep.fixed_s == 0 and steep.bandwidth > 0
    flat = calibrations.line_through([(1e6, 0.004), (1e6, 0.004)], [1.0, 1.0])
    assert flat.seconds(1e6) == pytest.approx(0.004, rel=0.02)
    falling = calibrations.line_through([(1e6, 0.004), (9e6, 0.003)], [1.0, 1.0])
    assert falling.seconds(1e6) == pytest.approx(falling.seconds(9e6), rel=0.1)


SMALL, MIDDLE, LARGE = 1e5, 5e6, 2e7


def alone_s(size: float) -> float:
    """Computing of a model, which has fixed costs too."""
    return 0.002 + size / 4e8


def observed(
    step: Callable[[str, int, float], tuple[float, float]], strategies: Sequence[str], counts: Sequence[int], *,
    sizes: Sequence[float],
) -> list[Observation]:  # fmt: skip
    """Steps of a machine that ``step`` describes: strategy, processes, bytes -> a step's seconds, and its own part."""
    found = [
        Observation(strategy="none", processes=1, gradient_bytes=size, step_s=alone_s(size), own_s=alone_s(size))
        for size in sizes
    ]
    for strategy in strategies:
        for count in counts:
            for size in sizes:
                step_s, own_s = step(strategy, count, size)
                known = None if strategy == "parameter_server" else own_s
                found.append(
                    Observation(
                        strategy=strategy, processes=count, gradient_bytes=size, step_s=step_s, own_s=known
                    )
                )  # fmt: skip
    return found


seconds = st.floats(1e-4, 0.05)
rates = st.floats(1e7, 1e10)


@given(
    fixed=st.tuples(seconds, seconds), bandwidths=st.tuples(rates, rates), contention=st.tuples(
        st.floats(1.0, 2.0), st.floats(2.0, 4.0)
    ),
)  # fmt: skip
def test_the_costs_that_steps_were_made_of_are_found_again(
    fixed: tuple[float, float], bandwidths: tuple[float, float], contention: tuple[float, float]
) -> None:
    truth = Calibration(
        instance_type="local_process", cores=2, points=tuple(
            MeasuredSize(processes=count, lines={
                name: StepCost(fixed_s=fixed[place] * factor, bandwidth=bandwidths[place], contention=contended)
                for name, factor in (("mpi", 1.0), ("parameter_server", 2.0))
            })
            for place, (count, contended) in enumerate(zip((2, 4), contention, strict=True))
        ),
    )  # fmt: skip

    def step(strategy: str, count: int, size: float) -> tuple[float, float]:
        step_s = truth.step_s(strategy, alone_s=alone_s(size), gradient_bytes=size, processes=count)
        return step_s, truth.compute_s(strategy, alone_s(size), count)

    everything = observed(step, ("mpi", "parameter_server"), (2, 3, 4), sizes=(SMALL, MIDDLE, LARGE))
    known = [one for one in everything if one.processes != 3 and one.gradient_bytes != MIDDLE]
    found = calibrations.fit(known, instance_type="local_process", cores=2)
    assert found.strategies == ("mpi", "parameter_server")
    checks = calibrations.check(found, everything)
    assert len(checks) == 2 * 3 * 3
    for one in checks:
        assert abs(one.error) < 0.01, str(one)
    for mine, theirs in zip(found.points, truth.points, strict=True):
        assert mine.lines["mpi"].contention == pytest.approx(theirs.lines["mpi"].contention)


@given(
    cores=st.integers(1, 8),
    threads=st.floats(0.5, 2.0),
    exchange_threads=st.floats(0.1, 2.0),
    latency_s=st.floats(0.0, 0.01),
    bandwidth=st.floats(5e7, 5e9),
)
def test_processes_that_share_processors_are_not_held_back_twice(
    cores: int, threads: float, exchange_threads: float, latency_s: float, bandwidth: float
) -> None:
    """A machine that is not made of the calibration's lines: work queues for the processors.

    A step takes one process's path through it, or the processor time of all ÷ the processors, whichever is longer.
    """

    def step(strategy: str, count: int, size: float) -> tuple[float, float]:
        exchange_s = 2 * (count - 1) * latency_s + 2 * (count - 1) / count * size / bandwidth
        work_s = alone_s(size) * threads + exchange_s * exchange_threads
        step_s = max(alone_s(size) + exchange_s, count * work_s / cores)
        return step_s, min(step_s, alone_s(size) * max(1.0, count * threads / cores))

    everything = observed(step, ("mpi", "collective_all_reduce"), (2, 3, 4), sizes=(SMALL, MIDDLE, LARGE))
    known = [one for one in everything if one.processes != 3 and one.gradient_bytes != MIDDLE]
    found = calibrations.fit(known, instance_type="local_process", cores=cores)
    unseen = [one for one in calibrations.check(found, everything) if " 3 processes" in one.name or "5 MB" in one.name]
    assert len(unseen) == 2 * 5
    for one in unseen:
        assert abs(one.error) < 0.6, str(one)
    error = calibrations.mean_error(unseen)
    assert error is not None and error < 0.35  # most are off by less than a hundredth


def test_hosts_of_their_own_go_on_as_a_ring_does() -> None:
    def step(strategy: str, count: int, size: float) -> tuple[float, float]:
        sent = 2.0 * size if strategy == "parameter_server" else 2 * (count - 1) / count * size
        exchange_s = 2 * (count - 1) * 1e-4 + sent / 1e9
        return alone_s(size) + exchange_s, alone_s(size)

    names = ("mpi", "parameter_server")
    known = observed(step, names, (2, 4), sizes=(SMALL, LARGE))
    found = calibrations.fit(known, instance_type="ml.c5.xlarge", cores=None)
    for one in calibrations.check(found, observed(step, names, (3, 8, 16), sizes=(SMALL, MIDDLE, LARGE))):
        assert abs(one.error) < 0.02, str(one)


def shared(cores: int, contention: Mapping[int, float]) -> Calibration:
    """A calibration that knows how processes slow each other down."""
    points = tuple(
        MeasuredSize(processes=count, lines={"mpi": StepCost(fixed_s=0.0, bandwidth=1e9, contention=times)})
        for count, times in contention.items()
    )
    return Calibration(instance_type="local_process", points=points, cores=cores)


def test_shared_processors_slow_each_other_down() -> None:
    found = shared(2, {2: 1.5, 4: 3.0})
    assert [found.compute_s("mpi", 1.0, count) for count in (1, 2, 3, 4, 8)] == [1, 1.5, 2.25, 3, 6]
    idle = shared(16, {2: 1.0})
    assert [idle.compute_s("mpi", 1.0, count) for count in (2, 16, 32)] == [1, 1, 2]
    with pytest.raises(ConfigurationError, match="calibrated strategy"):
        idle.compute_s("parameter_server", 1.0, 2)


def test_what_spins_while_it_waits_slows_only_its_own_strategy_down() -> None:
    times = {"mpi": 3.0, "collective_all_reduce": 1.5, "parameter_server": 1.2}

    def step(strategy: str, count: int, size: float) -> tuple[float, float]:
        own_s = alone_s(size) * times[strategy]
        return own_s + (0.0 if strategy == "parameter_server" else 0.004), own_s

    everything = observed(step, calibrations.STRATEGIES, (2,), sizes=(SMALL, MIDDLE, LARGE))
    found = calibrations.fit(everything, instance_type="local_process", cores=2)
    [point] = found.points
    assert {name: line.contention for name, line in point.lines.items()} == pytest.approx(times)
    assert all(abs(one.error) < 0.01 for one in calibrations.check(found, everything))


def test_one_number_of_processes_is_enough_and_others_follow_from_it() -> None:
    def step(strategy: str, count: int, size: float) -> tuple[float, float]:
        return alone_s(size) * count / 2 + 0.004 * count / 2 + size / 1e9 * count / 2, alone_s(size) * count / 2

    known = observed(step, ("mpi",), (2,), sizes=(SMALL, LARGE))
    found = calibrations.fit(known, instance_type="local_process", cores=2)
    checks = calibrations.check(found, observed(step, ("mpi",), (2, 4), sizes=(SMALL, LARGE)))
    assert max(abs(one.error) for one in checks) < 0.35, [str(one) for one in checks]


def test_it_is_kept_and_an_older_versions_is_refused_with_the_remedy(tmp_path: Path) -> None:
    known = observed(lambda *_: (0.1, 0.05), ("mpi",), (2, 4), sizes=(SMALL, LARGE))
    found = dataclasses.replace(calibrations.fit(known, instance_type="local_process", cores=2), error=0.25)
    file = found.save(tmp_path)
    assert calibrations.load("local_process", tmp_path) == found
    assert calibrations.load("ml.c5.xlarge", tmp_path) is None
    said = recommend("vgg16", hosts=2, compute_s=1.0, instance_type="local_process", calibration=found)
    assert "off by 25 %" in str(said)
    file.write_text('{"local_process": {"instance_type": "local_process", "lines": {}, "cores": 2, "threads": 1.0}}')
    with pytest.raises(RecordError, match="Run `fleetfit calibrate`"):
        calibrations.load("local_process", tmp_path)


def test_too_little_to_calibrate_by_is_said() -> None:
    with pytest.raises(ConfigurationError, match="one process"):
        calibrations.fit([], instance_type="local_process", cores=2)
    with pytest.raises(ConfigurationError, match="several processes"):
        calibrations.fit(
            [Observation(strategy="mpi", processes=1, gradient_bytes=1e6, step_s=0.01)], instance_type="x", cores=2
        )
    assert calibrations.load("local_process", Path("/nonexistent")) is None


def reported(strategy: str, ranks: int, models: Sequence[tuple[float, float, float]]) -> Result:
    """What a run of the probe leaves: of each model and rank its bytes, a step, and its own part."""
    names = ("gradient_bytes", "step_s", "own_s")
    series = tuple(
        result_module.Point(
            name=name, value=value + (1e-3 * rank if name == "step_s" else 0.0), rank=rank, host="algo-1", attempt=0,
            elapsed_s=1.0,
        )
        for model in models
        for rank in range(ranks)
        for name, value in zip(names, model, strict=True)
    )  # fmt: skip
    return dataclasses.replace(result(strategy), processes=ranks, series=series)


def test_what_the_probe_reported_is_read_model_by_model() -> None:
    small, large = calibrate.observations_of(reported("mpi", 3, [(1e5, 0.01, 0.005), (2e7, 0.2, 0.1)]))
    assert small == Observation(strategy="mpi", processes=3, gradient_bytes=1e5, step_s=0.011, own_s=0.005)
    assert (large.gradient_bytes, large.own_s) == (2e7, 0.1) and large.step_s == pytest.approx(0.201)
    assert calibrate.observations_of(result(None, events=[])) == []


def test_the_command_tells_what_it_found_and_how_far_off_it_is_for_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEETFIT_HOME", str(tmp_path))
    sizes = {calibrate.SMALL: SMALL, calibrate.LARGE: LARGE, calibrate.BETWEEN: MIDDLE}

    def step(strategy: str, count: int, size: float) -> tuple[float, float]:
        late_s = 0.01 if count == 3 else 0.0  # what the calibration does not know of
        return alone_s(size) + 0.002 + 2 * (count - 1) / count * size / 1e9 + late_s, alone_s(size)

    def measure(
        strategies: Sequence[str], counts: Sequence[int], models: Sequence[str], *, alone: bool = False, **_: object
    ) -> list[Observation]:
        found = observed(step, strategies, counts, sizes=[sizes[model] for model in models])
        return [one for one in found if alone or not one.is_alone]

    monkeypatch.setattr(calibrate, "measure", measure)
    monkeypatch.setattr(calibrate, "observations", tuple)
    monkeypatch.setattr("estimators.cli.calibrate._say_failures", lambda comparison: None)
    arguments = ["calibrate", "-t", "ml.c5.xlarge", "-s", "mpi"]
    assert main(arguments) == 0
    said = capsys.readouterr()
    assert "mpi, 2 processes: 2.00 ms per step and 1,000 MB/s" in said.out
    assert "mpi, 4 processes: 2.00 ms per step and 1,000 MB/s" in said.out
    fitted, unseen = said.out.split("mean error of the fitted steps: 0%")
    assert "2 processes, 20 MB: measured" in fitted and "5 MB" not in fitted
    assert "2 processes, 5 MB: measured" in unseen and "(+0%)" in unseen
    assert re.search(r"3 processes, 5 MB: measured 3\d\.\d ms, predicted 2\d\.\d ms \(-3\d%\)", unseen), unseen
    [error] = re.findall(r"mean error of the other steps: (\d+)%", unseen)
    assert "4 short runs" in said.err and "calibration.json" in said.err
    kept = calibrations.load("ml.c5.xlarge", tmp_path)
    assert kept is not None and kept.error == pytest.approx(int(error) / 100, abs=0.006)
    assert main([*arguments, "--no-check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unseen"] == []
    assert main([*arguments, "--processes", "1"]) != 0
    assert "at least 2" in capsys.readouterr().err
