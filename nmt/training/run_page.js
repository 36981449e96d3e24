
const { runs, metrics } = data; // metrics: all beside the loss
const NAMES = {
  loss: "loss (nats a token)", learning_rate: "learning rate", gradient_norm: "gradient norm",
  tokens_per_second: "target tokens/s", bleu: "BLEU", chrf: "chrF", ter: "TER", comet: "COMET",
};
const titleOf = (metric) => NAMES[metric] || metric;
const prefixOf = (run) => (runs.length > 1 ? `${run.name}, ` : ""); // of texts about one of several runs
const isKnown = (value) => value !== null && value !== undefined;
const WIDTH = 480, HEIGHT = 220, LEFT = 52, BOTTOM = 22, TOP = 8, RIGHT = 8;
const svgElement = (tag, parent, attributes, text) => element(tag, parent, text, attributes, SVG);

// Colours of equal lightness and different hues; dashes for readers who do not see hues.
const color = (number) => `hsl(${(212 + 137 * number) % 360} 70% var(--light))`;
const dashes = (number) => ["", "7 3", "2 3", "9 3 2 3"][number % 4];

function formatted(value) {
  if (!isKnown(value)) return "";
  const size = Math.abs(value);
  if (size && (size < 0.001 || size >= 1e9)) return value.toExponential(2);
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

// Three to six round numbers between low and high.
function ticks(low, high) {
  const roughStep = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(roughStep));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((factor) => factor >= roughStep);
  const result = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) result.push(value);
  return result;
}

// Append a chart to parent. series: {name, x, y, color, dash, kind} each.
function chart(parent, title, series) {
  const pointsOf = (curve) => curve.x.map((x, i) => [x, curve.y[i]]).filter(([, y]) => isKnown(y));
  const curves = series.map((curve) => ({ ...curve, points: pointsOf(curve) })).filter((curve) => curve.points.length);
  if (!curves.length) return;
  const figure = element("figure", parent);
  element("figcaption", figure, title);
  const points = curves.flatMap((curve) => curve.points);
  const extent = (values) => [Math.min(...values), Math.max(...values)];
  // All charts share the scale of x.
  const axis = byId("axis").value;
  const [x0, x1] = extent(runs.flatMap((run) => [...run.train[axis], ...Object.values(run.valid).flatMap((set) => set[axis])]));
  let [y0, y1] = extent(points.map(([, y]) => y));
  if (y1 - y0 < 1e-12) [y0, y1] = [y0 - (Math.abs(y0) || 1) * 0.1, y1 + (Math.abs(y1) || 1) * 0.1];
  const px = (x) => LEFT + ((x - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
  const py = (y) => TOP + (1 - (y - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const svg = svgElement("svg", figure, { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const value of ticks(y0, y1)) {
    svgElement("line", svg, { x1: LEFT, x2: WIDTH - RIGHT, y1: py(value), y2: py(value), class: "grid" });
    svgElement("text", svg, { x: LEFT - 5, y: py(value) + 4, "text-anchor": "end" }, formatted(value));
  }
  for (const value of ticks(x0, x1)) svgElement("text", svg, { x: px(value), y: HEIGHT - 5, "text-anchor": "middle" }, formatted(value));
  for (const curve of curves) {
    const path = curve.points.map(([x, y], i) => `${i ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`).join("");
    svgElement("path", svg, { d: path, class: `curve ${curve.kind}`, stroke: curve.color, "stroke-dasharray": curve.dash });
    const isDotted = curve.points.length === 1 || (curve.points.length < 40 && curve.kind === "valid");
    if (isDotted) curve.points.forEach(([x, y]) => svgElement("circle", svg, { cx: px(x), cy: py(y), r: 2.5, fill: curve.color }));
  }
  // Values at the point that is nearest to the pointer.
  const cursor = svgElement("line", svg, { y1: TOP, y2: HEIGHT - BOTTOM, class: "cursor", visibility: "hidden" });
  const box = element("div", figure, undefined, { class: "values", hidden: "" });
  svg.addEventListener("pointermove", (event) => {
    const rect = svg.getBoundingClientRect();
    const pointerX = x0 + (((event.clientX - rect.left) / rect.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (x1 - x0);
    const [x] = points.reduce((best, point) => (Math.abs(point[0] - pointerX) < Math.abs(best[0] - pointerX) ? point : best));
    cursor.setAttribute("x1", px(x));
    cursor.setAttribute("x2", px(x));
    cursor.setAttribute("visibility", "visible");
    box.hidden = false;
    box.replaceChildren();
    element("div", box, `${byId("axis").selectedOptions[0].textContent}: ${formatted(x)}`);
    for (const curve of curves) {
      if (x < curve.points[0][0] || x > curve.points[curve.points.length - 1][0]) continue;
      const [, y] = curve.points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
      element("div", box, `${curve.name}: ${formatted(y)}`).style.color = curve.color;
    }
  });
  svg.addEventListener("pointerleave", () => { box.hidden = true; cursor.setAttribute("visibility", "hidden"); });
}

function showCharts() {
  const axis = byId("axis").value;
  const container = byId("charts");
  container.replaceChildren();
  const seriesOf = (run, number, kind, set, name, key) => ({
    name: [runs.length > 1 ? run.name : "", name].filter(Boolean).join(" "), x: set[axis], y: set[key] || set[axis].map(() => null),
    color: color(runs.length > 1 ? number : kind === "train" ? 0 : 1), dash: runs.length > 1 ? dashes(number) : "", kind,
  });
  const validSeries = (key) => runs.flatMap((run, number) => Object.entries(run.valid).map(([name, set], i) => ({
    ...seriesOf(run, number, "valid", set, name, key), ...(runs.length > 1 ? {} : { color: color(1 + i), dash: dashes(i) }),
  })));
  const trainSeries = (key) => runs.map((run, number) => seriesOf(run, number, "train", run.train, "training", key));
  chart(container, NAMES.loss, [...trainSeries("loss"), ...validSeries("loss")]);
  for (const key of metrics) chart(container, titleOf(key), validSeries(key));
  for (const key of ["learning_rate", "gradient_norm", "tokens_per_second"]) chart(container, NAMES[key], trainSeries(key));
}

function table(parent, rows, titles) {
  const tableNode = element("table", element("div", parent, undefined, { class: "wide" }));
  if (titles) {
    const head = element("tr", element("thead", tableNode));
    titles.forEach((title, i) => element("th", head, title, { scope: "col", ...(i ? { class: "number" } : {}) }));
  }
  const body = element("tbody", tableNode);
  return rows.map((cells) => {
    const tr = element("tr", body);
    cells.forEach((cell, i) => element(i || titles ? "td" : "th", tr, cell, titles && i ? { class: "number" } : {}));
    return tr;
  });
}

function showSummary() {
  for (const run of runs) {
    const paragraph = element("p", byId("summary"), `${prefixOf(run)}${run.title}. `);
    paragraph.append(run.final ? `Final model: ${run.final.chosen}.` : "Training has not ended yet.");
    if (!run.final) continue;
    const keys = ["loss", ...metrics].filter((key) => Object.values(run.final.candidates).some((scores) => key in scores));
    const rows = Object.entries(run.final.candidates).map(([name, scores]) => [name, ...keys.map((key) => (key in scores ? scores[key].toFixed(key === "loss" || key === "accuracy" ? 4 : 2) : ""))]);
    table(byId("summary"), rows, ["candidate", ...keys.map(titleOf)]).forEach((tr, i) => {
      if (rows[i][0] === run.final.chosen) tr.className = "chosen";
    });
  }
}

function showExamples() {
  const runsWithExamples = runs.filter((run) => run.examples.length);
  if (!runsWithExamples.length) return;
  element("h2", byId("examples"), "Example translations over time");
  const label = element("label", byId("examples"), "Sentence ");
  const select = element("select", label);
  runsWithExamples[0].examples[0].rows.forEach((row, i) => element("option", select, row.source, { value: i }));
  const container = element("div", byId("examples"));
  const show = () => {
    container.replaceChildren();
    const first = runsWithExamples[0].examples[0].rows[Number(select.value)];
    const rows = [["source", first.source], ["reference", first.reference]];
    runsWithExamples.forEach((run) => run.examples.forEach((example) => {
      const row = example.rows.find((other) => other.source === first.source);
      if (row) rows.push([`${prefixOf(run)}update ${formatted(example.update)}`, row.output || "(empty)"]);
    }));
    table(container, rows).forEach((tr) => tr.lastChild.setAttribute("dir", "auto"));
  };
  select.addEventListener("input", show);
  show();
}

function perRun(id, title, fill) {
  element("h2", byId(id), title);
  const grid = element("div", byId(id), undefined, { class: "runs" });
  runs.forEach((run) => {
    const container = element("div", grid);
    if (runs.length > 1) element("p", container, run.name);
    fill(container, run);
  });
}

showSummary();
const legend = byId("legend");
const kinds = runs.length > 1 ? runs.map((run, number) => [run.name, number, dashes(number)])
  : [["training", 0, ""], ...Object.keys(runs[0].valid).map((name, i) => [`validation: ${name}`, 1 + i, dashes(i)])];
kinds.forEach(([name, number, dash]) => {
  const item = element("span", legend);
  const sample = svgElement("svg", item, { viewBox: "0 0 26 8" });
  svgElement("path", sample, { d: "M0 4L26 4", stroke: color(number), "stroke-width": 2.5, "stroke-dasharray": dash });
  item.append(name);
});
legend.append("thin: training, with points: validation");
byId("axis").addEventListener("input", showCharts);
showCharts();
showExamples();
perRun("data", "Data", (container, { data }) => {
  if (!isKnown(data.read)) { element("p", container, "The report of the prepared data is not where it was."); return; }
  const dropped = Object.entries(data.dropped).map(([reason, n]) => `${n.toLocaleString("en")} for ${reason}`).join(", ");
  element("p", container, `${data.kept.toLocaleString("en")} of ${data.read.toLocaleString("en")} pairs are kept${dropped ? `; dropped: ${dropped}` : ""}.`);
});
perRun("facts", "How it was trained", (container, run) => table(container, run.facts));
