
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const VALUE = new Uint8Array(128);
for (let i = 0; i < 64; i += 1) VALUE[LETTERS.charCodeAt(i)] = i;
const LEAST = 0.01; // a line that is paler is not drawn: so no row has more than a hundred of them a head
const MOST_CELLS = 120000; // a browser takes long for more
const NAMES = {
  cross: { text: "cross: translation at source", looks: "translation, looks", at: "source, is looked at" },
  encoder: { text: "encoder: source at itself", looks: "source, looks", at: "source, is looked at" },
  decoder: { text: "decoder: translation at itself", looks: "translation, looks", at: "what was written before" },
};
const HINT = "Point at a word, or go to it with Tab and the arrow keys: the lines and numbers show what it looks at, " +
  "or what looks at it. Click or Enter keeps it so; Escape lets go.";
const state = { sentence: 0, ...data.shown, unit: "words", view: "lines" };
let shown = null; // what is on the stage: both axes and the weights of each head
let pinned = null, pointed = null; // { side: "query" or "key", index }, or { query, key } for a cell

function make(tag, options = {}, ...children) {
  const made = element(tag, null, undefined, options, ["svg", "g", "path"].includes(tag) ? SVG : undefined);
  made.append(...children);
  return made;
}

/** A word of one side, query or key: apart from the direction of what stands around it, and in its language. */
function word(text, side, options = {}) {
  return make("bdi", { dir: "auto", ...(shown.langs[side] ? { lang: shown.langs[side] } : {}), ...options }, text);
}

const hueOf = (head) => (208 + head * 137.508) % 360; // by the golden angle, so neighbours differ

// ---- the numbers -----------------------------------------------------------------------------------------------

function axesOf(sentence, kind) {
  const names = { cross: ["trg", "src"], encoder: ["src", "src"], decoder: ["trg", "read"] }[kind];
  return names.map((name) => ({ ...sentence[name], lang: data.langs[name === "src" ? "src" : "trg"] }));
}

/** Weights of one head by pieces: rows look, columns are looked at. */
function piecesOf(sentence, kind, layer, head) {
  const [queries, keys] = axesOf(sentence, kind).map((axis) => axis.pieces.length);
  const text = sentence.weights[kind], start = (layer * data.kinds[kind].heads + head) * queries * keys;
  return Array.from({ length: queries }, (_, q) => Float64Array.from({ length: keys }, (_unused, k) => {
    const place = 2 * (start + q * keys + k);
    return (64 * VALUE[text.charCodeAt(place)] + VALUE[text.charCodeAt(place + 1)]) / 4095;
  }));
}

/** The same by words: summed over the pieces of what is looked at, the mean over the pieces of what looks. */
function wordsOf(weights, queries, keys) {
  const sums = queries.texts.map(() => new Float64Array(keys.texts.length));
  const counts = new Float64Array(queries.texts.length);
  weights.forEach((row, q) => {
    counts[queries.words[q]] += 1;
    row.forEach((weight, k) => { sums[queries.words[q]][keys.words[k]] += weight; });
  });
  return sums.map((row, q) => row.map((weight) => weight / counts[q]));
}

function meanOf(maps) {
  return maps[0].map((row, q) => row.map((_, k) => maps.reduce((sum, map) => sum + map[q][k], 0) / maps.length));
}

function look() {
  const sentence = data.sentences[state.sentence], [queries, keys] = axesOf(sentence, state.kind);
  const count = data.kinds[state.kind].heads;
  const numbers = typeof state.head === "number" ? [state.head] : Array.from({ length: count }, (_, head) => head);
  let maps = numbers.map((head) => piecesOf(sentence, state.kind, state.layer, head));
  if (state.unit === "words") maps = maps.map((map) => wordsOf(map, queries, keys));
  let heads = maps.map((weights, i) => ({ name: `head ${numbers[i] + 1}`, head: numbers[i], weights }));
  if (state.head === "mean") heads = [{ name: `mean of ${count} heads`, head: 0, weights: meanOf(maps) }];
  const labels = (axis) => (state.unit === "words" ? axis.texts : axis.pieces);
  return { queries: labels(queries), keys: labels(keys), langs: { query: queries.lang, key: keys.lang }, heads };
}

const weightOf = (q, k) => shown.heads.reduce((sum, one) => sum + one.weights[q][k], 0) / shown.heads.length;

// ---- what is on the stage --------------------------------------------------------------------------------------

function token(text, side, index) {
  const button = make("button", { type: "button", class: "token", "data-side": side, "data-index": index });
  button.tabIndex = index ? -1 : 0;
  const share = make("small", { "aria-hidden": "true" }, "0.00");
  button.append(...(side === "key" ? [share, word(text, side)] : [word(text, side), share]));
  return make("li", {}, button);
}

/** The line of one weight of the i-th head that is shown. Those of several heads are beside each other. */
function line(i, q, k) {
  const one = shown.heads[i], weight = one.weights[q][k];
  const off = 0.5 + (i - (shown.heads.length - 1) / 2) * Math.min(0.1, 0.6 / shown.heads.length);
  const path = make("path", {
    d: `M0 ${k + off}C45 ${k + off} 55 ${q + off} 100 ${q + off}`, "stroke-opacity": weight.toFixed(3),
    "stroke-width": (0.8 + 2.6 * weight).toFixed(2), "data-query": q, "data-key": k, "data-head": one.head + 1,
  });
  path.style.setProperty("--hue", hueOf(one.head));
  return path;
}

/** The lines of all heads that are strong enough, of one word if it is given. */
function lines(focus = {}) {
  const found = [], range = (side, n) => (focus.side === side ? [focus.index] : Array.from({ length: n }, (_, i) => i));
  const queries = range("query", shown.queries.length), keys = range("key", shown.keys.length);
  shown.heads.forEach((one, i) => {
    for (const q of queries) for (const k of keys) if (one.weights[q][k] >= LEAST) found.push(line(i, q, k));
  });
  return found;
}

function linesView() {
  const names = NAMES[state.kind], rows = Math.max(shown.queries.length, shown.keys.length);
  const picture = make("svg", { class: "lines", viewBox: `0 0 100 ${rows}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  picture.style.height = `calc(${rows} * var(--row))`;
  picture.append(make("g", { class: "all" }, ...lines()), make("g", { class: "own" }));
  const column = (texts, side, name) =>
    make("ol", { class: `column ${side === "key" ? "looked-at" : "looks"}`, "aria-label": name },
      ...texts.map((text, index) => token(text, side, index)));
  return make("div", { class: "pair" }, make("h2", {}, names.at), make("h2", {}, names.looks),
    column(shown.keys, "key", names.at), picture, column(shown.queries, "query", names.looks));
}

function matrixView() {
  if (shown.heads.length * shown.queries.length * shown.keys.length > MOST_CELLS) {
    return make("p", {}, "Too many cells for a page: choose a single head or the mean, or words, or lines.");
  }
  // A script that is written upright in columns is not turned on its side.
  const upright = (text) => (/[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]/.test(text) ? { class: "upright" } : {});
  const label = (text, side, index, name) =>
    make("button", { type: "button", class: "label", "data-side": side, "data-index": index, "aria-label": name }, text);
  const figures = shown.heads.map((one) => {
    const top = shown.keys.map((text, k) =>
      make("th", { scope: "col", "data-key": k }, label(word(text, "key", upright(text)), "key", k, text)));
    const body = one.weights.map((row, q) => {
      const cells = Array.from(row, (weight, k) => {
        const cell = make("td", { "data-query": q, "data-key": k, "data-head": one.head + 1 });
        cell.style.background = `hsl(${hueOf(one.head)} 75% var(--light) / ${weight.toFixed(3)})`;
        return cell;
      });
      const name = make("th", { scope: "row" }, label(word(shown.queries[q], "query"), "query", q, shown.queries[q]));
      return make("tr", { "data-query": q }, name, ...cells);
    });
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("td"), ...top)), make("tbody", {}, ...body));
    table.querySelector("thead td").style.border = "0";
    return make("figure", {}, make("figcaption", {}, one.name), table);
  });
  return make("div", { class: "maps" }, ...figures);
}

function render() {
  shown = look();
  pinned = pointed = null;
  byId("stage").replaceChildren(state.view === "lines" ? linesView() : matrixView());
  paint();
}

/** Show what the word that is pointed at, or else kept, looks at, or what looks at it. */
function paint() {
  const focus = pointed || pinned, stage = byId("stage");
  const partner = (other) => (focus.side === "query" ? [focus.index, other] : [other, focus.index]);
  for (const button of stage.querySelectorAll(".token")) {
    const { side, index } = button.dataset, isShared = Boolean(focus) && focus.side !== side;
    button.classList.toggle("current", Boolean(focus) && !isShared && Number(index) === focus.index);
    button.classList.toggle("shared", isShared);
    button.style.background = "";
    if (pinned) button.setAttribute("aria-pressed", pinned.side === side && Number(index) === pinned.index);
    else button.removeAttribute("aria-pressed");
    if (!isShared) continue;
    const [q, k] = partner(Number(index)), n = shown.heads.length;
    button.querySelector("small").textContent = weightOf(q, k).toFixed(2);
    const parts = shown.heads.map((one, i) => {
      const colour = `hsl(${hueOf(one.head)} 75% var(--light) / ${(0.6 * one.weights[q][k]).toFixed(3)})`;
      return `${colour} ${(100 * i) / n}% ${(100 * (i + 1)) / n}%`;
    });
    button.style.background = `linear-gradient(to right, ${parts.join(", ")})`;
  }
  const picture = stage.querySelector(".lines");
  if (picture) { // those of the word are drawn again, over all others, which are many to change
    picture.classList.toggle("dim", Boolean(focus));
    picture.querySelector(".own").replaceChildren(...(focus ? lines(focus) : []));
  }
  for (const part of stage.querySelectorAll("tr[data-query], td[data-key], th[data-key]")) {
    const { query, key } = part.dataset, isCell = focus && focus.side === undefined;
    const rowIs = focus && Number(query) === (isCell ? focus.query : focus.side === "query" ? focus.index : -1);
    const columnIs = focus && Number(key) === (isCell ? focus.key : focus.side === "key" ? focus.index : -1);
    const both = part.tagName === "TD" && isCell;
    part.classList.toggle("current", Boolean(both ? rowIs && columnIs : part.tagName === "TR" ? rowIs : columnIs));
  }
  tell(focus);
}

function tell(focus) {
  const place = byId("details");
  if (!focus) return place.replaceChildren(HINT);
  const share = (text, side, weight) => make("span", { class: "share" }, word(text, side), ` ${weight.toFixed(3)}`);
  if (focus.side === undefined) {
    const { query, key, head } = focus, one = shown.heads.find((each) => each.head === head);
    const weight = share(shown.keys[key], "key", one.weights[query][key]);
    return place.replaceChildren(make("b", {}, word(shown.queries[query], "query")), " looks at ", weight);
  }
  const isQuery = focus.side === "query", [here, there] = isQuery ? [shown.queries, shown.keys] : [shown.keys, shown.queries];
  const found = there.map((text, i) => [text, isQuery ? weightOf(focus.index, i) : weightOf(i, focus.index)]);
  const most = found.sort((a, b) => b[1] - a[1]).slice(0, 5).filter(([, weight]) => weight >= 0.0005);
  return place.replaceChildren(make("b", {}, word(here[focus.index], focus.side)), isQuery ? " looks at " : " is looked at by ",
    ...most.flatMap(([text, weight]) => [share(text, isQuery ? "key" : "query", weight), " "]));
}

// ---- what the reader does --------------------------------------------------------------------------------------

function placeOf(element) {
  const cell = element.closest("td[data-query]"), button = element.closest("[data-side]");
  if (cell) return { query: Number(cell.dataset.query), key: Number(cell.dataset.key), head: Number(cell.dataset.head) - 1 };
  return button ? { side: button.dataset.side, index: Number(button.dataset.index) } : null;
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function listen(stage) {
  const point = (place) => { if (!same(place, pointed)) { pointed = place; paint(); } };
  stage.addEventListener("pointerover", (event) => { if (event.pointerType !== "touch") point(placeOf(event.target)); });
  stage.addEventListener("pointerleave", () => point(null));
  stage.addEventListener("focusin", (event) => { if (event.target.matches(":focus-visible")) point(placeOf(event.target)); });
  stage.addEventListener("focusout", () => point(null));
  stage.addEventListener("click", (event) => {
    const place = placeOf(event.target);
    pinned = same(place, pinned) ? null : place;
    pointed = null;
    paint();
  });
  stage.addEventListener("keydown", (event) => {
    const place = placeOf(event.target), other = place && (place.side === "query" ? "key" : "query");
    if (event.key === "Escape") { pinned = pointed = null; return paint(); }
    if (!place || place.side === undefined) return undefined;
    const last = (place.side === "query" ? shown.queries : shown.keys).length - 1;
    const to = {
      ArrowUp: [place.side, Math.max(0, place.index - 1)], ArrowDown: [place.side, Math.min(last, place.index + 1)],
      Home: [place.side, 0], End: [place.side, last], ArrowLeft: [other, place.index], ArrowRight: [other, place.index],
    }[event.key];
    if (!to) return undefined;
    event.preventDefault();
    const all = [...event.target.closest("figure, .pair").querySelectorAll(`button[data-side=${to[0]}]`)];
    const next = all[Math.min(to[1], all.length - 1)];
    if (next.matches(".token")) all.forEach((button) => { button.tabIndex = button === next ? 0 : -1; });
    return next.focus();
  });
}

/** A row of radio buttons. options: [value, text] each. */
function choices(name, options) {
  const field = byId(name);
  field.hidden = options.length < 2;
  field.replaceChildren(field.querySelector("legend"), ...options.map(([value, text]) => {
    const input = make("input", { type: "radio", name, value });
    input.checked = value === state[name];
    input.addEventListener("change", () => { state[name] = value; update(name); });
    const face = make("span", typeof value === "number" && name === "head" ? { class: "of-head" } : {}, text);
    if (name === "head") face.style.setProperty("--hue", hueOf(value));
    return make("label", { class: "choice" }, input, face);
  }));
}

function update(changed) {
  if (changed === "kind" || changed === undefined) {
    const { layers, heads } = data.kinds[state.kind];
    state.layer = Math.min(state.layer, layers - 1);
    if (typeof state.head === "number") state.head = Math.min(state.head, heads - 1);
    const numbers = (n) => Array.from({ length: n }, (_, i) => [i, String(i + 1)]);
    choices("layer", numbers(layers));
    if (heads === 1) state.head = 0;
    choices("head", heads === 1 ? numbers(1) : [["all", "all"], ["mean", "mean"], ...numbers(heads)]);
  }
  render();
}

const select = byId("sentence");
select.append(...data.sentences.map((one, i) => make("option", { value: i, dir: "auto" }, one.title)));
select.addEventListener("change", () => { state.sentence = Number(select.value); update("sentence"); });
choices("kind", Object.keys(data.kinds).map((kind) => [kind, NAMES[kind].text]));
choices("unit", [["words", "words"], ["pieces", "subwords"]]);
choices("view", [["lines", "lines"], ["matrix", "matrix"]]);
listen(byId("stage"));
update();
