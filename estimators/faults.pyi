from estimators.job.faults import Interrupt as Interrupt
from estimators.job.faults import Kill as Kill
from estimators.job.faults import RemoveHost as RemoveHost
from estimators.job.spot_market import SpotMarket as SpotMarket
