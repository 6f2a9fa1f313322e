from estimators.client.simulation.fleet import FleetRecommendation as FleetRecommendation
from estimators.client.simulation.fleet import recommend as recommend
from estimators.client.simulation.forecast import Forecast as Forecast
from estimators.client.simulation.forecast import simulate as simulate
from estimators.client.simulation.model import Timings as Timings
from estimators.results.advice.model import Workload as Workload
from estimators.results.advice.recommending import Recommendation as Recommendation
