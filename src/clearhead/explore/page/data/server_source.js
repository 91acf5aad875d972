// ServerSource: requests the numbers from the local server of this page.

import { say, sayProblem } from "../words/languages.js";

export class ServerSource {
  constructor(base) {
    this.base = base;
    this.live = true;
    this.about = {};
  }

  /** Whether the server can compute every weight of this head. */
  exact(name, head) {
    const attention = this.attentions.find((one) => one.name === name);
    return Boolean(attention?.heads.find((one) => one.number === head)?.exact);
  }

  /** By how much numbers are wrong: as float32 they are exact. */
  precision() {
    return 0;
  }

  /** The newest scene, or one of the other views of the record. */
  async scene(view = null) {
    const query = view === null ? "" : `?${new URLSearchParams({ ...this.about, view })}`;
    return this.keep(await (await this.ask(`scene.json${query}`)).json());
  }

  /** Later requests are about this scene; another tab may show another one. */
  keep(scene) {
    this.about = {};
    this.attentions = scene.attentions ?? [];
    if (scene.id !== undefined) this.about.scene = scene.id;
    if (scene.view !== undefined) this.about.view = scene.view;
    return scene;
  }

  async map(name, head) {
    return this.numbers("map", { name, head });
  }

  async window(name, head, q0, q1, k0, k1, height, width, signal) {
    return this.numbers("window", { name, head, q0, q1, k0, k1, height, width }, signal);
  }

  async row(name, head, query) {
    const found = await this.numbers("row", { name, head, query });
    return { ...found, weights: found.values.length ? found.values : null };
  }

  async column(name, head, key) {
    const found = await this.numbers("column", { name, head, key });
    return { ...found, weights: found.values.length ? found.values : null };
  }

  async thumbs(name) {
    const { header, bytes } = await this.binary("thumbs", { name });
    return { size: header.size, values: bytes };
  }

  async tops() {
    return null;
  }

  /** The answer without these heads, and without these tokens: {source: [3, 4]}. */
  async ablate(off, hide = {}) {
    return this.send("ablate", { off, hide, ...this.about });
  }

  /** The answer that goes on from another token at a place: one of those that are listed there. */
  async continueFrom(place, choice) {
    return this.send("continue", { place, choice, ...this.about });
  }

  /** The scene of that answer. */
  async openContinuation(place, choice) {
    return this.keep(await this.send("continue", { place, choice, open: true, ...this.about }));
  }

  /** What each head does for the loss, by attention; null where that takes too long. */
  async effects() {
    return (await (await this.ask(`effects?${new URLSearchParams(this.about)}`)).json()).effects;
  }

  async look(text) {
    return this.keep(await this.send("look", { text }));
  }

  /** Ends the reading of a text that is under way. */
  async cancel() {
    return this.send("cancel", {});
  }

  async lookAtFile(file) {
    const reader = new FileReader();
    const read = new Promise((resolve, reject) => Object.assign(reader, { onload: resolve, onerror: () => reject(reader.error) }));
    reader.readAsDataURL(file);
    await read;
    return this.keep(await this.send("look", { name: file.name, data: reader.result.slice(reader.result.indexOf(",") + 1) }));
  }

  async numbers(path, query, signal) {
    const { header, bytes } = await this.binary(path, query, signal);
    const copy = bytes.slice(0, bytes.length - (bytes.length % 4)); // aligned
    return { ...header, values: new Float32Array(copy.buffer) };
  }

  /** A header of JSON in the first line, then bytes. */
  async binary(path, query, signal) {
    const reply = await this.ask(`${path}?${new URLSearchParams({ ...query, ...this.about })}`, { signal });
    const bytes = new Uint8Array(await reply.arrayBuffer());
    const end = bytes.indexOf(10);
    return { header: JSON.parse(new TextDecoder().decode(bytes.subarray(0, end))), bytes: bytes.subarray(end + 1) };
  }

  async send(path, body) {
    const headers = { "Content-Type": "application/json" };
    return (await this.ask(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
  }

  async ask(path, options = {}) {
    let reply;
    try {
      reply = await fetch(this.base + path, { cache: "no-store", ...options });
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new Error(say("noServer"));
    }
    if (!reply.ok) throw new Error(sayProblem(await reasonOf(reply)));
    return reply;
  }
}

async function reasonOf(reply) {
  const text = await reply.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text.slice(0, 300) || `the server answered ${reply.status}`;
  }
}
