// A page with curves only: those of compared jobs, or of a study.
import { Curves } from "./curves.js";

const place = document.getElementById("curves");
new Curves(place, place.dataset.series, {
  logarithmic: document.getElementById("log-axis"), smoothing: document.getElementById("smoothing"),
  empty: document.getElementById("no-metrics"), unit: place.dataset.unit,
});
