
const names = data.systems.map((system) => system.name);
const n = data.n_line;
const STEP = 50; // sentences shown at once
const MAX_WORDS = 400; // longer sentences have no marked words

const signed = (value, digits = 1) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(digits);
const better = (value) => (Math.abs(value) < 0.05 ? "" : value > 0 ? "better" : "worse");

// Change of chrF2 of a sentence from one system to another, and the quality flags of its translation by a system.
const change = (row, first, second) => data.chrf[second][row] - data.chrf[first][row];
const flagsOf = (system, row) => (data.flags[system] || [])[row] || [];

const formattedP = (p) => (p < 0.001 ? "<.001" : p.toFixed(3));

// rows: lists of {text, more, share, kind}, one for each column.
function showTable(parent, titles, rows) {
  const table = element("table", element("div", parent, undefined, { class: "wide" }));
  const head = element("tr", element("thead", table));
  titles.forEach((title) => element("th", head, title, { scope: "col" }));
  const body = element("tbody", table);
  rows.forEach((cells) => {
    const tr = element("tr", body);
    cells.forEach((cell) => {
      const td = element("td", tr, cell.text);
      if (cell.kind) td.className = cell.kind;
      if (cell.share !== undefined) {
        td.classList.add("bar");
        td.style.setProperty("--share", `${Math.max(0, Math.min(100, cell.share))}%`);
      }
      (cell.more || []).forEach((text) => element("small", td, text));
    });
  });
}

function showScores() {
  const section = byId("scores");
  const metrics = Object.keys(data.titles);
  const rows = data.systems.map((system, index) => {
    const cells = [{ text: system.name }];
    for (const name of metrics) {
      const result = system.scores[name];
      const more = [];
      let kind = "";
      if (result.low !== null) more.push(`95 %: ${result.low.toFixed(1)} to ${result.high.toFixed(1)}`);
      if (index) {
        const change = result.score - data.systems[0].scores[name].score;
        kind = better(data.higher[name] ? change : -change);
        const p = result.p_bootstrap === undefined ? "" : `, bs ${formattedP(result.p_bootstrap)}, ar ${formattedP(result.p_randomisation)}`;
        more.push(`${signed(change)}${p}`);
        if (result.p_bootstrap === undefined || result.p_bootstrap >= 0.05 || result.p_randomisation >= 0.05) kind = "";
      }
      cells.push({ text: result.score.toFixed(1), more, kind });
    }
    if (index) {
      const { won, tied, lost } = system.sentences;
      cells.push({ text: `${won} / ${tied} / ${lost}` });
    } else if (data.systems.length > 1) cells.push({ text: "" });
    return cells;
  });
  const titles = ["System", ...metrics.map((name) => data.titles[name])];
  if (data.systems.length > 1) titles.push("Sentences won / tied / lost");
  showTable(section, titles, rows);
  if (data.systems.length > 1) {
    element("p", section, `Differences are from ${names[0]}. bs, ar: chance of a difference as large between equal systems, by paired bootstrap resampling and by approximate randomisation; coloured where both are below 0.05. A sentence is won where its chrF2 is higher.`);
  }
  for (const name of metrics) element("p", section, `${data.titles[name]}|${data.systems[0].scores[name].signature}`);
}

function showGroups(title, about, groupTitle, groups, columns, signedValues) {
  const container = element("div", byId("groups"), undefined, columns.length > 2 ? { class: "all" } : {});
  element("h2", container, title);
  element("p", container, about);
  const rows = groups.map(([name, count, values]) => [
    { text: name },
    { text: count.toLocaleString("en") },
    ...values.map((value) => signedValues
      ? { text: signed(value), kind: better(value) } : { text: value.toFixed(1), share: value }),
  ]);
  showTable(container, [groupTitle, "n", ...columns], rows);
}

// Tokens of a text: words, white space and punctuation; in scripts without spaces, characters.
const unspaced = "[\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Thai}\\p{Script=Lao}" +
  "\\p{Script=Khmer}\\p{Script=Myanmar}\\p{Script=Tibetan}]";
const tokenPattern = new RegExp(`\\s+|${unspaced}(?:\\p{M}|(?<=[\\u1039\\u17d2])\\p{L})*` +
  `|(?:(?!${unspaced})[\\p{L}\\p{M}\\p{N}])+|[^\\s\\p{L}\\p{M}\\p{N}]`, "gu");
const tokens = (text) => text.match(tokenPattern) || [];

// Indices of the words in a longest common subsequence of two texts: [of the first, of the second].
function commonWords(a, b) {
  const rows = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      rows[i][j] = a[i] === b[j] ? rows[i + 1][j + 1] + 1 : Math.max(rows[i + 1][j], rows[i][j + 1]);
    }
  }
  const inBoth = [new Set(), new Set()];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i] === b[j]) { inBoth[0].add(i++); inBoth[1].add(j++); } else if (rows[i + 1][j] >= rows[i][j + 1]) i++;
    else j++;
  }
  return inBoth;
}

function appendMarked(container, words, keptIndices, kind) {
  const text = element("bdi", container);
  words.forEach((word, index) => {
    if (keptIndices.has(index) || !word.trim()) text.append(word);
    else element("mark", text, word, kind ? { class: kind } : {});
  });
}

// How sentences of two systems differ: only known if one of them is the first system.
const differenceKinds = (first, second) => (Math.min(first, second) === 0 && data.kinds[Math.max(first, second) - 1]) || null;

function showSentence(row, first, second) {
  const item = element("li");
  const head = element("div", item, undefined, { class: "head" });
  element("b", head, `${row + 1}`);
  if (first !== second) {
    const gain = change(row, first, second);
    element("span", head, ` ${signed(gain)} chrF2`, { class: better(gain) });
    const kinds = differenceKinds(first, second);
    if (kinds) head.append(` · ${kinds[row]}`);
  }
  const list = element("dl", item);
  const add = (name) => { element("dt", list, name); return element("dd", list, undefined, { dir: "auto" }); };
  if (data.sources.length) element("bdi", add("source"), data.sources[row]);
  const reference = tokens(data.references[0][row]);
  const systems = first === second ? [first] : [first, second];
  const hypotheses = systems.map((system) => tokens(data.hypotheses[system][row]));
  const isShort = [reference, ...hypotheses].every((words) => words.length <= MAX_WORDS);
  const inBoth = hypotheses.map((words) => (isShort ? commonWords(reference, words) : null));
  // Words of the reference that a translation has; the others are marked as missing.
  const translated = new Set(inBoth.flatMap((indices) => (indices ? [...indices[0]] : [])));
  if (isShort) appendMarked(add("reference"), reference, translated, "missing");
  else element("bdi", add("reference"), data.references[0][row]);
  data.references.slice(1).forEach((lines) => element("bdi", add("reference"), lines[row]));
  systems.forEach((system, index) => {
    const cell = add(`${names[system]} ${data.chrf[system][row].toFixed(1)}`);
    if (isShort) appendMarked(cell, hypotheses[index], inBoth[index][1]);
    else element("bdi", cell, data.hypotheses[system][row]);
    flagsOf(system, row).forEach((flag) => element("span", cell, flag, { class: "flag" }));
  });
  return item;
}

function options(id, choices, chosen) {
  const select = byId(id);
  choices.forEach(([value, text]) => element("option", select, text, { value }));
  select.value = chosen;
  select.addEventListener("input", choose);
}

let rows = [];
let nShown = 0;

function choose() {
  const [first, second] = ["first", "second"].map((id) => Number(byId(id).value));
  const [kind, flag, order] = ["kind", "flag", "order"].map((id) => byId(id).value);
  const text = byId("text").value.toLocaleLowerCase();
  const hasFlag = (row) => [first, second].some((system) => flagsOf(system, row).includes(flag));
  const kinds = differenceKinds(first, second);
  byId("kind").disabled = !kinds;
  rows = [...Array(n).keys()].filter((row) =>
    (!kind || !kinds || kinds[row] === kind) && (!flag || hasFlag(row)) &&
    (!text || [data.sources, ...data.references, ...data.hypotheses].some((lines) => lines.length && lines[row].toLocaleLowerCase().includes(text))));
  const keys = {
    differ: (row) => -Math.abs(change(row, first, second)), second: (row) => change(row, second, first),
    first: (row) => change(row, first, second),
    worst: (row) => Math.min(data.chrf[first][row], data.chrf[second][row]), file: (row) => row,
  };
  const key = keys[order];
  rows.sort((a, b) => key(a) - key(b) || a - b);
  nShown = 0;
  byId("list").replaceChildren();
  byId("count").textContent = `${rows.length.toLocaleString("en")} of ${n.toLocaleString("en")} sentences. Marked: words of the translation that are not in the first reference at this place, and of that reference that no translation has.`;
  showMore();
}

function showMore() {
  const [first, second] = ["first", "second"].map((id) => Number(byId(id).value));
  byId("list").append(...rows.slice(nShown, nShown + STEP).map((row) => showSentence(row, first, second)));
  nShown = Math.min(rows.length, nShown + STEP);
  byId("more").hidden = nShown === rows.length;
}

showScores();
showGroups("By sentence length", "chrF2 of the sentences, by words of the first reference.", "words", data.lengths, names);
showGroups("By word frequency", "F1 of words in percent, by how often the word occurs in the first reference.", "times", data.frequencies, names);
data.disagreements.forEach((groups, index) => showGroups(
  `By disagreement: ${names[index + 1]}`, `How its sentences differ from ${names[0]}, and the mean change of their chrF2.`, "differ by", groups, ["change"], true));
const systems = names.map((name, index) => [index, name]);
const isComparison = names.length > 1;
options("first", systems, 0);
options("second", systems, isComparison ? 1 : 0);
options("order", [...(isComparison ? [["differ", "largest difference"], ["second", "second is better"], ["first", "first is better"]] : []), ["worst", "lowest score"], ["file", "as in the file"]], isComparison ? "differ" : "worst");
options("kind", [["", "anything"], ...[...new Set(data.kinds.flat())].sort().map((one) => [one, one])], "");
options("flag", [["", "any or none"], ...[...new Set(data.flags.flat(2))].sort().map((one) => [one, one])], "");
byId("text").addEventListener("input", choose);
byId("more").addEventListener("click", showMore);
for (const [id, isUsed] of [["first", isComparison], ["second", isComparison], ["kind", isComparison], ["flag", data.flags.flat(2).length > 0]]) {
  byId(id).closest("label").hidden = !isUsed;
}
choose();
