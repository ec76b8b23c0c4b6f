// SPDX-License-Identifier: Apache-2.0
// What the form holds -> the request: { model, makes, path, fields, files, values }
//
// fields: what JSON carries, by name. files: [name of the form's part, File], for multipart bodies.
// values: what each control held, so that the form can be filled with it again.

import { countName, maskInput, primaryInput } from "./fields.js";

const GENERATE = { image: "v1/images/generations", video: "v1/videos", audio: "v1/audio/generate" };

// values: control's name -> what was read. Names become those of OpenAI's API where it has one.
export function buildRequest(model, values) {
  const fields = { model: model.id };
  const files = [];
  const primary = primaryInput(model)?.name;
  for (const [name, value] of Object.entries(values)) {
    if (Array.isArray(value) && value[0] instanceof File) {
      files.push(...value.map((file) => [partName(model, name, primary), file]));
    } else Object.assign(fields, renamed(model, name, value));
  }
  renameTwins(files);
  const path = model.makes === "image" && files.length ? "v1/images/edits" : GENERATE[model.makes];
  return { model: model.id, makes: model.makes, path, fields, files, values };
}

// Files of one name get others, so that the request as code can be run in one folder.
function renameTwins(files) {
  const taken = new Set();
  for (const part of files) {
    const [name, file] = part;
    if (taken.has(file.name)) part[1] = new File([file], `${name}-${taken.size}-${file.name}`, { type: file.type });
    taken.add(part[1].name);
  }
}

function partName(model, name, primary) {
  if (model.makes === "video" && name === primary) return "input_reference";
  if (model.makes !== "image") return name;
  return { [primary]: "image", [maskInput(model)?.name]: "mask" }[name] ?? name;
}

function renamed(model, name, value) {
  if (name === "size" && typeof value === "object") return withoutUnset(value);
  if (name === "extra") return { diffusers_kwargs: value };
  if (name === "file_format") return { [model.makes === "audio" ? "response_format" : "output_format"]: value };
  if (name === countName(model) && model.makes === "image") return { n: value };
  return { [name]: value };
}

const withoutUnset = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined));

// An error's `param` -> the name of the control that it is about.
export function controlName(model, param) {
  const primary = primaryInput(model)?.name;
  const known = { n: countName(model), width: "size", height: "size", output_format: "file_format", response_format: "file_format", diffusers_kwargs: "extra", image: primary, images: primary, "image[]": primary, input_reference: primary, mask: maskInput(model)?.name, input: "prompt" };
  return [param, known[param], param?.split(".")[0]].filter(Boolean);
}

// The body and its headers; `more`: fields that say how to answer.
export function encode(request, more = {}) {
  const fields = { ...request.fields, ...more };
  if (!request.files.length) return { body: JSON.stringify(fields), headers: { "Content-Type": "application/json" } };
  const form = new FormData();
  for (const [name, text] of formTexts(fields)) form.append(name, text);
  for (const [name, file] of request.files) form.append(name, file, file.name);
  return { body: form, headers: {} };
}

// Fields as the texts of a form, in pairs: objects and lists as JSON.
export function formTexts(fields) {
  return Object.entries(fields).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : String(value)]);
}

// The request whose result is always the same.
export const withSeed = (request, seed) => (seed == null ? request : { ...request, fields: { ...request.fields, seed } });
