// ServerSource: requests the numbers from the local server of this page.

import { say, sayProblem } from "../words/languages.js";

const GONE = 410; // the status of a request about a record that the server no longer keeps

export class ServerSource {
  constructor(base) {
    this.base = base;
    this.live = true;
    this.about = {};
    this.lost = null; // the problem, if the text that this tab showed before a reload is no longer kept
    this.reading = null; // the AbortController of an input that the model reads
  }

  /** Whether the server can compute every weight of this head. */
  exact(name, head) {
    const attention = this.attentions.find((candidate) => candidate.name === name);
    return Boolean(attention?.heads.find((candidate) => candidate.number === head)?.exact);
  }

  /** By how much numbers are wrong: as float32 they are exact. */
  precision() {
    return 0;
  }

  /** The scene that this tab showed before a reload, else that of the server's start; or another view of the record. */
  async scene(view = null) {
    if (view !== null) return this.keep(await this.json("scene.json", { ...this.about, view }));
    const id = rememberedScene();
    try {
      return this.keep(await this.json("scene.json", id ? { scene: id } : {}));
    } catch (problem) {
      if (problem.status !== GONE) throw problem;
      this.lost = problem;
      return this.keep(await this.json("scene.json", {}));
    }
  }

  /** Later requests of this tab are about this scene, also after a reload; another tab may show another one. */
  keep(scene) {
    this.about = {};
    this.attentions = scene.attentions ?? [];
    if (scene.id !== undefined) this.about.scene = scene.id;
    if (scene.view !== undefined) this.about.view = scene.view;
    rememberScene(scene.id);
    return scene;
  }

  async map(name, head) {
    return this.numbers("map", { name, head });
  }

  async window(name, head, q0, q1, k0, k1, height, width, signal) {
    return this.numbers("window", { name, head, q0, q1, k0, k1, height, width }, signal);
  }

  async row(name, head, query) {
    const row = await this.numbers("row", { name, head, query });
    return { ...row, weights: row.values.length ? row.values : null };
  }

  async column(name, head, key) {
    const column = await this.numbers("column", { name, head, key });
    return { ...column, weights: column.values.length ? column.values : null };
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
  async continueFrom(outputIndex, choice) {
    return this.send("continue", { place: outputIndex, choice, ...this.about });
  }

  /** The scene of that answer. */
  async openContinuation(outputIndex, choice) {
    return this.read("continue", { place: outputIndex, choice, open: true, ...this.about });
  }

  /** What each head does for the loss, by attention; null where that takes too long. */
  async effects() {
    return (await this.json("effects", this.about)).effects;
  }

  async look(text) {
    return this.read("look", { text });
  }

  /** The scene of another input, which replaces the one that is shown. */
  async read(path, body) {
    this.reading = new AbortController();
    try {
      return this.keep(await this.send(path, { ...body, replaces: this.about.scene }, this.reading.signal));
    } catch (problem) {
      throw problem.name === "AbortError" ? new Error(sayProblem("cancelled")) : problem;
    } finally {
      this.reading = null;
    }
  }

  /** Ends the reading of this tab that is under way: the server ends what nobody waits for. */
  cancel() {
    this.reading?.abort();
  }

  async lookAtFile(file) {
    const reader = new FileReader();
    const read = new Promise((resolve, reject) =>
      Object.assign(reader, { onload: resolve, onerror: () => reject(reader.error) }),
    );
    reader.readAsDataURL(file);
    await read;
    return this.read("look", { name: file.name, data: reader.result.slice(reader.result.indexOf(",") + 1) });
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

  async json(path, query) {
    return (await this.ask(`${path}?${new URLSearchParams(query)}`)).json();
  }

  async send(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    return (await this.ask(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
  }

  async ask(path, options = {}) {
    let reply;
    try {
      reply = await fetch(this.base + path, { cache: "no-store", ...options });
    } catch (problem) {
      if (problem.name === "AbortError") throw problem;
      throw new Error(say("noServer"));
    }
    if (!reply.ok) throw Object.assign(new Error(sayProblem(await reasonOf(reply))), { status: reply.status });
    return reply;
  }
}

const SCENE = `clearhead-scene ${location.pathname}`; // of this server alone: each has another path

/** The id of the scene that this tab showed before a reload; null in a new tab. */
function rememberedScene() {
  try {
    return sessionStorage.getItem(SCENE);
  } catch {
    return null; // the browser stores nothing: a reload shows the first text
  }
}

function rememberScene(id) {
  try {
    sessionStorage.setItem(SCENE, id);
  } catch {
    // see above
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
