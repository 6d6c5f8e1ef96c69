// The passes of one answer: the tree that each verified, its accepted path, and what else the pass computed.

import { element, facts, split } from "./view.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 78, HIGH = 24, TOP = 16, ROOT = 34;

const shape = (name, attributes, text) => {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  if (text !== undefined) made.textContent = text;
  return made;
};
const short = (text) => {
  const seen = text.replaceAll("\n", "↵").replaceAll(" ", "·");
  return seen.length > 8 ? `${seen.slice(0, 7)}…` : seen || "∅";
};

// Column by depth, line by leaf: an only child goes on in its parent's line.
function placed(nodes) {
  const below = new Map(), places = [];
  nodes.forEach((node, i) => below.set(node.parent, [...(below.get(node.parent) ?? []), i]));
  let line = 0;
  const visit = (parent, depth) => (below.get(parent) ?? []).forEach((i, which) => {
    if (which > 0) line += 1;
    places[i] = { x: ROOT + depth * WIDE, y: TOP + line * HIGH };
    visit(i, depth + 1);
  });
  visit(-1, 0);
  return { places, height: TOP + line * HIGH + 12, width: Math.max(0, ...places.map((place) => place.x)) + WIDE };
}

function tree(step) {
  const { nodes, path } = step.draft;
  const { places, height, width } = placed(nodes);
  const told = `${nodes.length} drafted, ${path.length} accepted: ${path.map((i) => nodes[i].text).join("") || "none"}`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": told });
  const stood = new Set(path), root = { x: 0, y: TOP };
  nodes.forEach((node, i) => {
    const from = places[node.parent] ?? root, to = places[i], kind = stood.has(i) ? "stood" : "refused";
    const start = node.parent < 0 ? 12 : from.x + WIDE - 16;
    svg.append(shape("path", { class: `edge ${kind}`, d: `M${start} ${from.y - 4}L${to.x - 2} ${to.y - 4}` }));
  });
  svg.append(shape("circle", { cx: 6, cy: TOP - 4, r: 5, class: "root" }));
  nodes.forEach((node, i) => {
    const label = shape("text", { x: places[i].x, y: places[i].y, class: `node ${stood.has(i) ? "stood" : "refused"}` });
    label.append(short(node.text), shape("title", {}, JSON.stringify(node.text)));
    svg.append(label);
  });
  return svg;
}

function table({ nodes, path }) {
  const head = ["node", "text", "after", "stood"].map((name) => element("th", { scope: "col", textContent: name }));
  const rows = nodes.map((node, i) => element("tr", {}, ...[i + 1, JSON.stringify(node.text),
    node.parent < 0 ? "the text" : node.parent + 1, path.includes(i) ? "yes" : "no"].map((cell) =>
    element("td", { textContent: String(cell) }))));
  return element("details", {}, element("summary", { textContent: "as a table" }),
    element("table", {}, element("tr", {}, ...head), ...rows));
}

// Makes the panel. `add` takes a pass of the running answer, `clear` begins a new one.
export function stepPanel(where) {
  let steps = [], follows = true;
  const slide = element("input", { type: "range", min: 1, max: 1, value: 1, disabled: true });
  const label = element("label", {}, "Pass ", slide);
  const draft = element("div", { className: "tree", tabIndex: 0 });
  const list = element("dl"), rows = element("div"), more = element("figure");
  draft.setAttribute("role", "group");
  draft.setAttribute("aria-label", "The draft of this pass");
  where.replaceChildren(label, list, draft, rows, more);

  const show = () => {
    const step = steps[slide.value - 1];
    if (!step) return;
    const { draft: found, tokens } = step;
    facts(list, [["pass", `${slide.value} of ${steps.length}`], ["said", JSON.stringify(tokens.map((t) => t.text).join(""))]]);
    draft.replaceChildren(found ? tree(step) : element("p", { className: "none", textContent: "nothing was drafted" }));
    more.replaceChildren(...(found ? [table(found)] : []));
    rows.replaceChildren(...(found ? [split(found.rows, "rows of the pass")] : []));
  };
  slide.addEventListener("input", () => {
    follows = Number(slide.value) === steps.length;
    show();
  });
  return {
    clear() {
      steps = [];
      follows = true;
      slide.disabled = true;
      for (const part of [list, draft, rows, more]) part.replaceChildren();
    },
    add(tokens, found) {
      steps.push({ tokens, draft: found });
      slide.max = steps.length;
      slide.disabled = false;
      if (follows) slide.value = steps.length;
      show();
    },
  };
}
