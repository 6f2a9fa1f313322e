// The page of one job: its curves, and the updates that the server sends while the job runs. Text is never inserted as
// HTML.
import { Curves } from "./curves.js";

const byId = (id) => document.getElementById(id);
const log = byId("log"), search = byId("search"), rank = byId("rank"), level = byId("level");
const base = "/jobs/" + encodeURIComponent(log.dataset.job);
const LINES = 5000;
const controls = { logarithmic: byId("log-axis"), smoothing: byId("smoothing") };
const curves = [
  new Curves(byId("curves"), base + "/series", { ...controls, empty: byId("no-metrics") }),
  new Curves(byId("system"), base + "/series?kind=system", { empty: byId("no-system") }),
];
let source = null, waiting = null;

function add({ lines, skipped }) {
  const end = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
  const fresh = document.createDocumentFragment();
  if (skipped) lines.unshift([null, "page", skipped + " earlier lines are not shown; see the whole log", ""]);
  for (const [time, who, text, severity] of lines) {
    const line = document.createElement("div"), name = document.createElement("span");
    if (severity) line.className = severity;
    name.className = "who";
    name.textContent = (time ? new Date(time).toLocaleTimeString() + " " : "") + who + " ";
    line.append(name, text);
    fresh.append(line);
  }
  log.append(fresh);
  while (log.childElementCount > LINES) log.firstElementChild.remove();
  if (end) log.scrollTop = log.scrollHeight;
}

// Replace the parts of the page that change while a job runs. Open forms and typed texts are kept.
async function refresh() {
  waiting = null;
  try {
    const answer = await fetch(base);
    if (!answer.ok) return;
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const id of ["failure", "facts", "values"]) byId(id).replaceWith(made.getElementById(id));
    const old = byId("actions"), fresh = made.getElementById("actions");
    if (old.dataset.shape !== fresh.dataset.shape) old.replaceWith(fresh);
    if (!rank.value) {
      rank.replaceChildren(...made.getElementById("rank").childNodes);
      rank.value = ""; // otherwise, the last option would be selected
    }
  } catch { /* the server has ended; the stream reports this */ }
}

function later() {
  waiting = waiting ?? setTimeout(refresh, 1000);
  curves.forEach((one) => one.later());
}

function open() {
  if (source) source.close();
  log.replaceChildren();
  const wanted = new URLSearchParams({ rank: rank.value, q: search.value, level: level.value });
  source = new EventSource(base + "/stream?" + wanted);
  // After a lost connection, the log begins again with the last lines.
  source.addEventListener("open", () => { log.replaceChildren(); byId("gone").textContent = ""; });
  source.addEventListener("log", (event) => add(JSON.parse(event.data)));
  source.addEventListener("status", (event) => {
    const { status, secondary } = JSON.parse(event.data);
    if (byId("state").textContent !== status) {
      byId("state").textContent = status;
      byId("state").className = "state " + status;
    }
    byId("secondary").textContent = secondary === status ? "" : secondary;
    later();
  });
  source.addEventListener("end", () => { source.close(); later(); });
  source.addEventListener("gone", (event) => { source.close(); byId("gone").textContent = JSON.parse(event.data).text; });
  source.onerror = () => { byId("gone").textContent = "The server does not answer; this page tries again."; };
}

let typing = null;
search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(open, 250); });
rank.addEventListener("change", open);
level.addEventListener("change", open);
open();
