// SPDX-License-Identifier: Apache-2.0
// Sending a request and following it: { media: [Blob], seed, seconds, notes, size }
//
// watch: { onProgress(done, total), onPreview(blob), signal }. Aborting stops the model.

import { ApiError, call, eventsOf } from "./api.js";
import { encode } from "./request.js";

const POLL_MS = 700;
const PREVIEWS = 3;

export function make(request, streams, watch) {
  if (request.makes === "video") return makeVideo(request, watch);
  if (request.makes === "audio") return makeAudio(request, watch);
  return streams ? streamImages(request, watch) : makeImages(request, watch);
}

const post = (request, signal, more) => call(request.path, { method: "POST", signal, ...encode(request, more) });

async function makeImages(request, { signal }) {
  const told = await (await post(request, signal)).json();
  return { ...told, media: told.data.map((part) => toBlob(part.b64_json, told.output_format)) };
}

async function streamImages(request, { onProgress, onPreview, signal }) {
  const response = await post(request, signal, { stream: true, stream_progress: true, partial_images: PREVIEWS });
  const media = [];
  let last = null;
  for await (const event of eventsOf(response)) {
    const kind = event.type.split(".").pop();
    if (kind === "progress") onProgress(event.step, event.total);
    if (kind === "partial_image") onPreview(toBlob(event.b64_json, event.output_format));
    if (kind !== "completed") continue;
    last = event;
    media.push(toBlob(event.b64_json, event.output_format));
  }
  if (!last) throw new ApiError(502, { message: "The gateway ended the answer before the picture came." });
  return { ...last, media };
}

async function makeAudio(request, { signal }) {
  const response = await post(request, signal);
  const told = (name) => response.headers.get(`x-${name}`);
  return { media: [await response.blob()], seed: told("seed") == null ? null : Number(told("seed")), notes: listed(told("notes")) };
}

function listed(text) {
  if (!text) return [];
  try {
    return [JSON.parse(text)].flat();
  } catch {
    return [text];
  }
}

async function makeVideo(request, { onProgress, signal }) {
  let job = await (await post(request, signal)).json();
  const path = `v1/videos/${job.id}`;
  try {
    while (job.status === "queued" || job.status === "in_progress") {
      await sleep(POLL_MS, signal);
      job = await (await call(path, { signal })).json();
      if (job.progress) onProgress(job.progress, 100);
    }
    if (job.status === "failed") throw new ApiError(400, job.error ?? { message: "The video failed." });
    const response = await call(`${path}/content`, { signal });
    return { ...job, seconds: null, media: [await response.blob()] }; // a job's seconds are the video's
  } catch (error) {
    if (error.name === "AbortError") await call(path, { method: "DELETE" }).catch(() => {}); // it may have ended
    throw error;
  }
}

function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}

function toBlob(base64, format) {
  return new Blob([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], { type: `image/${format}` });
}
