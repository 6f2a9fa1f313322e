// Fetch the curves of metrics from a URL, and draw them with uPlot. The page's controls set smoothing and scale.
const COLOURS = ["#3b82d6", "#d9822b", "#2f9e62", "#c2497f", "#8b6fd0", "#7d8b2f"];
const LEGEND = 20; // with more lines, a plot has no legend
const GRID = 2000; // with more lines than LEGEND, a plot has points only at this number of moments

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Numbers of bytes have too many digits for the room beside an axis, so large numbers are written in compact form.
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 3 });
const ticks = (plot, values) => values.map((value) => (
  value === null ? "" : Math.abs(value) >= 1e5 ? compact.format(value) : String(Number(value.toPrecision(6)))));

// Return an exponential moving average without the bias of the first values, like TensorBoard. A null stays a gap.
function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

// If there are many lines, keep only the last value of each line in each cell of a grid of times. Without the
// grid, the joined table would have a row for each time of each line.
function gridded(tables) {
  if (tables.length <= LEGEND) return tables;
  const last = tables.reduce((most, [x]) => Math.max(most, x[x.length - 1] ?? 0), 0);
  const step = last / GRID || 1;
  return tables.map(([x, y]) => {
    const cells = new Map(x.map((time, place) => [Math.round(time / step), y[place]]));
    return [[...cells.keys()].map((cell) => cell * step), [...cells.values()]];
  });
}

export class Curves {
  // place: the element for the plots; address: the URL of the data; logarithmic, smoothing: the page's controls;
  // empty: the element that is shown if there are no curves; unit: the unit of the horizontal axis.
  constructor(place, address, { logarithmic, smoothing, empty, unit = "seconds" }) {
    Object.assign(this, { place, address, logarithmic, smoothing, empty, unit });
    this.plots = [];
    this.latest = {};
    this.waiting = null;
    this.loading = false;
    const draw = () => this.draw();
    logarithmic?.addEventListener("change", draw);
    smoothing?.addEventListener("input", draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
    this.load();
  }

  draw() {
    this.plots.forEach((plot) => plot.destroy());
    this.place.replaceChildren();
    // All places are created before the first plot, because a place's width depends on the places beside it.
    const places = Object.keys(this.latest).map((name) => {
      const place = document.createElement("div");
      place.setAttribute("role", "img");
      place.setAttribute("aria-label", "Curve of " + name + " over " + this.unit);
      this.place.append(place);
      return place;
    });
    const logarithmic = this.logarithmic?.checked ?? false, weight = Number(this.smoothing?.value ?? 0);
    this.plots = Object.entries(this.latest).map(([name, lines], number) => {
      const labels = Object.keys(lines);
      // A logarithmic axis cannot show values that are not above zero.
      const data = uPlot.join(gridded(labels.map((label) => lines[label])).map(([x, y]) => [
        x, smoothed(logarithmic ? y.map((v) => (v > 0 ? v : null)) : y, weight)]));
      const axis = { stroke: colour("--ink"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
      const place = places[number];
      return new uPlot({
        title: name, width: Math.max(260, place.clientWidth), height: 240, axes: [axis, { ...axis, size: 70, values: ticks }],
        legend: { show: labels.length <= LEGEND }, scales: { x: { time: false }, y: { distr: logarithmic ? 3 : 1 } },
        series: [{ label: this.unit }, ...labels.map((label, series) => (
          { label, stroke: COLOURS[series % COLOURS.length], width: 1.5, spanGaps: true }))],
      }, data, place);
    });
    if (this.empty) this.empty.hidden = this.plots.length > 0;
  }

  async load() {
    this.waiting = null;
    if (this.loading) { this.later(); return; }
    this.loading = true;
    try {
      const answer = await fetch(this.address);
      if (answer.ok) { this.latest = await answer.json(); this.draw(); }
    } catch { /* the server has ended; the page shows this elsewhere */ } finally { this.loading = false; }
  }

  // Many events may arrive at once, so the curves are loaded at most every two seconds.
  later() { this.waiting = this.waiting ?? setTimeout(() => this.load(), 2000); }
}
