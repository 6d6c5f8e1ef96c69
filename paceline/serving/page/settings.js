// What the panel says, as fields of a request; kept in the link (all but the key) so that it can be sent to others.

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "num_draft_tokens"];
const TEXTS = ["system", "policy", "rule", "prediction", "schema"];

const field = (name) => document.querySelector(`aside [name="${name}"]`);

export function read() {
  const found = { drafts: field("drafts").checked };
  for (const name of NUMBERS) if (field(name).value !== "") found[name] = Number(field(name).value);
  for (const name of TEXTS) if (field(name).value.trim() !== "") found[name] = field(name).value;
  return found;
}

export function body(found, messages, model) {
  const asked = { model, messages, stream: true, stream_options: { include_usage: true }, paceline: { trace: true } };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "prediction"])
    if (found[name] !== undefined) asked[name] = found[name];
  if (found.schema) {
    const json_schema = { name: "answer", strict: true, schema: parsed(found.schema) };
    asked.response_format = { type: "json_schema", json_schema };
  }
  if (found.system) asked.messages = [{ role: "system", content: found.system }, ...messages];
  asked.speculative = found.drafts && wishes(found);
  return asked;
}

function parsed(schema) {
  try {
    return JSON.parse(schema);
  } catch (error) {
    throw new Error(`the JSON schema in the panel is no JSON: ${error.message}`);
  }
}

function wishes(found) {
  const own = {};
  for (const name of ["num_draft_tokens", "policy", "rule"]) if (found[name] !== undefined) own[name] = found[name];
  return Object.keys(own).length ? own : true;
}

// A number that was cleared is in the link too, since the page would else open with its first value.
export function remember() {
  const found = read();
  const cleared = NUMBERS.filter((name) => field(name).value === "" && field(name).defaultValue !== "");
  const pairs = Object.entries(found).map(([name, value]) => [name, String(value)]);
  pairs.push(...cleared.map((name) => [name, ""]));
  history.replaceState(null, "", `#${new URLSearchParams(pairs)}`);
}

export function recall() {
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (name === "drafts") field("drafts").checked = value === "true";
    else if ([...NUMBERS, ...TEXTS].includes(name)) field(name).value = value;
  }
}
