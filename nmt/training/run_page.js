
const { runs, higher } = data;
const NAMES = {
  loss: "loss (nats a token)", learning_rate: "learning rate", gradient_norm: "gradient norm",
  tokens_per_second: "target tokens/s", bleu: "BLEU", chrf: "chrF", ter: "TER", comet: "COMET",
};
const WIDTH = 480, HEIGHT = 220, LEFT = 52, BOTTOM = 22, TOP = 8, RIGHT = 8;
const drawn = (tag, parent, attributes, text) => element(tag, parent, text, attributes, SVG);

// Colours of equal lightness, told apart by their hue, and dashes for who sees no hue.
const color = (number) => `hsl(${(212 + 137 * number) % 360} 70% var(--light))`;
const dashes = (number) => ["", "7 3", "2 3", "9 3 2 3"][number % 4];

function shown(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size && (size < 0.001 || size >= 1e9)) return value.toExponential(2);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

// Three to six round numbers within a span.
function ticks(low, high) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

// A chart. series: {name, x, y, color, dash, kind}; logarithmic: the scale of y.
function chart(parent, title, series, logarithmic) {
  const its = series.map((one) => ({ ...one, points: one.x.map((x, i) => [x, one.y[i]]).filter(([, y]) => y !== null && y !== undefined && (!logarithmic || y > 0)) })).filter((one) => one.points.length);
  if (!its.length) return;
  const figure = element("figure", parent);
  const caption = element("figcaption", figure, title);
  const scale = logarithmic ? Math.log10 : (value) => value;
  const all = its.flatMap((one) => one.points);
  const extent = (values) => [Math.min(...values), Math.max(...values)];
  // One scale of x for all charts.
  const axis = byId("axis").value;
  const [x0, x1] = extent(runs.flatMap((run) => [...run.train[axis], ...Object.values(run.valid).flatMap((set) => set[axis])]));
  let [y0, y1] = extent(all.map(([, y]) => scale(y)));
  if (y1 - y0 < 1e-12) [y0, y1] = [y0 - (Math.abs(y0) || 1) * 0.1, y1 + (Math.abs(y1) || 1) * 0.1];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
  const py = (y) => TOP + (1 - (scale(y) - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const svg = drawn("svg", figure, { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  const values = logarithmic ? ticks(10 ** y0, 10 ** y1) : ticks(y0, y1);
  for (const value of values) {
    drawn("line", svg, { x1: LEFT, x2: WIDTH - RIGHT, y1: py(value), y2: py(value), class: "grid" });
    drawn("text", svg, { x: LEFT - 5, y: py(value) + 4, "text-anchor": "end" }, shown(value));
  }
  for (const value of ticks(x0, x1)) drawn("text", svg, { x: px(value), y: HEIGHT - 5, "text-anchor": "middle" }, shown(value));
  for (const one of its) {
    const path = one.points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    drawn("path", svg, { d: path, class: `curve ${one.kind}`, stroke: one.color, "stroke-dasharray": one.dash });
    const isDotted = one.points.length === 1 || (one.points.length < 40 && one.kind === "valid");
    if (isDotted) one.points.forEach(([x, y]) => drawn("circle", svg, { cx: px(x), cy: py(y), r: 2.5, fill: one.color }));
  }
  // The values under the pointer, or of the point that the arrow keys have chosen.
  const cursor = drawn("line", svg, { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor", visibility: "hidden" });
  const box = element("div", figure, undefined, { class: "values", hidden: "" });
  const places = [...new Set(all.map(([x]) => x))].sort((a, b) => a - b);
  let current = places.length - 1;
  const show = (x) => {
    cursor.setAttribute("x1", px(x));
    cursor.setAttribute("x2", px(x));
    cursor.setAttribute("visibility", "visible");
    box.hidden = false;
    box.replaceChildren();
    element("div", box, `${byId("axis").selectedOptions[0].textContent}: ${shown(x)}`);
    for (const one of its) {
      if (x < one.points[0][0] || x > one.points[one.points.length - 1][0]) continue;
      const [, y] = one.points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
      element("div", box, `${one.name}: ${shown(y)}`).style.color = one.color;
    }
  };
  const hide = () => { box.hidden = true; cursor.setAttribute("visibility", "hidden"); };
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("pointermove", (event) => {
    const place = svg.getBoundingClientRect();
    const wanted = x0 + (((event.clientX - place.left) / place.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (x1 - x0);
    current = places.reduce((best, x, i) => (Math.abs(x - wanted) < Math.abs(places[best] - wanted) ? i : best), 0);
    show(places[current]);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("focus", () => show(places[current]));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    current = Math.max(0, Math.min(places.length - 1, current + step));
    show(places[current]);
  });
  return caption;
}

function showCharts() {
  const axis = byId("axis").value;
  const place = byId("charts");
  place.replaceChildren();
  const of = (run, number, kind, set, name, key) => ({
    name: [runs.length > 1 ? run.name : "", name].filter(Boolean).join(" "), x: set[axis], y: set[key] || set[axis].map(() => null),
    color: color(runs.length > 1 ? number : kind === "train" ? 0 : 1), dash: runs.length > 1 ? dashes(number) : "", kind,
  });
  const measured = (key) => runs.flatMap((run, number) => Object.entries(run.valid).map(([name, set], i) => ({
    ...of(run, number, "valid", set, name, key), ...(runs.length > 1 ? {} : { color: color(1 + i), dash: dashes(i) }),
  })));
  const trained = (key) => runs.map((run, number) => of(run, number, "train", run.train, "training", key));
  chart(place, NAMES.loss, [...trained("loss"), ...measured("loss")], byId("log").checked);
  for (const key of Object.keys(higher)) chart(place, NAMES[key] || key, measured(key), false);
  for (const key of ["learning_rate", "gradient_norm", "tokens_per_second"]) chart(place, NAMES[key], trained(key), false);
}

function table(parent, rows, titles) {
  const made = element("table", element("div", parent, undefined, { class: "wide" }));
  if (titles) {
    const head = element("tr", element("thead", made));
    titles.forEach((title, i) => element("th", head, title, { scope: "col", ...(i ? { class: "number" } : {}) }));
  }
  const body = element("tbody", made);
  return rows.map((cells) => {
    const line = element("tr", body);
    cells.forEach((cell, i) => element(i || titles ? "td" : "th", line, cell, titles && i ? { class: "number" } : {}));
    return line;
  });
}

// What is best of a metric in a row of values, its place or -1.
const best = (values, key) => values.reduce((found, value, i) => (value === null || value === undefined ? found : found < 0 || (higher[key] === (value > values[found]) && value !== values[found]) ? i : found), -1);

function showSummary() {
  for (const run of runs) {
    const place = element("p", byId("summary"), `${runs.length > 1 ? `${run.name}, ` : ""}${run.title}. `);
    const first = Object.values(run.valid)[0];
    // By loss where there was no time for the last translations.
    const by = run.final && run.metric in (run.final.candidates.last || {}) ? run.metric : "loss";
    if (run.final) place.append(`Final model: ${run.final.chosen}, by ${NAMES[by] || by}.`);
    else if (!first) place.append("Nothing is validated yet.");
    else {
      const values = first[run.metric] || [];
      const at = run.metric === "loss" ? values.indexOf(Math.min(...values)) : best(values, run.metric);
      place.append(at < 0 ? "" : `Best ${NAMES[run.metric] || run.metric} so far: ${shown(values[at])} at update ${shown(first.update[at])}.`);
    }
    if (!run.final) continue;
    const keys = ["loss", ...Object.keys(higher)].filter((key) => Object.values(run.final.candidates).some((one) => key in one));
    const rows = Object.entries(run.final.candidates).map(([name, one]) => [name, ...keys.map((key) => (key in one ? one[key].toFixed(key === "loss" || key === "accuracy" ? 4 : 2) : ""))]);
    table(byId("summary"), rows, ["candidate", ...keys.map((key) => NAMES[key] || key)]).forEach((line, i) => {
      if (rows[i][0] === run.final.chosen) line.className = "chosen";
    });
  }
}

function showExamples() {
  const told = runs.filter((run) => run.examples.length);
  if (!told.length) return;
  element("h2", byId("examples"), "Example translations over time");
  const label = element("label", byId("examples"), "Sentence ");
  const select = element("select", label);
  told[0].examples[0].rows.forEach((row, i) => element("option", select, row.source, { value: i }));
  const place = element("div", byId("examples"));
  const show = () => {
    place.replaceChildren();
    const first = told[0].examples[0].rows[Number(select.value)];
    const rows = [["source", first.source], ["reference", first.reference]];
    told.forEach((run) => run.examples.forEach((one) => {
      const row = one.rows.find((each) => each.source === first.source);
      if (row) rows.push([`${runs.length > 1 ? `${run.name}, ` : ""}update ${shown(one.update)}`, row.output || "(empty)"]);
    }));
    table(place, rows).forEach((line) => line.lastChild.setAttribute("dir", "auto"));
  };
  select.addEventListener("input", show);
  show();
}

function perRun(id, title, fill) {
  element("h2", byId(id), title);
  const grid = element("div", byId(id), undefined, { class: "runs" });
  runs.forEach((run) => {
    const place = element("div", grid);
    if (runs.length > 1) element("p", place, run.name);
    fill(place, run);
  });
}

showSummary();
const legend = byId("legend");
const kinds = runs.length > 1 ? runs.map((run, number) => [run.name, number, dashes(number)])
  : [["training", 0, ""], ...Object.keys(runs[0].valid).map((name, i) => [`validation: ${name}`, 1 + i, dashes(i)])];
kinds.forEach(([name, number, dash]) => {
  const one = element("span", legend);
  const line = drawn("svg", one, { viewBox: "0 0 26 8" });
  drawn("path", line, { d: "M0 4L26 4", stroke: color(number), "stroke-width": 2.5, "stroke-dasharray": dash });
  one.append(name);
});
legend.append("thin: training, with points: validation");
byId("axis").addEventListener("input", showCharts);
byId("log").addEventListener("input", showCharts);
showCharts();
showExamples();
perRun("data", "Data", (place, { data }) => {
  if (data.read === null || data.read === undefined) { element("p", place, "The report of the prepared data is not where it was."); return; }
  const dropped = Object.entries(data.dropped).map(([reason, n]) => `${n.toLocaleString("en")} for ${reason}`).join(", ");
  element("p", place, `${data.kept.toLocaleString("en")} of ${data.read.toLocaleString("en")} pairs are kept${dropped ? `; dropped: ${dropped}` : ""}.`);
  (data.alarms || []).forEach((one) => element("p", place, `Alarm: ${one.found}. ${one.advice}`, { class: "alarm" }));
  (data.warnings || []).forEach((one) => element("p", place, one));
});
perRun("facts", "How it was trained", (place, run) => table(place, run.facts));
