// SPDX-License-Identifier: Apache-2.0
// The form of one model: a control for each input that it accepts.

import "./mask.js";
import { makeControl } from "./controls.js";
import { byId, h, show } from "./dom.js";
import { describeFields, primaryInput } from "./fields.js";
import { controlName } from "./request.js";

export class Form {
  #controls = new Map();
  #model = null;

  // Values of inputs that the last model had too are kept.
  showModel(model) {
    const values = this.#model ? this.#peek() : {};
    this.#model = model;
    this.#controls = new Map(describeFields(model).map((field) => [field.name, makeControl(field)]));
    const all = [...this.#controls.values()];
    const rest = all.filter((control) => !control.field.first);
    byId("fields").replaceChildren(...grouped(all.filter((control) => control.field.first)));
    byId("rest").replaceChildren(...rest.map((control) => control.element));
    byId("more-count").textContent = `(${rest.length})`;
    show(byId("more"), rest.length > 0);
    this.#connectMask();
    this.write(values);
  }

  // Values by control's name, without what was left alone. Throws FieldError.
  async read() {
    this.clearErrors();
    return this.draft();
  }

  // The same, while errors stay as they are shown.
  async draft() {
    const values = {};
    for (const [name, control] of this.#controls) {
      const value = await (control.finish ? control.finish() : control.read());
      if (value !== undefined) values[name] = value;
      else if (control.field.required) control.fail(`${control.field.label} is needed.`);
    }
    return values;
  }

  write(values) {
    for (const [name, control] of this.#controls) {
      if (name in values || control.files === undefined || control.files.length) control.write(values[name]);
    }
    this.clearErrors();
  }

  set(name, value) {
    this.#controls.get(name)?.write(value);
  }

  has(name) {
    return this.#controls.has(name);
  }

  clearErrors() {
    for (const control of this.#controls.values()) control.setError(null);
  }

  // Show an error beside the field that its `param` names. Returns whether there is one.
  fail(error) {
    const name = controlName(this.#model, error.param).find((known) => this.#controls.has(known)) ?? this.#holder(error.param);
    if (!name) return false;
    const control = this.#controls.get(name);
    control.setError(error.message);
    for (let parent = control.element.closest("details"); parent; parent = parent.parentElement.closest("details")) parent.open = true;
    control.focus.focus();
    return true;
  }

  // Arguments without a control of their own were typed as JSON.
  #holder(param) {
    const typed = this.#peek().extra;
    return typed && param in typed ? "extra" : null;
  }

  #peek() {
    const values = {};
    for (const [name, control] of this.#controls) {
      try {
        values[name] = control.read();
      } catch {
        values[name] = undefined; // it could not be sent: not worth keeping
      }
    }
    return values;
  }

  #connectMask() {
    const masks = [...this.#controls.values()].filter((control) => control.setPicture);
    const picture = this.#controls.get(primaryInput(this.#model)?.name);
    if (!masks.length || !picture) return;
    picture.input.multiple = false;
    picture.onchange = (files) => masks.forEach((mask) => mask.setPicture(files[0] ?? null));
  }
}

// Short fields stand two in a row; CSS makes rows of a group.
function grouped(controls) {
  const short = (control) => !["prompt", "image", "video", "audio", "mask", "json"].includes(control.field.kind);
  const long = controls.filter((control) => !short(control));
  return [...long.map((control) => control.element), h("div", { class: "grid" }, controls.filter(short).map((control) => control.element))];
}
