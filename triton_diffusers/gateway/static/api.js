// SPDX-License-Identifier: Apache-2.0
// Calls of the gateway that served this page, wherever it is mounted.

const KEY = "triton-diffusers.key";

export class ApiError extends Error {
  // error: OpenAI's error object
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.param = error.param ?? null;
    this.code = error.code ?? null;
  }
}

export const urlOf = (path) => new URL(path, document.baseURI).href;

export const key = () => sessionStorage.getItem(KEY);
export const setKey = (value) => sessionStorage.setItem(KEY, value);

// Throws ApiError, and AbortError when `signal` fires.
export async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key()) headers.set("Authorization", `Bearer ${key()}`);
  let response;
  try {
    response = await fetch(urlOf(path), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The gateway does not answer. Is it still running, and are you online?" });
  }
  if (!response.ok) throw new ApiError(response.status, await errorOf(response));
  return response;
}

async function errorOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? { message: text };
  } catch {
    return { message: text || `The gateway answered ${response.status}.` };
  }
}

export async function listModels() {
  return (await (await call("v1/models")).json()).data;
}

// Yields the data of each server-sent event; throws ApiError for an `error` event.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n").trim();
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.type === "error") throw new ApiError(500, event.error);
      yield event;
    }
  }
}
