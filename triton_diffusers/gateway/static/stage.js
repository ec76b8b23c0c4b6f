// SPDX-License-Identifier: Apache-2.0
// Where the result appears: its previews and progress while it is made, then itself.

import { byId, h, seconds, show, suffixOf, Urls } from "./dom.js";

const SMALL = 256; // pictures up to this wide are shown pixel by pixel, not blurred
const TELL_EVERY = 0.25; // share of the work between two spoken messages

export class Stage {
  #urls = new Urls();
  #preview = new Urls();
  #clock = null;
  #started = 0;
  #done = 0;
  #total = 0;
  #told = 0;

  start() {
    this.#started = performance.now();
    this.#told = 0;
    this.#total = 0;
    show(byId("progress"), true);
    byId("bar").removeAttribute("value");
    byId("stage").setAttribute("aria-busy", "true");
    byId("stage").classList.add("working");
    this.say("Working…");
    this.#tick();
    this.#clock = setInterval(() => this.#tick(), 100);
  }

  // Seconds since start().
  get elapsed() {
    return (performance.now() - this.#started) / 1000;
  }

  progress(done, total) {
    [this.#done, this.#total] = [done, total];
    Object.assign(byId("bar"), { max: total, value: done });
    this.#tick();
    if (done / total < this.#told + TELL_EVERY || done === total) return;
    this.#told = done / total;
    this.say(this.#step());
  }

  async preview(blob) {
    const image = h("img", { class: "preview", alt: "Preview" });
    const urls = new Urls();
    image.src = urls.of(blob);
    await image.decode().catch(() => {});
    if (!this.#clock) return urls.revoke(); // the result was faster
    this.#preview.revoke();
    this.#preview = urls;
    this.#place([image]);
  }

  stop() {
    clearInterval(this.#clock);
    this.#clock = null;
    show(byId("progress"), false);
    byId("stage").removeAttribute("aria-busy");
    byId("stage").classList.remove("working");
  }

  say(text, failed = false) {
    byId("status").textContent = text;
    byId("status").classList.toggle("failed", failed);
  }

  // actions: { same, fresh, reuse, remove }, called when their buttons are
  show(record, actions) {
    this.#urls.revoke();
    this.#place(record.media.map((blob, place) => this.#figure(record, blob, place)));
    byId("details").replaceChildren(...[facts(record), buttons(record, actions), notes(record)].filter(Boolean));
    show(byId("details"), true);
  }

  clear() {
    this.#urls.revoke();
    byId("media").replaceChildren();
    show(byId("media"), false);
    show(byId("empty"), true);
    show(byId("details"), false);
  }

  #place(elements) {
    byId("media").replaceChildren(...elements);
    byId("media").classList.toggle("several", elements.length > 1);
    show(byId("media"), true);
    show(byId("empty"), false);
  }

  #figure(record, blob, place) {
    const url = this.#urls.of(blob);
    const name = `${record.request.model}-${record.seed ?? "result"}${record.media.length > 1 ? `-${place}` : ""}.${suffixOf(blob)}`.replaceAll("/", "-");
    const download = h("a", { class: "button quiet", href: url, download: name, "aria-label": `Download ${name}` }, "Download");
    return h("figure", {}, shown(record, blob, url), h("figcaption", {}, download));
  }

  #step() {
    const of = this.#total === 100 ? `${this.#done} %` : `Step ${this.#done} of ${this.#total}`;
    return this.#total ? of : "";
  }

  #tick() {
    byId("elapsed").textContent = [this.#step(), seconds(this.elapsed)].filter(Boolean).join(" · ");
  }
}

function shown(record, blob, url) {
  const about = record.request.fields.prompt ?? record.request.model;
  if (blob.type.startsWith("audio/")) return h("audio", { src: url, controls: true, "aria-label": `Sound: ${about}` });
  if (blob.type.startsWith("video/")) return h("video", { src: url, controls: true, loop: true, autoplay: calm() ? null : true, playsinline: true, "aria-label": `Video: ${about}` });
  const image = h("img", { src: url, alt: `Picture: ${about}` });
  image.addEventListener("load", () => image.classList.toggle("pixels", image.naturalWidth <= SMALL));
  return image;
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function facts(record) {
  const rows = [["Seed", record.seed], ["Time", seconds(record.elapsed)], ["Size", record.size?.replace("x", " × ")], ["Model", record.request.model]];
  const known = rows.filter(([, value]) => value != null);
  return h("dl", { class: "facts" }, known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))));
}

function buttons(record, actions) {
  const button = (text, onclick, title) => h("button", { type: "button", class: "button quiet", onclick, title }, text);
  const seeded = record.seed != null;
  return h("div", { class: "actions" },
    seeded && actions.same ? button("Same seed again", actions.same, "Make it with this seed and what the form says now") : null,
    actions.fresh ? button("New seed", actions.fresh, "Make another with what the form says now") : null,
    button("Use these settings", actions.reuse, "Fill the form with what made this"),
    button("Remove", actions.remove, "Remove this from the history"));
}

function notes(record) {
  const stages = Object.entries(record.seconds ?? {}).filter(([, s]) => typeof s === "number");
  const parts = (record.notes ?? []).map((note) => h("li", {}, note));
  if (stages.length) parts.push(h("li", {}, `On the server: ${stages.map(([name, s]) => `${name.replaceAll("_", " ")} ${s.toFixed(3)} s`).join(", ")}`));
  return parts.length ? h("details", { class: "notes", open: Boolean(record.notes?.length) }, h("summary", {}, (record.notes ?? []).length ? `Notes (${record.notes.length}) and times` : "Times"), h("ul", {}, parts)) : null;
}
