// The curves of the page that compares jobs, and of the page of a tuning job.
import { Curves } from "./curves.js";

const place = document.getElementById("curves");
new Curves(place, place.dataset.series, {
  logarithmic: document.getElementById("log-axis"), smoothing: document.getElementById("smoothing"),
  empty: document.getElementById("no-metrics"), unit: place.dataset.unit,
});
