// SPDX-License-Identifier: Apache-2.0
// The same request for a terminal: curl, and Python (the openai package where its API has it).

import { key, urlOf } from "./api.js";
import { formTexts } from "./request.js";

const KEY_VARIABLE = "GATEWAY_API_KEY";
const OPENAI = ["model", "prompt", "n", "size", "output_format", "output_compression"];
const OPENAI_FILES = ["image", "mask"];

export function asCurl(request) {
  const video = request.makes === "video";
  const lines = [`curl -fsS ${shell(urlOf(video ? "v1/videos/sync" : request.path))}`];
  if (key()) lines.push(`-H "Authorization: Bearer $${KEY_VARIABLE}"`);
  if (request.files.length) {
    lines.push(...formTexts(request.fields).map(([name, text]) => `--form-string ${shell(`${name}=${text}`)}`));
    lines.push(...request.files.map(([name, file]) => `-F ${shell(`${name}=@"${file.name.replace(/["\\]/g, "\\$&")}"`)}`));
  } else {
    lines.push("-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(request.fields))}`);
  }
  if (request.makes !== "image") lines.push(`-o ${fileName(request)}`);
  const command = lines.join(" \\\n  ");
  return request.makes === "image" ? `${command} |\n  ${DECODE} > ${fileName(request)}` : command;
}

// One picture out of the answer, with what every system has.
const DECODE = `grep -o '"b64_json":"[^"]*' | head -n 1 | cut -d '"' -f 4 | base64 -d`;

export function asPython(request) {
  if (request.makes === "image" && request.files.every(([name]) => OPENAI_FILES.includes(name))) return openaiImages(request);
  if (request.makes === "video" && request.files.every(([name]) => name === "input_reference")) return openaiVideo(request);
  return plainHttp(request);
}

function openaiImages(request) {
  const edits = request.files.length > 0;
  return [
    ...imports(["base64"], "from openai import OpenAI"),
    client(),
    `answer = client.images.${edits ? "edit" : "generate"}(`,
    ...openArguments(request),
    ...openaiFields(request.fields),
    ")",
    "for number, picture in enumerate(answer.data):",
    `    with open(f"picture-{number}.${suffix(request)}", "wb") as file:`,
    "        file.write(base64.b64decode(picture.b64_json))",
    "",
  ].join("\n");
}

function openaiVideo(request) {
  return [
    ...imports([], "from openai import OpenAI"),
    client(),
    "video = client.videos.create_and_poll(",
    ...openArguments(request),
    ...openaiFields(request.fields),
    ")",
    `client.videos.download_content(video.id).write_to_file(${python(fileName(request))})`,
    "",
  ].join("\n");
}

// With httpx: the openai package has no call for it.
function plainHttp(request) {
  const path = request.makes === "video" ? "v1/videos/sync" : request.path;
  const files = request.files.map(([name, file]) => `        (${python(name)}, open(${python(file.name)}, "rb")),`);
  return [
    ...imports(request.makes === "image" ? ["base64"] : [], "import httpx"),
    "answer = httpx.post(",
    `    ${python(urlOf(path))},`,
    ...(key() ? [`    headers={"Authorization": "Bearer " + os.environ["${KEY_VARIABLE}"]},`] : []),
    `    ${files.length ? "data" : "json"}=${dictionary(files.length ? Object.fromEntries(formTexts(request.fields)) : request.fields, 1)},`,
    ...(files.length ? ["    files=[", ...files, "    ],"] : []),
    "    timeout=None,",
    ")",
    "answer.raise_for_status()",
    `with open(${python(fileName(request))}, "wb") as file:`,
    `    file.write(${request.makes === "image" ? 'base64.b64decode(answer.json()["data"][0]["b64_json"])' : "answer.content"})`,
    "",
  ].join("\n");
}

function imports(modules, last) {
  const all = [...modules, ...(key() ? ["os"] : [])].sort();
  const needed = `# pip install ${last.split(" ")[1]}`;
  return [needed, ...all.map((name) => `import ${name}`), ...(all.length ? [""] : []), last, ""];
}

const client = () => `client = OpenAI(base_url=${python(urlOf("v1"))}, api_key=${key() ? `os.environ["${KEY_VARIABLE}"]` : '"none"'})`;

function openArguments(request) {
  const names = [...new Set(request.files.map(([name]) => name))];
  return names.map((name) => {
    const opened = request.files.filter(([other]) => other === name).map(([, file]) => `open(${python(file.name)}, "rb")`);
    return `    ${name}=${opened.length > 1 ? `[${opened.join(", ")}]` : opened[0]},`;
  });
}

function openaiFields(fields) {
  const entries = Object.entries(fields);
  const named = entries.filter(([name]) => OPENAI.includes(name));
  const others = entries.filter(([name]) => !OPENAI.includes(name));
  const lines = named.map(([name, value]) => `    ${name}=${python(value)},`);
  if (others.length) lines.push(`    extra_body=${dictionary(Object.fromEntries(others), 1)},`);
  return lines;
}

function dictionary(object, depth) {
  const indent = "    ".repeat(depth);
  const lines = Object.entries(object).map(([name, value]) => `${indent}    ${python(name)}: ${python(value)},`);
  return ["{", ...lines, `${indent}}`].join("\n");
}

// A value of JSON as a Python literal: JSON's texts are Python's too.
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, part]) => `${python(name)}: ${python(part)}`).join(", ")}}`;
  return JSON.stringify(value);
}

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const NAMES = { image: ["picture", "png"], video: ["video", "mp4"], audio: ["sound", "wav"] };

function suffix(request) {
  return request.fields.output_format ?? request.fields.response_format ?? NAMES[request.makes][1];
}

const fileName = (request) => `${NAMES[request.makes][0]}.${suffix(request)}`;
