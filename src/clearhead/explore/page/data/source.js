// Opens the source of the numbers: the file itself, or the local server. Both have the same methods.

import { FileSource } from "./file_source.js";
import { say } from "../words/languages.js";
import { ServerSource } from "./server_source.js";
import { partOf } from "../state/store.js";

/** The scene and its source: from the file, else from the server; the part that the address names. */
export async function openSource(fragment) {
  const element = document.getElementById("scene");
  const inside = element?.textContent.trim() ? checkScene(JSON.parse(element.textContent)) : null;
  const source = inside ? new FileSource(inside) : new ServerSource("");
  const scene = inside ?? checkScene(await source.scene());
  const part = partOf(fragment, scene);
  return { scene: part === (scene.view ?? 0) ? scene : checkScene(await source.scene(part)), source };
}

/** Throws an error if this page cannot show the scene. */
export function checkScene(scene) {
  if (scene.format !== 1) {
    throw new Error(say("otherFormat", { format: scene.format }));
  }
  if (!scene.attentions?.length) throw new Error(say("noAttention"));
  return scene;
}
