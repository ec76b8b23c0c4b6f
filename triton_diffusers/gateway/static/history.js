// SPDX-License-Identifier: Apache-2.0
// What was made in this browser, newest first: kept in IndexedDB, bounded, gone when cleared.
//
// A record: { id, at, request, media: [Blob], seed, elapsed, seconds, notes, size }

const MOST_RECORDS = 60;
const MOST_BYTES = 200 * 2 ** 20;
const STORE = "made";

export class History {
  #database = null;
  records = [];

  // Without IndexedDB (a private window, say) the history lasts as long as the tab.
  async open() {
    try {
      this.#database = await opened();
      this.records = (await this.#run("readonly", (store) => store.getAll())).reverse();
    } catch {
      this.#database = null;
    }
  }

  async add(record) {
    const kept = { ...record };
    if (this.#database) kept.id = await this.#run("readwrite", (store) => store.add(record)).catch(() => undefined);
    kept.id ??= `tab-${crypto.randomUUID?.() ?? Math.random()}`;
    this.records.unshift(kept);
    await this.#trim();
    return kept;
  }

  async remove(record) {
    this.records = this.records.filter((other) => other !== record);
    if (this.#database && typeof record.id === "number") await this.#run("readwrite", (store) => store.delete(record.id)).catch(() => {});
  }

  async clear() {
    this.records = [];
    if (this.#database) await this.#run("readwrite", (store) => store.clear()).catch(() => {});
  }

  async #trim() {
    let bytes = 0;
    const beyond = this.records.filter((record, place) => {
      bytes += sizeOf(record);
      return place > 0 && (place >= MOST_RECORDS || bytes > MOST_BYTES);
    });
    for (const record of beyond) await this.remove(record);
  }

  #run(mode, act) {
    return settled(act(this.#database.transaction(STORE, mode).objectStore(STORE)));
  }
}

function opened() {
  const asked = indexedDB.open("triton-diffusers", 1);
  asked.onupgradeneeded = () => asked.result.createObjectStore(STORE, { keyPath: "id", autoIncrement: true });
  return settled(asked);
}

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

const sizeOf = (record) => [...record.media, ...record.request.files.map(([, file]) => file)].reduce((sum, blob) => sum + blob.size, 0);
