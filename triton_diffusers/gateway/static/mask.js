// SPDX-License-Identifier: Apache-2.0
// Painting a mask over a picture, by pointer or by keyboard; or a file instead.
//
// The mask is as large as the picture: white where the model paints, black where it keeps.

import { KINDS } from "./controls.js";
import { h, show } from "./dom.js";
import { Upload } from "./uploads.js";

const TINT = "rgba(255, 64, 96, 0.62)";
const isPainted = (alpha) => alpha > 78; // the edge of a stroke is softened: half of the tint's 158
const MOST_PIXELS = 2048 * 2048; // a phone's browser gives no larger canvas; the model scales masks

class Mask extends Upload {
  body() {
    const upload = super.body();
    this.input.multiple = false;
    this.canvas = this.makeCanvas();
    this.size = h("input", { type: "range", min: 1, max: 40, value: 10, id: `${this.id}-brush`, "aria-valuetext": "10 percent", oninput: () => this.resize(0) });
    this.mode = { paint: this.toggle("Paint", false), erase: this.toggle("Erase", true) };
    this.said = h("p", { class: "about", role: "status" });
    this.hintKeys = h("p", { class: "about", id: `${this.id}-keys` }, "Keys: arrows move the brush, Shift with them faster, Space paints, E switches the eraser, + and − change its size, Ctrl+Z undoes.");
    this.painter = h("div", { class: "painter", hidden: true },
      h("div", { class: "sheet" }, (this.picture = h("img", { alt: "" })), this.canvas, (this.cursor = h("span", { class: "cursor", hidden: true }))),
      h("div", { class: "tools" },
        h("div", { class: "switch", role: "group", "aria-label": "Brush" }, this.mode.paint, this.mode.erase),
        h("label", { for: this.size.id }, "Size ", this.size),
        this.tool("Undo", () => this.undo()), this.tool("Invert", () => this.invert()), this.tool("Clear", () => this.clear())),
      this.said, this.hintKeys);
    this.setErasing(false);
    this.wait = h("p", { class: "about" }, "Choose a picture first; then paint here what the model shall change.");
    return h("div", {}, this.wait, this.painter, h("details", {}, h("summary", {}, "Upload a mask instead"), upload));
  }

  inputs() {
    return [this.canvas, this.input];
  }

  makeCanvas() {
    const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "mask to paint", "aria-label": "Mask over the picture", "aria-keyshortcuts": "ArrowUp ArrowDown ArrowLeft ArrowRight Space E + - Control+Z" });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", () => this.up());
    canvas.addEventListener("pointercancel", () => this.up());
    canvas.addEventListener("pointerleave", () => show(this.cursor, document.activeElement === canvas));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.place(this.at));
    canvas.addEventListener("blur", () => show(this.cursor, false));
    return canvas;
  }

  toggle(text, erasing) {
    return h("button", { type: "button", onclick: () => this.setErasing(erasing) }, text);
  }

  tool(text, onclick) {
    return h("button", { type: "button", class: "button quiet", onclick }, text);
  }

  // The picture that is painted over; null for none.
  async setPicture(file) {
    this.dirty = false;
    show(this.wait, !file);
    show(this.painter, Boolean(file));
    if (!file) return;
    this.picture.src = this.urls.of(file);
    await this.picture.decode().catch(() => show(this.painter, false));
    const { naturalWidth: width, naturalHeight: height } = this.picture;
    const scale = Math.min(1, Math.sqrt(MOST_PIXELS / (width * height)));
    Object.assign(this.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    this.steps = [];
    this.at = { x: this.canvas.width / 2, y: this.canvas.height / 2 };
    this.tell();
  }

  get radius() {
    return (Math.min(this.canvas.width, this.canvas.height) * Number(this.size.value)) / 200;
  }

  setErasing(erasing) {
    this.erasing = erasing;
    this.mode.paint.setAttribute("aria-pressed", String(!erasing));
    this.mode.erase.setAttribute("aria-pressed", String(erasing));
  }

  resize(by) {
    this.size.value = Number(this.size.value) + by;
    this.size.setAttribute("aria-valuetext", `${this.size.value} percent`);
    if (this.pen) this.place(this.at);
  }

  // Pointer -> pixel of the canvas, which CSS scales.
  pixel(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: ((event.clientX - box.left) / box.width) * this.canvas.width, y: ((event.clientY - box.top) / box.height) * this.canvas.height };
  }

  down(event) {
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.remember();
    this.drawing = true;
    this.stroke(this.pixel(event), this.pixel(event));
  }

  move(event) {
    const to = this.pixel(event);
    if (this.drawing) this.stroke(this.at, to);
    else this.place(to);
  }

  up() {
    if (!this.drawing) return;
    this.drawing = false;
    this.tell();
  }

  stroke(from, to) {
    const { pen } = this;
    pen.globalCompositeOperation = "destination-out"; // each stroke replaces: tints never add up
    this.line(from, to);
    if (!this.erasing) {
      pen.globalCompositeOperation = "source-over";
      this.line(from, to);
    }
    this.dirty = true;
    this.place(to);
  }

  line(from, to) {
    const { pen } = this;
    Object.assign(pen, { lineWidth: this.radius * 2, lineCap: "round", strokeStyle: pen.globalCompositeOperation === "source-over" ? TINT : "#000" });
    pen.beginPath();
    pen.moveTo(from.x, from.y);
    pen.lineTo(to.x + 0.01, to.y);
    pen.stroke();
  }

  // Show where the brush is and how large.
  place(to) {
    this.at = to;
    const { style } = this.cursor;
    const percent = (value, of) => `${(100 * value) / of}%`;
    style.left = percent(to.x, this.canvas.width);
    style.top = percent(to.y, this.canvas.height);
    style.width = percent(this.radius * 2, this.canvas.width);
    show(this.cursor, true);
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const act = moves[event.key] ? () => this.moveBy(...moves[event.key], event.shiftKey) : this.keys(event);
    if (!act) return;
    event.preventDefault();
    act();
  }

  keys(event) {
    if (event.key === "z" && (event.ctrlKey || event.metaKey)) return () => this.undo();
    const acts = { " ": () => this.dab(), Enter: () => this.dab(), e: () => this.switchEraser(), "+": () => this.resize(2), "-": () => this.resize(-2) };
    return event.ctrlKey || event.metaKey || event.altKey ? null : acts[event.key.toLowerCase()];
  }

  moveBy(right, down, far) {
    const step = this.radius * (far ? 2 : 0.5);
    const clamp = (value, most) => Math.max(0, Math.min(most, value));
    this.place({ x: clamp(this.at.x + right * step, this.canvas.width), y: clamp(this.at.y + down * step, this.canvas.height) });
    this.say(`Brush at ${Math.round((100 * this.at.x) / this.canvas.width)} percent across, ${Math.round((100 * this.at.y) / this.canvas.height)} percent down.`);
  }

  dab() {
    this.remember();
    this.stroke(this.at, this.at);
    this.tell();
  }

  switchEraser() {
    this.setErasing(!this.erasing);
    this.say(this.erasing ? "Eraser." : "Brush.");
  }

  remember() {
    const { width, height } = this.canvas;
    this.steps.push(this.pen.getImageData(0, 0, width, height));
    if (this.steps.length > 12) this.steps.shift();
  }

  undo() {
    const last = this.steps?.pop();
    if (!last) return;
    this.pen.putImageData(last, 0, 0);
    this.tell();
  }

  clear() {
    this.change(() => false);
  }

  invert() {
    this.change((painted) => !painted);
  }

  change(paintedAfter) {
    this.remember();
    const { width, height } = this.canvas;
    const image = this.pen.getImageData(0, 0, width, height);
    for (let i = 0; i < image.data.length; i += 4) image.data.set([255, 64, 96, paintedAfter(isPainted(image.data[i + 3])) ? 158 : 0], i);
    this.pen.putImageData(image, 0, 0);
    this.dirty = true;
    this.tell();
  }

  // Share of the picture that is painted, 0.0-1.0.
  painted() {
    const { data } = this.pen.getImageData(0, 0, this.canvas.width, this.canvas.height);
    let count = 0;
    for (let i = 3; i < data.length; i += 4) count += isPainted(data[i]);
    return count / (data.length / 4);
  }

  tell() {
    const share = this.painted();
    const percent = share > 0 && share < 0.005 ? "Less than 1" : Math.round(100 * share);
    this.say(percent ? `${percent} % of the picture is painted.` : "Nothing is painted yet.");
  }

  say(text) {
    this.said.textContent = text;
  }

  // A file that was chosen wins over what was painted.
  async finish() {
    if (this.files.length) return this.files;
    if (!this.dirty || !this.painted()) return undefined;
    return [new File([await this.asPng()], "mask.png", { type: "image/png" })];
  }

  asPng() {
    const { width, height } = this.canvas;
    const sheet = h("canvas");
    Object.assign(sheet, { width, height });
    const image = this.pen.getImageData(0, 0, width, height);
    for (let i = 0; i < image.data.length; i += 4) image.data.set(isPainted(image.data[i + 3]) ? [255, 255, 255, 255] : [0, 0, 0, 255], i);
    sheet.getContext("2d").putImageData(image, 0, 0);
    return new Promise((resolve) => sheet.toBlob(resolve, "image/png"));
  }
}

KINDS.mask = Mask;
