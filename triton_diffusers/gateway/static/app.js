// SPDX-License-Identifier: Apache-2.0
// The page: which model, what it is asked for, what came of it.

import { ApiError, key, listModels, setKey } from "./api.js";
import { FieldError } from "./controls.js";
import { byId, h, seconds, show, Urls } from "./dom.js";
import { Form } from "./form.js";
import { History } from "./history.js";
import { make } from "./make.js";
import { buildRequest, withSeed } from "./request.js";
import { asCurl, asPython } from "./snippets.js";
import { calm, Stage } from "./stage.js";

const AGAIN_MS = 4000; // between two tries to reach the gateway
const DRAFT_MS = 250; // between what is typed and the code for it
const MADE_HERE = ["image", "video", "audio"];

const form = new Form();
const stage = new Stage();
const history = new History();
const thumbs = new Urls();
const inputs = new Urls();

let models = [];
let model = null;
let running = null; // the AbortController of the call that runs
let shown = null; // the record on the stage
let language = asCurl;
let drafting = 0; // the timer of the next draft of the code

async function loadModels() {
  let all;
  try {
    all = await listModels();
    models = all.filter((each) => MADE_HERE.includes(each.makes));
  } catch (error) {
    return cannotList(error);
  }
  say(models.length ? null : "This gateway serves no model that makes pictures, videos or sound. Load one on its tritonserver; this page looks again by itself.");
  if (!models.length) return void setTimeout(loadModels, AGAIN_MS);
  show(byId("access"), false);
  const select = byId("model");
  select.replaceChildren(...all.map((each) => option(each, models.includes(each))));
  select.disabled = false;
  byId("create").disabled = false;
  choose(models.find((each) => each.id === model?.id) ?? models[0]);
}

function option({ id, makes }, callable) {
  return h("option", { value: id, disabled: !callable }, callable ? id : `${id} (makes ${makes}: ask tritonserver itself)`);
}

function cannotList(error) {
  if (error.status === 401) return askForKey(error);
  say(`${error.message.replace(/\.?$/, ".")} Trying again…`);
  setTimeout(loadModels, AGAIN_MS);
}

function choose(chosen) {
  model = chosen;
  byId("model").value = model.id;
  form.showModel(model);
  void showCode();
}

function say(text) {
  byId("notice").textContent = text ?? "";
  show(byId("notice"), Boolean(text));
}

function askForKey(error) {
  say(key() ? error.message : null);
  show(byId("access"), true);
  byId("key").focus();
}

// seed: undefined takes the form's; null draws another.
async function create(seed) {
  if (running) return;
  const stopping = (running = new AbortController());
  try {
    if (seed !== undefined) form.set("seed", seed);
    const request = buildRequest(model, await form.read());
    await follow(request, stopping);
  } catch (error) {
    explain(error);
  } finally {
    running = null;
    setRunning(false);
  }
}

async function follow(request, stopping) {
  setRunning(true);
  stage.start();
  reveal(byId("result"));
  const watch = { onProgress: (...step) => stage.progress(...step), onPreview: (blob) => stage.preview(blob), signal: stopping.signal };
  try {
    const made = await make(request, model.streams, watch);
    const { media, seed = null, seconds: stages = null, notes = [], size = null } = made;
    const record = { at: Date.now(), request, media, seed, elapsed: stage.elapsed, seconds: stages, notes, size };
    stage.stop();
    display(await history.add(record));
    stage.say(`Done in ${seconds(record.elapsed)}.${seed == null ? "" : ` Seed ${seed}.`}`);
  } catch (error) {
    stage.stop();
    if (shown) display(shown);
    else stage.clear();
    throw error;
  }
}

// Create and Stop change places, and hand the focus on.
function setRunning(is) {
  const [shown, hidden] = is ? [byId("stop"), byId("create")] : [byId("create"), byId("stop")];
  const focused = document.activeElement === hidden;
  show(shown, true);
  if (focused) shown.focus({ preventScroll: true });
  show(hidden, false);
}

function explain(error) {
  if (error.name === "AbortError") return stage.say(`Stopped after ${seconds(stage.elapsed)}.`);
  if (!(error instanceof ApiError || error instanceof FieldError)) {
    stage.say(`The page failed: ${error.message}`, true);
    throw error;
  }
  if (error.status === 401) askForKey(error);
  if (error.code === "model_not_found") void loadModels();
  const beside = form.fail(error);
  stage.say(beside ? "Not made: see the field that is marked." : error.message, true);
  if (!beside) void revealStatus();
}

function display(record) {
  shown = record;
  const settings = () => reuse(record);
  const served = models.length > 0;
  stage.show(record, {
    same: served && form.has("seed") ? () => create(record.seed) : null,
    fresh: served ? () => create(null) : null,
    reuse: settings,
    remove: () => forget(record),
  });
  showHistory();
  void showCode();
}

function reuse(record) {
  const wanted = models.find((each) => each.id === record.request.model);
  if (!wanted) return stage.say(`Model '${record.request.model}' is not served any more.`, true);
  choose(wanted);
  form.write({ ...record.request.values, seed: record.seed ?? record.request.values.seed });
  stage.say("The form holds these settings now.");
  reveal(byId("form"));
  byId("fields").querySelector("textarea, input, select")?.focus({ preventScroll: true });
}

// Scroll to what is out of sight, as the whole form is on a phone.
function reveal(element) {
  const { top } = element.getBoundingClientRect();
  if (top >= 0 && top < innerHeight / 3) return;
  element.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
}

// Its place is known once the pictures above it are there.
async function revealStatus() {
  await Promise.allSettled([...byId("media").querySelectorAll("img")].map((image) => image.decode()));
  byId("status").scrollIntoView({ block: "nearest" });
}

async function forget(record) {
  await history.remove(record);
  shown = null;
  stage.clear();
  stage.say("Removed.");
  byId("result").focus({ preventScroll: true });
  showHistory();
  void showCode();
}

function showHistory() {
  thumbs.revoke();
  byId("made").replaceChildren(...history.records.map(thumb));
  show(byId("history"), history.records.length > 0);
}

function thumb(record) {
  const face = faceOf(record.media[0]);
  const words = record.request.fields.prompt ?? record.request.model;
  const label = `${words}, ${record.request.model}, seed ${record.seed}, ${new Date(record.at).toLocaleString()}`;
  return h("li", {}, h("button", { type: "button", title: words, "aria-label": label, "aria-current": record === shown ? "true" : null, onclick: () => open(record) }, face));
}

function faceOf(blob) {
  const kind = blob.type.split("/")[0];
  if (kind === "image") return h("img", { src: thumbs.of(blob), alt: "" });
  if (kind === "video") return h("video", { src: thumbs.of(blob), muted: true, preload: "metadata", tabindex: -1, "aria-hidden": "true" });
  return h("span", { "aria-hidden": "true" }, "♪");
}

function open(record) {
  if (running) return;
  display(record);
  stage.say(`Shown: ${record.request.fields.prompt ?? record.request.model}.`);
  reveal(byId("result"));
  byId("made").querySelector("[aria-current]")?.focus({ preventScroll: true });
}

// Code of what is shown; before anything is, of what the form holds.
async function showCode() {
  const request = shown ? withSeed(shown.request, shown.seed) : await drafted();
  show(byId("code"), Boolean(request));
  if (!request) return;
  byId("snippet").firstChild.textContent = language(request);
  byId("copied").textContent = "";
  inputs.revoke();
  byId("input-files").replaceChildren(...request.files.map(([, file]) => h("a", { href: inputs.of(file), download: file.name }, file.name)));
}

async function drafted() {
  if (!model) return null;
  try {
    const values = await form.draft();
    return form.has("prompt") && !values.prompt ? null : buildRequest(model, values);
  } catch {
    return null; // something is missing yet
  }
}

function speak(chosen) {
  language = chosen;
  byId("show-curl").setAttribute("aria-pressed", String(chosen === asCurl));
  byId("show-python").setAttribute("aria-pressed", String(chosen === asPython));
  void showCode();
}

async function copy() {
  const text = byId("snippet").textContent;
  try {
    await navigator.clipboard.writeText(text);
    byId("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(byId("snippet")); // no clipboard without HTTPS: select it
    byId("copied").textContent = "Selected: press Ctrl+C.";
  }
}

async function clearHistory() {
  await history.clear();
  shown = null;
  stage.clear();
  stage.say("The history is empty.");
  showHistory();
  void showCode();
  byId("create").focus();
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  void create();
});
byId("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
byId("form").addEventListener("input", () => {
  clearTimeout(drafting);
  drafting = setTimeout(() => !shown && !running && void showCode(), DRAFT_MS);
});
byId("stop").addEventListener("click", () => running?.abort());
byId("model").addEventListener("change", (event) => choose(models.find((each) => each.id === event.target.value)));
byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = byId("key").value.trim();
  if (!/^[\x21-\x7e]+$/.test(typed)) return say("An API key is made of letters, digits and signs, without spaces."); // headers carry no others
  setKey(typed);
  byId("key").value = "";
  show(byId("access"), false);
  if (models.length) say(null);
  else void loadModels();
});
byId("show-curl").addEventListener("click", () => speak(asCurl));
byId("show-python").addEventListener("click", () => speak(asPython));
byId("copy").addEventListener("click", copy);
byId("clear").addEventListener("click", () => byId("sure").showModal());
byId("sure").addEventListener("close", () => byId("sure").returnValue === "clear" && clearHistory());

void history.open().then(showHistory);
void loadModels();
