// SPDX-License-Identifier: Apache-2.0
// Controls for pictures, videos and sounds: chosen, dropped or pasted, shown small, removable.

import { Control, KINDS } from "./controls.js";
import { h, Urls } from "./dom.js";

const ACCEPT = { image: "image/*", mask: "image/*", video: "video/*,image/gif", audio: "audio/*" };
const PREVIEW = { image: "img", mask: "img", video: "video", audio: "audio" };
const NOUN = { image: "picture", mask: "picture", video: "video", audio: "sound" };

export class Upload extends Control {
  body() {
    const { kind } = this.field;
    this.files = [];
    this.urls = new Urls();
    this.onchange = () => {};
    this.input = h("input", { id: this.id, type: "file", accept: ACCEPT[kind], multiple: kind === "image", required: this.field.required, onchange: () => this.take([...this.input.files]) });
    this.list = h("ul", { class: "chosen" });
    const drop = h("div", { class: "drop" }, h("p", { "aria-hidden": "true" }, `Choose, drop or paste a ${NOUN[kind]}`), this.input);
    drop.addEventListener("dragover", (event) => event.preventDefault());
    drop.addEventListener("drop", (event) => this.takeFrom(event, event.dataTransfer));
    drop.addEventListener("paste", (event) => this.takeFrom(event, event.clipboardData));
    return h("div", {}, drop, this.list);
  }

  takeFrom(event, transfer) {
    const files = [...transfer.files];
    if (!files.length) return;
    event.preventDefault();
    this.take(files);
  }

  take(files) {
    const wrong = files.find((file) => !this.accepts(file));
    this.setError(wrong ? `${this.field.label}: '${wrong.name}' is no ${NOUN[this.field.kind]}.` : null);
    if (!wrong) this.write(files);
  }

  accepts(file) {
    return file.type === "" || ACCEPT[this.field.kind].split(",").some((type) => file.type.startsWith(type.replace("*", "")));
  }

  read() {
    return this.files.length ? this.files : undefined;
  }

  write(files) {
    this.files = [files ?? []].flat();
    this.input.value = ""; // so that the same file can be chosen again
    this.urls.revoke();
    this.list.replaceChildren(...this.files.map((file) => this.item(file)));
    this.onchange(this.files);
  }

  item(file) {
    const { kind } = this.field;
    const shown = h(PREVIEW[kind], { src: this.urls.of(file), alt: "", controls: PREVIEW[kind] !== "img" });
    const name = h("span", { class: "name" }, file.name);
    const remove = () => {
      this.write(this.files.filter((other) => other !== file));
      this.input.focus();
    };
    return h("li", {}, shown, name, h("button", { type: "button", class: "icon", "aria-label": `Remove ${file.name}`, onclick: remove }, "×"));
  }
}

Object.assign(KINDS, { image: Upload, video: Upload, audio: Upload });
