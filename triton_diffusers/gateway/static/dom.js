// SPDX-License-Identifier: Apache-2.0
// Making elements. Texts become text nodes: nothing that a server sends is read as HTML.

export const byId = (id) => document.getElementById(id);

// h("button", { type: "button", onclick: f, hidden: false }, "Text", element, null)
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

export function show(element, shown) {
  element.hidden = !shown;
}

// Object URLs live until they are revoked: one owner revokes all of its own when it shows others.
export class Urls {
  #made = [];

  of(blob) {
    const url = URL.createObjectURL(blob);
    this.#made.push(url);
    return url;
  }

  revoke() {
    this.#made.forEach((url) => URL.revokeObjectURL(url));
    this.#made = [];
  }
}

export const seconds = (s) => (s < 60 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`);

const SUFFIXES = { jpeg: "jpg", "svg+xml": "svg", "x-wav": "wav", quicktime: "mov", mpeg: "mp3" };

// "image/png" -> "png"
export function suffixOf(blob) {
  const subtype = blob.type.split(";")[0].split("/")[1] ?? "bin";
  return SUFFIXES[subtype] ?? subtype;
}
