"""What the page's tests test: code around ``fit()``."""


def train_and_report(estimator):
    job = estimator.fit()
    return f"the last loss: {job.result().final_metrics['loss']}"
