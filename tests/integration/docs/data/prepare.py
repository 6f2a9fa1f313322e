from estimators import TensorFlow

estimator = TensorFlow(
    entry_point="train_pipe.py", source_dir="entrypoints", instance_type="local_process", hyperparameters={"epochs": 1}
)
