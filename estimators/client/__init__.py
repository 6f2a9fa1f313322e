"""What users hold: the estimator, the training job, its plan, and what shows them."""
