// SPDX-License-Identifier: Apache-2.0
// A model as GET /v1/models describes it -> the fields of its form, in order.
//
// A field: { name, kind, label, required, first, placeholder, about, wire, type }
// first: shown at once, not under "More inputs". wire, type: its name and type as Triton lists them.

// Set by the page itself, or shown under another name below.
const NOT_SHOWN = ["output_format", "output_base64", "output_quality", "preview_every"];
const COUNTS = ["num_images_per_prompt", "num_videos_per_prompt", "num_waveforms_per_prompt"];
const PRIMARY = ["image", "images", "input_images", "reference_image", "reference_images", "video"];
const MASKS = ["mask_image", "mask", "control_mask"];

const LABELS = {
  num_inference_steps: "Steps",
  guidance_scale: "Guidance",
  true_cfg_scale: "True CFG scale",
  ip_adapter_image: "IP adapter image",
  negative_ip_adapter_image: "Negative IP adapter image",
  num_frames: "Frames",
  fps: "Frames per second",
  audio_end_in_s: "Seconds of sound",
  extra: "Further arguments, as JSON",
  mask_image: "Mask",
};

const FIRST = [
  "prompt", "image", "images", "video", "mask_image", "mask", "negative_prompt", "size", "num_frames", "fps",
  "audio_end_in_s", "num_inference_steps", "guidance_scale", "strength", "seed", ...COUNTS, "file_format",
];

export function describeFields(model) {
  const primary = primaryInput(model);
  const fields = model.inputs
    .filter((input) => !NOT_SHOWN.includes(input.name) && !(hasSize(model) && isSide(input.name)))
    .map((input) => describe(input, model, primary));
  if (hasSize(model)) fields.push(sizeField(model));
  if (model.formats.length) fields.push(formatField(model));
  if (model.makes === "image") fields.push(qualityField());
  return fields.sort((one, other) => rank(one) - rank(other));
}

// The input that a picture goes to when the request only says `image`.
export function primaryInput(model) {
  const known = PRIMARY.map((name) => inputOf(model, name)).find((input) => input?.media);
  const others = model.inputs.filter((input) => input.media && !/mask|ip_adapter_image/.test(input.name));
  return known ?? (others.length === 1 ? others[0] : null);
}

export const maskInput = (model) => MASKS.map((name) => inputOf(model, name)).find((input) => input?.media) ?? null;

export const countName = (model) => COUNTS.find((name) => inputOf(model, name)) ?? null;

// A job of OpenAI's API is one video.
const isOneOnly = (model, name) => model.makes === "video" && COUNTS.includes(name);

const inputOf = (model, name) => model.inputs.find((input) => input.name === name);
const isSide = (name) => name === "width" || name === "height";
const hasSize = (model) => ["width", "height"].every((name) => inputOf(model, name));

function rank(field) {
  const place = FIRST.indexOf(field.name);
  return place >= 0 ? place : FIRST.length;
}

function describe(input, model, primary) {
  return {
    name: input.name,
    kind: kindOf(input, primary),
    label: COUNTS.includes(input.name) ? countLabel(model) : (LABELS[input.name] ?? humanize(input.name)),
    required: input.required,
    first: input.required || input === primary || (FIRST.includes(input.name) && !isOneOnly(model, input.name)),
    placeholder: input.default == null ? "" : asText(input.default),
    about: input.name === "seed" ? null : input.about,
    wire: input.name,
    type: typeOf(input),
  };
}

function kindOf(input, primary) {
  if (input.media) {
    if (MASKS.includes(input.name) && primary?.data_type === "TYPE_UINT8" && !/video/.test(primary.name)) return "mask";
    if (input.data_type === "TYPE_FP32") return "audio";
    return /(^|_)video(_|$)|^conditioning_frames$/.test(input.name) ? "video" : "image";
  }
  if (input.name === "extra") return "json";
  if (input.name === "seed") return "seed";
  const many = input.dims[0] === -1;
  if (input.data_type === "TYPE_STRING") return many ? "prompt" : "text";
  if (input.data_type === "TYPE_BOOL") return many ? "list" : "flag";
  const whole = /INT/.test(input.data_type);
  return many ? "list" : whole ? "whole" : "number";
}

const sizeField = (model) => ({
  name: "size",
  kind: "size",
  label: "Size",
  first: true,
  placeholder: ["width", "height"].map((side) => asText(inputOf(model, side).default ?? "")),
  wire: "width, height",
  type: "pixels",
});

const formatField = (model) => ({
  name: "file_format",
  kind: "choice",
  label: "File",
  first: true,
  choices: model.formats,
  wire: model.makes === "audio" ? "response_format" : "output_format",
  type: "STRING",
});

const qualityField = () => ({
  name: "output_compression",
  kind: "whole",
  label: "Quality of JPEG and WebP",
  first: false,
  placeholder: "1 to 100",
  wire: "output_compression",
  type: "INT64",
});

const countLabel = (model) => ({ image: "Pictures", video: "Videos", audio: "Sounds" })[model.makes] ?? "Outputs";

function humanize(name) {
  const words = name.replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}

// "INT64", "FP64 [-1]", "UINT8 [-1, -1, -1, -1]"; what holds one value needs no dims.
function typeOf(input) {
  const many = input.dims.length > 1 || (input.dims[0] !== 1 && input.data_type !== "TYPE_STRING");
  return input.data_type.replace("TYPE_", "") + (many ? ` [${input.dims.join(", ")}]` : "");
}

const asText = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
