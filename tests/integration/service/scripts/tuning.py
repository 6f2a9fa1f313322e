"""The SDK's own HyperparameterTuner, as it is written for SageMaker; then what it is like, to compare ours with."""

import inspect
import json
from pathlib import Path

import sagemaker
from sagemaker import tuner as original
from sagemaker.analytics import HyperparameterTuningJobAnalytics
from sagemaker.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter
from sagemaker.tensorflow import TensorFlow

session = sagemaker.Session()
estimator = TensorFlow(
    entry_point="tuned.py",
    source_dir=str(Path(__file__).parent.parent / "code"),
    role="SageMakerRole",
    framework_version="2.16",
    py_version="py310",
    instance_count=1,
    instance_type="ml.m5.large",
    sagemaker_session=session,
)
searched = original.HyperparameterTuner(
    estimator,
    "score",
    {
        "learning-rate": ContinuousParameter(1e-3, 1.0, "Logarithmic"),
        "optimizer": CategoricalParameter(["sgd", "adam"]),
    },
    metric_definitions=[{"Name": "score", "Regex": "score: ([0-9.]+);"}],
    max_jobs=3,
    max_parallel_jobs=2,
    random_seed=1,
)
searched.fit(job_name="tuned")
frame = searched.analytics().dataframe()
print("trials:", len(frame), sorted(set(frame["TrainingJobStatus"])))
best = frame.sort_values("FinalObjectiveValue").iloc[-1]
assert searched.best_training_job() == best["TrainingJobName"]
print("best:", searched.best_estimator().hyperparameters()["learning-rate"], best["learning-rate"])
attached = original.HyperparameterTuner.attach("tuned")
assert attached.best_training_job() == searched.best_training_job()
print("attached:", sorted(HyperparameterTuningJobAnalytics("tuned").tuning_ranges), attached.strategy)
client = session.sagemaker_client
[found] = client.list_hyper_parameter_tuning_jobs(NameContains="tuned")["HyperParameterTuningJobSummaries"]
print("listed:", found["HyperParameterTuningJobStatus"], found["TrainingJobStatusCounters"]["Completed"])
first = client.list_training_jobs_for_hyper_parameter_tuning_job(HyperParameterTuningJobName="tuned", MaxResults=2)
assert len(first["TrainingJobSummaries"]) == 2
assert first["NextToken"]
try:
    client.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName="tuned")
except client.exceptions.ClientError as error:
    print("stopped:", error.response["Error"]["Message"])
searched.fit(job_name="tuned-2", wait=False)
searched.stop_tuning_job()
try:
    searched.wait()
except Exception as error:  # noqa: BLE001 - the SDK raises for a job that was stopped
    print("raised:", type(error).__name__)
print("status:", searched.describe()["HyperParameterTuningJobStatus"])

defaults = {
    name: repr(value.default)
    for name, value in inspect.signature(original.HyperparameterTuner).parameters.items()
    if value.default is not inspect.Parameter.empty
}
names = [name for name in vars(original.HyperparameterTuner) if not name.startswith("_")]
forms = [
    ContinuousParameter(0.1, 1).as_tuning_range("a"),
    IntegerParameter(1, 5, "Logarithmic").as_tuning_range("a"),
    CategoricalParameter(["x", "y"]).as_json_range("a"),
    CategoricalParameter([1, 2]).as_tuning_range("a"),
    original.WarmStartConfig(original.WarmStartTypes.TRANSFER_LEARNING, {"b"}).to_input_req(),
    original.StrategyConfig(original.HyperbandStrategyConfig(9, 1)).to_input_req(),
    original.TuningJobCompletionCriteriaConfig(3, True, 0.5).to_input_req(),
]
columns = list(frame.columns)
print("original:", json.dumps({"defaults": defaults, "names": names, "forms": forms, "columns": columns}))
