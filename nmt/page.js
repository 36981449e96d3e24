
"use strict";
// All text of the data is shown as text: it is never read as HTML.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(document.querySelector("script[type='application/json']").textContent);
const SVG = "http://www.w3.org/2000/svg";

function element(tag, parent, text, attributes = {}, space = "http://www.w3.org/1999/xhtml") {
  const made = document.createElementNS(space, tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (parent) parent.append(made);
  return made;
}
