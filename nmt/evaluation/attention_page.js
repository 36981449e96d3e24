
const BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const BASE64_VALUE = new Uint8Array(128);
for (let i = 0; i < 64; i += 1) BASE64_VALUE[BASE64.charCodeAt(i)] = i;
const MIN_WEIGHT = 0.01; // smaller weights have no line, so that a row has at most a hundred lines for each head
const MAX_CELLS = 120000; // more cells would be slow in a browser
const NAMES = {
  cross: { text: "cross: translation at source", looks: "translation, looks", at: "source, is looked at" },
  encoder: { text: "encoder: source at itself", looks: "source, looks", at: "source, is looked at" },
  decoder: { text: "decoder: translation at itself", looks: "translation, looks", at: "what was written before" },
};
const HINT = "Point at a word, or go to it with Tab and the arrow keys: the lines and numbers show what it looks at, " +
  "or what looks at it. Click or Enter keeps it so; Escape lets go.";
const state = { sentence: 0, ...data.shown, unit: "words", view: "lines" };
let attention = null; // displayed attention: both axes and the weights of each head
let pinned = null, hovered = null; // { side: "query" or "key", index }, or { query, key } for a cell

function make(tag, options = {}, ...children) {
  const node = element(tag, null, undefined, options, ["svg", "g", "path"].includes(tag) ? SVG : undefined);
  node.append(...children);
  return node;
}

/** A word of one side, query or key, in its language, with a text direction of its own. */
function word(text, side, options = {}) {
  return make("bdi", { dir: "auto", ...(attention.langs[side] ? { lang: attention.langs[side] } : {}), ...options }, text);
}

const hueOf = (head) => (208 + head * 137.508) % 360; // steps of the golden angle, so that neighbours differ

// ---- weights ---------------------------------------------------------------------------------------------------

function axesOf(sentence, kind) {
  const names = { cross: ["trg", "src"], encoder: ["src", "src"], decoder: ["trg", "read"] }[kind];
  return names.map((name) => ({ ...sentence[name], lang: data.langs[name === "src" ? "src" : "trg"] }));
}

/** Weights of one head by subwords: rows are queries, columns are keys. */
function pieceWeights(sentence, kind, layer, head) {
  const [queries, keys] = axesOf(sentence, kind).map((axis) => axis.pieces.length);
  const text = sentence.weights[kind], start = (layer * data.kinds[kind].heads + head) * queries * keys;
  return Array.from({ length: queries }, (_, q) => Float64Array.from({ length: keys }, (_unused, k) => {
    const position = 2 * (start + q * keys + k);
    return (64 * BASE64_VALUE[text.charCodeAt(position)] + BASE64_VALUE[text.charCodeAt(position + 1)]) / 4095;
  }));
}

/** The same by words: the sum over the subwords of a key, the mean over the subwords of a query. */
function wordWeights(weights, queries, keys) {
  const sums = queries.texts.map(() => new Float64Array(keys.texts.length));
  const counts = new Float64Array(queries.texts.length);
  weights.forEach((row, q) => {
    counts[queries.words[q]] += 1;
    row.forEach((weight, k) => { sums[queries.words[q]][keys.words[k]] += weight; });
  });
  return sums.map((row, q) => row.map((weight) => weight / counts[q]));
}

function meanWeights(maps) {
  return maps[0].map((row, q) => row.map((_, k) => maps.reduce((sum, map) => sum + map[q][k], 0) / maps.length));
}

function selectedAttention() {
  const sentence = data.sentences[state.sentence], [queries, keys] = axesOf(sentence, state.kind);
  const count = data.kinds[state.kind].heads;
  const numbers = typeof state.head === "number" ? [state.head] : Array.from({ length: count }, (_, head) => head);
  let maps = numbers.map((head) => pieceWeights(sentence, state.kind, state.layer, head));
  if (state.unit === "words") maps = maps.map((map) => wordWeights(map, queries, keys));
  let heads = maps.map((weights, i) => ({ name: `head ${numbers[i] + 1}`, head: numbers[i], weights }));
  if (state.head === "mean") heads = [{ name: `mean of ${count} heads`, head: 0, weights: meanWeights(maps) }];
  const labels = (axis) => (state.unit === "words" ? axis.texts : axis.pieces);
  return { queries: labels(queries), keys: labels(keys), langs: { query: queries.lang, key: keys.lang }, heads };
}

const weightOf = (q, k) => attention.heads.reduce((sum, entry) => sum + entry.weights[q][k], 0) / attention.heads.length;

// ---- views -----------------------------------------------------------------------------------------------------

function token(text, side, index) {
  const button = make("button", { type: "button", class: "token", "data-side": side, "data-index": index });
  button.tabIndex = index ? -1 : 0;
  const share = make("small", { "aria-hidden": "true" }, "0.00");
  button.append(...(side === "key" ? [share, word(text, side)] : [word(text, side), share]));
  return make("li", {}, button);
}

/** The line of one weight of the i-th displayed head. Lines of several heads are side by side. */
function weightPath(i, q, k) {
  const entry = attention.heads[i], weight = entry.weights[q][k];
  const offset = 0.5 + (i - (attention.heads.length - 1) / 2) * Math.min(0.1, 0.6 / attention.heads.length);
  const path = make("path", {
    d: `M0 ${k + offset}C45 ${k + offset} 55 ${q + offset} 100 ${q + offset}`, "stroke-opacity": weight.toFixed(3),
    "stroke-width": (0.8 + 2.6 * weight).toFixed(2), "data-query": q, "data-key": k, "data-head": entry.head + 1,
  });
  path.style.setProperty("--hue", hueOf(entry.head));
  return path;
}

/** The lines of all weights from MIN_WEIGHT on, or only those of one word. */
function weightPaths(focus = {}) {
  const paths = [], range = (side, n) => (focus.side === side ? [focus.index] : Array.from({ length: n }, (_, i) => i));
  const queries = range("query", attention.queries.length), keys = range("key", attention.keys.length);
  attention.heads.forEach((entry, i) => {
    for (const q of queries) for (const k of keys) if (entry.weights[q][k] >= MIN_WEIGHT) paths.push(weightPath(i, q, k));
  });
  return paths;
}

function linesView() {
  const names = NAMES[state.kind], rows = Math.max(attention.queries.length, attention.keys.length);
  const picture = make("svg", { class: "lines", viewBox: `0 0 100 ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  picture.style.height = `calc(${rows} * var(--row))`;
  picture.append(make("g", { class: "all" }, ...weightPaths()), make("g", { class: "own" }));
  const column = (texts, side, name) =>
    make("ol", { class: `column ${side === "key" ? "looked-at" : "looks"}`, "aria-label": name },
      ...texts.map((text, index) => token(text, side, index)));
  return make("div", { class: "pair" }, make("h2", {}, names.at), make("h2", {}, names.looks),
    column(attention.keys, "key", names.at), picture, column(attention.queries, "query", names.looks));
}

function matrixView() {
  if (attention.heads.length * attention.queries.length * attention.keys.length > MAX_CELLS) {
    return make("p", {}, "Too many cells for a page: choose a single head or the mean, or words, or lines.");
  }
  // Scripts that are written upright in columns are not rotated.
  const upright = (text) => (/[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]/.test(text) ? { class: "upright" } : {});
  const label = (text, side, index, name) =>
    make("button", { type: "button", class: "label", "data-side": side, "data-index": index, "aria-label": name }, text);
  const figures = attention.heads.map((entry) => {
    const top = attention.keys.map((text, k) =>
      make("th", { scope: "col", "data-key": k }, label(word(text, "key", upright(text)), "key", k, text)));
    const body = entry.weights.map((row, q) => {
      const cells = Array.from(row, (weight, k) => {
        const cell = make("td", { "data-query": q, "data-key": k, "data-head": entry.head + 1 });
        cell.style.background = `hsl(${hueOf(entry.head)} 75% var(--light) / ${weight.toFixed(3)})`;
        return cell;
      });
      const name = make("th", { scope: "row" }, label(word(attention.queries[q], "query"), "query", q, attention.queries[q]));
      return make("tr", { "data-query": q }, name, ...cells);
    });
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("td"), ...top)), make("tbody", {}, ...body));
    table.querySelector("thead td").style.border = "0";
    return make("figure", {}, make("figcaption", {}, entry.name), table);
  });
  return make("div", { class: "maps" }, ...figures);
}

function render() {
  attention = selectedAttention();
  pinned = hovered = null;
  byId("stage").replaceChildren(state.view === "lines" ? linesView() : matrixView());
  paint();
}

/** Highlight the weights of the word under the pointer, or else of the pinned word. */
function paint() {
  const focus = hovered || pinned, stage = byId("stage");
  const queryAndKey = (other) => (focus.side === "query" ? [focus.index, other] : [other, focus.index]);
  for (const button of stage.querySelectorAll(".token")) {
    const { side, index } = button.dataset, isShared = Boolean(focus) && focus.side !== side;
    button.classList.toggle("current", Boolean(focus) && !isShared && Number(index) === focus.index);
    button.classList.toggle("shared", isShared);
    button.style.background = "";
    if (pinned) button.setAttribute("aria-pressed", pinned.side === side && Number(index) === pinned.index);
    else button.removeAttribute("aria-pressed");
    if (!isShared) continue;
    const [q, k] = queryAndKey(Number(index)), n = attention.heads.length;
    button.querySelector("small").textContent = weightOf(q, k).toFixed(2);
    const stops = attention.heads.map((entry, i) => {
      const colour = `hsl(${hueOf(entry.head)} 75% var(--light) / ${(0.6 * entry.weights[q][k]).toFixed(3)})`;
      return `${colour} ${(100 * i) / n}% ${(100 * (i + 1)) / n}%`;
    });
    button.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  }
  const picture = stage.querySelector(".lines");
  if (picture) { // the lines of the word are drawn again on top: changing all others would be slow
    picture.classList.toggle("dim", Boolean(focus));
    picture.querySelector(".own").replaceChildren(...(focus ? weightPaths(focus) : []));
  }
  for (const part of stage.querySelectorAll("tr[data-query], td[data-key], th[data-key]")) {
    const { query, key } = part.dataset, isCell = focus && focus.side === undefined;
    const isRow = focus && Number(query) === (isCell ? focus.query : focus.side === "query" ? focus.index : -1);
    const isColumn = focus && Number(key) === (isCell ? focus.key : focus.side === "key" ? focus.index : -1);
    const isTableCell = part.tagName === "TD" && isCell;
    part.classList.toggle("current", Boolean(isTableCell ? isRow && isColumn : part.tagName === "TR" ? isRow : isColumn));
  }
  showDetails(focus);
}

function showDetails(focus) {
  const details = byId("details");
  if (!focus) return details.replaceChildren(HINT);
  const share = (text, side, weight) => make("span", { class: "share" }, word(text, side), ` ${weight.toFixed(3)}`);
  if (focus.side === undefined) {
    const { query, key, head } = focus, entry = attention.heads.find((each) => each.head === head);
    const weight = share(attention.keys[key], "key", entry.weights[query][key]);
    return details.replaceChildren(make("b", {}, word(attention.queries[query], "query")), " looks at ", weight);
  }
  const isQuery = focus.side === "query", [own, others] = isQuery ? [attention.queries, attention.keys] : [attention.keys, attention.queries];
  const pairs = others.map((text, i) => [text, isQuery ? weightOf(focus.index, i) : weightOf(i, focus.index)]);
  const strongest = pairs.sort((a, b) => b[1] - a[1]).slice(0, 5).filter(([, weight]) => weight >= 0.0005);
  return details.replaceChildren(make("b", {}, word(own[focus.index], focus.side)), isQuery ? " looks at " : " is looked at by ",
    ...strongest.flatMap(([text, weight]) => [share(text, isQuery ? "key" : "query", weight), " "]));
}

// ---- events and controls ---------------------------------------------------------------------------------------

function targetOf(element) {
  const cell = element.closest("td[data-query]"), button = element.closest("[data-side]");
  if (cell) return { query: Number(cell.dataset.query), key: Number(cell.dataset.key), head: Number(cell.dataset.head) - 1 };
  return button ? { side: button.dataset.side, index: Number(button.dataset.index) } : null;
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function listen(stage) {
  const point = (target) => { if (!same(target, hovered)) { hovered = target; paint(); } };
  stage.addEventListener("pointerover", (event) => { if (event.pointerType !== "touch") point(targetOf(event.target)); });
  stage.addEventListener("pointerleave", () => point(null));
  stage.addEventListener("focusin", (event) => { if (event.target.matches(":focus-visible")) point(targetOf(event.target)); });
  stage.addEventListener("focusout", () => point(null));
  stage.addEventListener("click", (event) => {
    const target = targetOf(event.target);
    pinned = same(target, pinned) ? null : target;
    hovered = null;
    paint();
  });
  stage.addEventListener("keydown", (event) => {
    const target = targetOf(event.target), other = target && (target.side === "query" ? "key" : "query");
    if (event.key === "Escape") { pinned = hovered = null; return paint(); }
    if (!target || target.side === undefined) return undefined;
    const last = (target.side === "query" ? attention.queries : attention.keys).length - 1;
    const destination = {
      ArrowUp: [target.side, Math.max(0, target.index - 1)], ArrowDown: [target.side, Math.min(last, target.index + 1)],
      Home: [target.side, 0], End: [target.side, last], ArrowLeft: [other, target.index], ArrowRight: [other, target.index],
    }[event.key];
    if (!destination) return undefined;
    event.preventDefault();
    const buttons = [...event.target.closest("figure, .pair").querySelectorAll(`button[data-side=${destination[0]}]`)];
    const next = buttons[Math.min(destination[1], buttons.length - 1)];
    if (next.matches(".token")) buttons.forEach((button) => { button.tabIndex = button === next ? 0 : -1; });
    return next.focus();
  });
}

/** A row of radio buttons. options: [value, text] each. */
function radioButtons(name, options) {
  const field = byId(name);
  field.hidden = options.length < 2;
  field.replaceChildren(field.querySelector("legend"), ...options.map(([value, text]) => {
    const input = make("input", { type: "radio", name, value });
    input.checked = value === state[name];
    input.addEventListener("change", () => { state[name] = value; update(name); });
    const caption = make("span", typeof value === "number" && name === "head" ? { class: "of-head" } : {}, text);
    if (name === "head") caption.style.setProperty("--hue", hueOf(value));
    return make("label", { class: "choice" }, input, caption);
  }));
}

function update(changed) {
  if (changed === "kind" || changed === undefined) {
    const { layers, heads } = data.kinds[state.kind];
    state.layer = Math.min(state.layer, layers - 1);
    if (typeof state.head === "number") state.head = Math.min(state.head, heads - 1);
    const numbers = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
    radioButtons("layer", numbers(layers));
    if (heads === 1) state.head = 0;
    radioButtons("head", heads === 1 ? numbers(1) : [["all", "all"], ["mean", "mean"], ...numbers(heads)]);
  }
  render();
}

const select = byId("sentence");
select.append(...data.sentences.map((sentence, i) => make("option", { value: i, dir: "auto" }, sentence.title)));
select.addEventListener("change", () => { state.sentence = Number(select.value); update("sentence"); });
radioButtons("kind", Object.keys(data.kinds).map((kind) => [kind, NAMES[kind].text]));
radioButtons("unit", [["words", "words"], ["pieces", "subwords"]]);
radioButtons("view", [["lines", "lines"], ["matrix", "matrix"]]);
listen(byId("stage"));
update();
