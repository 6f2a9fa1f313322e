from estimators.client.callbacks import Callback as Callback
from estimators.client.callbacks import Metric as Metric
from estimators.client.notifying import NotifyCallback as NotifyCallback
from estimators.client.resizing import GrowWithEpochs as GrowWithEpochs
from estimators.client.resizing import RandomResize as RandomResize
from estimators.client.trackers.mlflow import MLflowCallback as MLflowCallback
from estimators.client.trackers.tensorboard import TensorBoardCallback as TensorBoardCallback
from estimators.client.trackers.wandb import WandbCallback as WandbCallback
