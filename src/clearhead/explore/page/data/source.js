// Opens the source of the numbers: the file itself, or the local server. Both have the same methods.

import { say } from "../words/languages.js";
import { FileSource } from "./file_source.js";
import { ServerSource } from "./server_source.js";

/** The first scene and its source: from the file, else from the server. */
export async function openSource() {
  const element = document.getElementById("scene");
  if (!element?.textContent.trim()) {
    const source = new ServerSource("");
    return { scene: checkScene(await source.scene()), source };
  }
  const scene = checkScene(JSON.parse(element.textContent));
  return { scene, source: new FileSource(scene) };
}

/** Throws an error if this page cannot show the scene. */
export function checkScene(scene) {
  if (scene.format !== 1) throw new Error(say("otherFormat", { format: scene.format }));
  if (!scene.attentions?.length) throw new Error(say("noAttention"));
  return scene;
}
