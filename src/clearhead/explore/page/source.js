// Where the numbers come from: the file itself, or the local server. Both answer the same questions.

import { FileSource } from "./filesource.js";
import { ServerSource } from "./serversource.js";

/** The scene and its source: what the file holds, else what the server tells. */
export async function openSource() {
  const element = document.getElementById("scene");
  if (element && element.textContent.trim()) {
    const scene = checkedScene(JSON.parse(element.textContent));
    return { scene, source: new FileSource(scene) };
  }
  const source = new ServerSource("");
  return { scene: checkedScene(await source.scene()), source };
}

/** Refuses what this page cannot show, in words. */
export function checkedScene(scene) {
  if (scene.format !== 1) {
    throw new Error(`this page reads scenes of format 1, not ${scene.format}; write the file again with clearhead look`);
  }
  if (!scene.attentions?.length) throw new Error("the record holds no attention: nothing was watched");
  return scene;
}
