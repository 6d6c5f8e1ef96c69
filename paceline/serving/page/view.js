// Makes elements. Text of the model goes in as text only, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const MEANING = {
  drafted: "drafted and accepted", bonus: "the target's own, after a whole draft",
  recovered: "the target's own, in place of a refused draft", target: "plain decoding",
};

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function token({ text, provenance }, drafter) {
  const by = provenance === "drafted" && drafter ? `${MEANING.drafted} (${drafter})` : MEANING[provenance] ?? provenance;
  return element("span", { className: provenance, textContent: text, title: by });
}

export function button(text, act) {
  const made = element("button", { type: "button", textContent: text });
  made.addEventListener("click", act);
  return made;
}

// Bars of `values` (each `high` over `of`), and the same as a table.
export function bars(where, columns, rows, most) {
  where.replaceChildren();
  if (!rows.length) {
    where.append(element("p", { className: "none", textContent: "nothing yet" }));
    return;
  }
  const width = 300, height = 80, step = Math.min(40, width / rows.length);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", rows.map((row) => `${row.name}: ${row.told.join(", ")}`).join("; "));
  rows.forEach((row, i) => {
    const bar = (value, kind) => {
      const shape = document.createElementNS(SVG, "rect");
      const tall = most ? (60 * value) / most : 0;
      const place = { x: i * step + 2, y: 64 - tall, width: step - 4, height: tall };
      Object.entries(place).forEach(([name, size]) => shape.setAttribute(name, size));
      shape.setAttribute("class", kind);
      svg.append(shape);
    };
    bar(row.back ?? 0, "bar back");
    bar(row.high, "bar");
    const label = document.createElementNS(SVG, "text");
    label.setAttribute("x", i * step + step / 2);
    label.setAttribute("y", 76);
    label.textContent = row.name;
    svg.append(label);
  });
  const head = element("tr", {}, ...columns.map((name) => element("th", { scope: "col", textContent: name })));
  const body = rows.map((row) => element("tr", {}, element("td", { textContent: row.name }),
    ...row.told.map((cell) => element("td", { textContent: cell }))));
  const table = element("details", {}, element("summary", { textContent: "as a table" }), element("table", {}, head, ...body));
  where.append(svg, table);
}

export function facts(where, pairs) {
  where.replaceChildren(...pairs.flatMap(([name, value]) => [
    element("dt", { textContent: name }), element("dd", { textContent: value }),
  ]));
}

// One bar in parts, e.g. {prefill: 3, decode: 1}; each part is named in words as well.
export function split(parts, caption) {
  const found = Object.entries(parts).filter(([, count]) => count > 0);
  const all = found.reduce((sum, [, count]) => sum + count, 0);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 300 12");
  svg.setAttribute("class", "split");
  svg.setAttribute("aria-hidden", "true");
  let x = 0;
  for (const [name, count] of found) {
    const part = document.createElementNS(SVG, "rect");
    const wide = (300 * count) / all;
    Object.entries({ x, y: 0, width: Math.max(wide - 1, 0.5), height: 12, class: `part ${name}` })
      .forEach(([key, value]) => part.setAttribute(key, value));
    svg.append(part);
    x += wide;
  }
  const words = element("ul", { className: "parts" }, ...found.map(([name, count]) =>
    element("li", { className: name, textContent: `${name} ${count}` })));
  return element("figure", {}, element("figcaption", { textContent: caption }), svg, words);
}
