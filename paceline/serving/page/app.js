// The playground: a conversation, a race, and what became of the drafts.

import { getJson, stream } from "./api.js";
import * as settings from "./settings.js";
import { stepPanel } from "./steps.js";
import { bars, button, element, facts, token } from "./view.js";

const $ = (id) => document.getElementById(id);
const SAMPLES = ["Count from 1 to 30, separated by commas.", "Write a short poem about a river.",
  "Repeat three times: the quick brown fox jumps over the lazy dog."];
const EXAMPLE = { type: "object", properties: { name: { type: "string", maxLength: 24 }, age: { type: "integer" },
  likes: { type: "array", items: { type: "string", maxLength: 16 }, minItems: 2, maxItems: 3 } },
  required: ["name", "age", "likes"], additionalProperties: false };

let talk = []; // {role, content, tokens?, note?}
let running = null; // AbortController of the answer under way
let drafter = null;
let passes = null; // the panel of single passes

const key = () => $("key").value;
const model = () => $("model").value;

// One answer; `each` is told of every piece of it. Returns {text, tokens, usage, stats, seconds, reason}.
async function answer(body, each) {
  running = new AbortController();
  busy(true);
  passes.clear();
  const whole = { text: "", tokens: [], usage: null, stats: null, seconds: 0, reason: null };
  let begun = null;
  try {
    for await (const event of stream("/v1/chat/completions", body, key(), running.signal)) {
      const choice = event.choices[0];
      if (choice) {
        const fresh = choice.paceline?.tokens ?? [];
        begun ??= performance.now();
        whole.text += choice.delta?.content ?? "";
        whole.tokens.push(...fresh);
        whole.reason = choice.finish_reason ?? whole.reason;
        whole.seconds = (performance.now() - begun) / 1000;
        each(fresh, whole);
        if (fresh.length) passes.add(fresh, choice.paceline.step);
      }
      whole.usage = event.usage ?? whole.usage;
      whole.stats = event.paceline?.choices?.[0] ?? whole.stats;
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    whole.reason = "stopped";
  } finally {
    running = null;
    busy(false);
  }
  return whole;
}

// Tokens after the first per second: by the server's clock once it has told, else by when their events came.
function speed(whole) {
  const told = whole.stats;
  const seconds = told ? told.draft_seconds + told.verify_seconds + told.other_seconds : whole.seconds;
  return seconds > 0 ? (whole.tokens.length - 1) / seconds : 0;
}

function busy(is) {
  $("stop").disabled = !is;
  for (const id of ["send", "race", "clear"]) $(id).disabled = is;
}

function say(problem) {
  scrolled(() => $("log").append(element("p", { className: "error", role: "alert", textContent: problem })), true);
}

function messageView(message, place) {
  const text = element("div", { className: "text" });
  if (message.tokens) text.append(...message.tokens.map((each) => token(each, drafter)));
  else text.textContent = message.content;
  const tools = element("div", { className: "tools" });
  const who = message.role === "user" ? "You" : "Model";
  const view = element("article", { className: `message ${message.role}` },
    element("span", { className: "who", textContent: who }), text, tools);
  tools.append(button("Copy", () => navigator.clipboard?.writeText(message.content)));
  if (message.role === "user") tools.append(button("Edit", () => edit(place)));
  else tools.append(button("Again", () => again(place)));
  if (message.note) tools.append(element("span", { textContent: message.note }));
  return view;
}

function show(follows = true) {
  const views = talk.map(messageView);
  $("empty").hidden = talk.length > 0;
  scrolled(() => $("log").replaceChildren($("empty"), ...views), follows);
}

// Whether the end of the log is in view; somebody who reads further up is not moved while an answer comes.
const isAtEnd = () => $("log").scrollHeight - $("log").clientHeight - $("log").scrollTop < 40;

function scrolled(change, follows) {
  const place = $("log").scrollTop;
  change();
  $("log").scrollTop = follows ? $("log").scrollHeight : place;
}

function edit(place) {
  if (running) return;
  $("prompt").value = talk[place].content;
  talk = talk.slice(0, place);
  show();
  $("prompt").focus();
}

function again(place) {
  if (running) return;
  talk = talk.slice(0, place);
  reply();
}

function send() {
  const said = $("prompt").value.trim();
  if (!said || running) return;
  $("prompt").value = "";
  talk.push({ role: "user", content: said });
  reply();
}

const spoken = (messages) => messages.map(({ role, content }) => ({ role, content }));

async function reply() {
  show();
  const text = element("div", { className: "text" });
  const view = element("article", { className: "message assistant" },
    element("span", { className: "who", textContent: "Model" }), text);
  $("log").append(view);
  let whole;
  try {
    whole = await answer(settings.body(settings.read(), spoken(talk), model()), (fresh) => {
      scrolled(() => text.append(...fresh.map((each) => token(each, drafter))), isAtEnd());
    });
  } catch (error) {
    takeBack();
    say(error.message);
    return;
  }
  const note = `${speed(whole).toFixed(1)} tokens/s, ended by ${whole.reason}`;
  talk.push({ role: "assistant", content: whole.text, tokens: whole.tokens, note });
  show(isAtEnd());
  $("said").textContent = whole.text;
  tell(whole);
}

// Puts a prompt that got no answer back into its field, to be changed and sent again; the next request does not hold it.
function takeBack() {
  const { content } = talk.pop();
  if (!$("prompt").value) $("prompt").value = content;
  show();
}

function tell(whole) {
  const { stats, usage } = whole;
  const share = (value) => (value === null || value === undefined ? "none" : `${(100 * value).toFixed(0)} %`);
  const pairs = [["tokens/s", speed(whole).toFixed(1)]];
  if (usage) {
    pairs.push(["tokens", String(usage.completion_tokens)], ["tokens of the prompt", String(usage.prompt_tokens)],
      ["of these cached", String(usage.prompt_tokens_details.cached_tokens)]);
    const predicted = usage.completion_tokens_details;
    if (predicted.accepted_prediction_tokens + predicted.rejected_prediction_tokens > 0)
      pairs.push(["predicted, accepted", String(predicted.accepted_prediction_tokens)]);
  }
  if (stats) {
    pairs.push(["passes of the model", String(stats.num_target_passes)],
      ["tokens per pass", (stats.acceptance_length ?? 1).toFixed(2)],
      ["drafted", String(stats.num_draft_tokens)], ["accepted", String(stats.num_accepted_tokens)],
      ["acceptance rate", share(stats.acceptance_rate)]);
    const levels = stats.drafted_per_level.map((drafted, i) => ({
      name: String(i + 1), back: drafted, high: stats.accepted_per_level[i] ?? 0,
      told: [stats.accepted_per_level[i] ?? 0, drafted],
    }));
    bars($("positions"), ["position", "accepted", "drafted"], levels, Math.max(...stats.drafted_per_level, 1));
    const passes = stats.tokens_per_pass.map((count, i) => ({ name: String(i + 1), high: count, told: [count] }));
    bars($("passes"), ["tokens", "passes"], passes, Math.max(...stats.tokens_per_pass, 1));
  } else for (const id of ["positions", "passes"]) bars($(id), [], [], 1); // the answer was stopped
  facts($("stats"), pairs);
  refresh();
}

async function race() {
  const prompt = $("prompt").value.trim() || [...talk].reverse().find((each) => each.role === "user")?.content;
  if (!prompt || running) return;
  $("racing").hidden = false;
  $("verdict").textContent = "plain decoding runs first";
  const found = settings.read();
  found.seed ??= 1;
  const results = {};
  try {
    for (const lane of ["plain", "drafted"]) {
      clearLane(lane);
      const body = settings.body({ ...found, drafts: lane === "drafted" }, [{ role: "user", content: prompt }], model());
      results[lane] = await answer(body, (fresh, whole) => follow(lane, fresh, whole));
      if (results[lane].reason === "stopped") throw new Error("stopped");
      finishLane(lane, results[lane]);
      $("verdict").textContent = "with drafts";
    }
  } catch (error) {
    $("verdict").textContent = error.message;
    return;
  }
  judge(results.plain, results.drafted);
  tell(results.drafted);
}

function judge(plain, drafted) {
  const ids = (whole) => whole.tokens.map((each) => each.id).join();
  const same = ids(plain) === ids(drafted);
  const ratio = speed(drafted) / speed(plain);
  const pace = Number.isFinite(ratio) && ratio > 0 ? `; drafted ran at ${ratio.toFixed(2)} times the speed of plain` : "";
  $("verdict").textContent = `identical: ${same ? "yes" : "no"}${pace}`;
}

const laneOf = (name) => document.querySelector(`[data-lane="${name}"]`);

function clearLane(name) {
  laneOf(name).querySelector(".text").replaceChildren();
  laneOf(name).querySelector(".passes").textContent = "";
}

function follow(name, fresh, whole) {
  const lane = laneOf(name), pace = speed(whole);
  lane.querySelector(".text").append(...fresh.map((each) => token(each, drafter)));
  lane.querySelector(".speed b").textContent = pace.toFixed(1);
  const meters = [...document.querySelectorAll(".lanes meter")];
  lane.querySelector("meter").dataset.pace = pace;
  const most = Math.max(...meters.map((each) => Number(each.dataset.pace ?? 0)), 1);
  for (const each of meters) {
    each.max = most;
    each.value = Number(each.dataset.pace ?? 0);
  }
}

function finishLane(name, whole) {
  follow(name, [], whole);
  const passes = whole.stats?.num_target_passes;
  laneOf(name).querySelector(".passes").textContent = `${whole.tokens.length} tokens in ${passes ?? "?"} passes`;
}

async function refresh() {
  try {
    const { models, metrics } = await getJson("/api/state", key());
    const names = Object.keys(models);
    if ($("model").options.length !== names.length) $("model").replaceChildren(...names.map((name) => new Option(name)));
    const { drafter: by, dtype, max_model_len: longest } = models[model()];
    drafter = by;
    const told = [model(), dtype, longest && `${longest} tokens`].filter((each) => each).join(", ");
    $("facts").textContent = by === undefined ? told : `${told}; drafter: ${by ?? "none"}`; // a cluster does not tell it
    const counted = metrics[model()]?.rows ?? {};
    const rows = Object.entries(counted).map(([name, count]) => ({ name, high: count, told: [count] }));
    bars($("rows"), ["kind", "rows"], rows, Math.max(...rows.map((row) => row.high), 1));
  } catch (error) {
    $("facts").textContent = error.message;
  }
}

function switchTheme(to) {
  document.documentElement.dataset.theme = to;
}

function start() {
  passes = stepPanel(document.querySelector("#steps > div"));
  passes.clear();
  switchTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  $("theme").addEventListener("click", () =>
    switchTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("samples").append(...SAMPLES.map((text) => button(text, () => { $("prompt").value = text; send(); })));
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
  $("stop").addEventListener("click", () => running?.abort());
  $("race").addEventListener("click", race);
  $("clear").addEventListener("click", () => { talk = []; show(); });
  $("example").addEventListener("click", () => {
    document.querySelector("[name=schema]").value = JSON.stringify(EXAMPLE, null, 1);
    settings.remember();
  });
  document.querySelector("aside").addEventListener("change", settings.remember);
  for (const id of ["key", "model"]) $(id).addEventListener("change", refresh);
  settings.recall();
  addEventListener("hashchange", settings.recall);
  for (const id of ["positions", "passes", "rows"]) bars($(id), [], [], 1);
  refresh();
}

start();
