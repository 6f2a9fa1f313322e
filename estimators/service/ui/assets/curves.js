// Curves of metrics: fetched from an address, drawn by uPlot, smoothed and scaled as the page's controls say.
const COLOURS = ["#3b82d6", "#d9822b", "#2f9e62", "#c2497f", "#8b6fd0", "#7d8b2f"];
const LEGEND = 20; // more lines than this have no legend
const GRID = 2000; // and their points lie on so many moments

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Bytes have many digits, for which there is no room beside an axis.
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 3 });
const ticks = (plot, values) => values.map((value) => (
  value === null ? "" : Math.abs(value) >= 1e5 ? compact.format(value) : String(Number(value.toPrecision(6)))));

// An exponential moving average without the bias of its beginning, as TensorBoard's. What is no number stays a gap.
function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

// Of many lines, the last value of each in each cell of a grid: else the table of all of them would be their product.
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
  // place: where; address: of the data; controls: elements that the page has for them; unit: of the horizontal axis.
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
    // All places before the first plot: each one's width depends on how many there are beside it.
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
      // What is not above zero has no place on a logarithmic axis.
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
    } catch { /* the server has ended, which the page says elsewhere */ } finally { this.loading = false; }
  }

  // Many events come at once: the curves follow at most every two seconds.
  later() { this.waiting = this.waiting ?? setTimeout(() => this.load(), 2000); }
}
