from container.contract.channels import Channel as Channel
from estimators.job.inputs import FileSystemInput as FileSystemInput
from estimators.job.inputs import ShuffleConfig as ShuffleConfig
from estimators.job.inputs import TrainingInput as TrainingInput
