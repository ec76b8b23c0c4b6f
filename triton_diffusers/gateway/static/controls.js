// SPDX-License-Identifier: Apache-2.0
// One control for each kind of field. A control: { field, element, focus, read(), write(), setError() }
//
// read() returns undefined for what was left alone: the model's own default stays in force.

import { h } from "./dom.js";

// What a control holds cannot be sent.
export class FieldError extends Error {
  constructor(name, message) {
    super(message);
    this.param = name;
  }
}

export function makeControl(field) {
  return new (KINDS[field.kind] ?? Text)(field);
}

export class Control {
  constructor(field) {
    this.field = field;
    this.id = `in-${field.name}`;
    this.error = h("p", { class: "error", id: `${this.id}-error`, hidden: true });
    this.hint = h("p", { class: "about", id: `${this.id}-about` }, this.about());
    this.element = h("div", { class: `field ${field.kind}` }, this.head(), this.body(), this.hint, this.error);
    for (const input of this.inputs()) input.setAttribute("aria-describedby", `${this.hint.id} ${this.error.id}`);
  }

  about() {
    const { wire, type, about } = this.field;
    return [h("code", {}, wire), ` ${type}`, about ? ` · ${about}` : ""];
  }

  head() {
    const required = this.field.required ? h("span", { class: "required" }, " (needed)") : null;
    return h("label", { for: this.id }, this.field.label, required);
  }

  inputs() {
    return [this.input];
  }

  get focus() {
    return this.inputs()[0];
  }

  setError(message) {
    this.error.textContent = message ?? "";
    this.error.hidden = !message;
    for (const input of this.inputs()) {
      if (message) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }

  fail(message) {
    throw new FieldError(this.field.name, message);
  }
}

class Text extends Control {
  body() {
    return (this.input = h("input", { id: this.id, type: "text", autocomplete: "off", ...this.attributes() }));
  }

  attributes() {
    return { placeholder: this.field.placeholder, required: this.field.required };
  }

  read() {
    const text = this.input.value;
    return text.trim() === "" ? undefined : this.parse(text.trim());
  }

  parse(text) {
    return text;
  }

  write(value) {
    this.input.value = value == null ? "" : String(value);
  }
}

class Prompt extends Text {
  body() {
    const rows = this.field.name === "prompt" ? 4 : 2;
    return (this.input = h("textarea", { id: this.id, rows, ...this.attributes() }));
  }

  attributes() {
    const placeholder = this.field.placeholder || (this.field.name === "prompt" ? "Describe what you would like to see or hear" : "");
    return { placeholder, required: this.field.required };
  }
}

class Whole extends Text {
  attributes() {
    return { ...super.attributes(), placeholder: this.field.placeholder || "default", inputmode: "numeric" };
  }

  parse(text) {
    const value = Number(text);
    if (!Number.isSafeInteger(value)) this.fail(`${this.field.label}: '${text}' is no whole number. Send one such as 20.`);
    return value;
  }
}

class Decimal extends Text {
  attributes() {
    return { ...super.attributes(), placeholder: this.field.placeholder || "default", inputmode: "decimal" };
  }

  parse(text) {
    const value = Number(text.replace(",", "."));
    if (!Number.isFinite(value)) this.fail(`${this.field.label}: '${text}' is no number. Send one such as 3.5.`);
    return value;
  }
}

class Seed extends Whole {
  attributes() {
    return { ...super.attributes(), placeholder: this.field.placeholder || "new each time" };
  }
}

class List extends Text {
  attributes() {
    return { ...super.attributes(), placeholder: this.field.placeholder || "separated by commas" };
  }

  parse(text) {
    return text.replace(/^\[|\]$/g, "").split(",").map((part) => this.item(part.trim()));
  }

  item(part) {
    if (part === "true" || part === "false") return part === "true";
    const value = Number(part);
    if (part === "" || !Number.isFinite(value)) this.fail(`${this.field.label}: '${part}' is no number. Separate numbers by commas.`);
    return value;
  }

  write(value) {
    this.input.value = value == null ? "" : [value].flat().join(", ");
  }
}

class Json extends Prompt {
  attributes() {
    return { placeholder: '{"name": value}', spellcheck: "false" };
  }

  parse(text) {
    let value;
    try {
      value = JSON.parse(text);
    } catch (error) {
      this.fail(`${this.field.label}: ${error.message}`);
    }
    if (value === null || typeof value !== "object" || Array.isArray(value)) this.fail(`${this.field.label}: send an object such as {"name": 1}.`);
    return value;
  }

  write(value) {
    this.input.value = value == null ? "" : JSON.stringify(value);
  }
}

class Choice extends Control {
  body() {
    const [first, ...others] = this.field.choices;
    this.input = h("select", { id: this.id }, h("option", { value: "" }, first.toUpperCase()), others.map((choice) => h("option", { value: choice }, choice.toUpperCase())));
    return this.input;
  }

  read() {
    return this.input.value || undefined;
  }

  write(value) {
    this.input.value = value ?? "";
  }
}

class Flag extends Control {
  body() {
    const unset = this.field.placeholder ? `as set: ${this.field.placeholder}` : "the model's default";
    const options = [["", unset], ["true", "yes"], ["false", "no"]];
    return (this.input = h("select", { id: this.id }, options.map(([value, text]) => h("option", { value }, text))));
  }

  read() {
    return this.input.value === "" ? undefined : this.input.value === "true";
  }

  write(value) {
    this.input.value = value == null ? "" : String(value);
  }
}

class Size extends Control {
  head() {
    return h("span", { class: "label", id: `${this.id}-label` }, this.field.label);
  }

  body() {
    const [width, height] = this.field.placeholder;
    this.width = this.side("width", "Width", width);
    this.height = this.side("height", "Height", height);
    const swap = h("button", { type: "button", class: "icon", "aria-label": "Swap width and height", title: "Swap width and height", onclick: () => this.swap() }, "⇄");
    return h("div", { class: "row", role: "group", "aria-labelledby": `${this.id}-label` }, this.width, swap, this.height);
  }

  side(name, label, placeholder) {
    return h("input", { id: `in-${name}`, type: "text", inputmode: "numeric", autocomplete: "off", "aria-label": label, placeholder: placeholder || label.toLowerCase() });
  }

  inputs() {
    return [this.width, this.height];
  }

  swap() {
    [this.width.value, this.height.value] = [this.height.value || this.height.placeholder.replace(/\D/g, ""), this.width.value || this.width.placeholder.replace(/\D/g, "")];
  }

  // One side alone is the input of that name.
  read() {
    const [width, height] = this.inputs().map((input) => this.pixels(input.value.trim()));
    if (width && height) return `${width}x${height}`;
    return width || height ? { width, height } : undefined;
  }

  pixels(text) {
    if (text === "") return undefined;
    const value = Number(text);
    if (!Number.isInteger(value) || value < 1) this.fail(`Size: '${text}' is no number of pixels. Send one such as 512.`);
    return value;
  }

  write(value) {
    const found = /^(\d+)x(\d+)$/.exec(typeof value === "string" ? value : "");
    this.width.value = found?.[1] ?? value?.width ?? "";
    this.height.value = found?.[2] ?? value?.height ?? "";
  }
}

export const KINDS = { prompt: Prompt, text: Text, whole: Whole, number: Decimal, seed: Seed, list: List, json: Json, choice: Choice, flag: Flag, size: Size };
