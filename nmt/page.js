
"use strict";
// All strings of the data are inserted as text, never parsed as HTML.
const byId = (id) => document.getElementById(id);
const data = JSON.parse(document.querySelector("script[type='application/json']").textContent);
const SVG = "http://www.w3.org/2000/svg";

function element(tag, parent, text, attributes = {}, namespace = "http://www.w3.org/1999/xhtml") {
  const node = document.createElementNS(namespace, tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (parent) parent.append(node);
  return node;
}
