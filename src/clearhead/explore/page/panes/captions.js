// Titles and captions of heads.

import { formatNumber } from "../data/number_format.js";
import { roleColour } from "../draw/colours.js";
import { make } from "../draw/elements.js";
import { say, sayRole } from "../words/languages.js";
import { term } from "./definitions.js";

/** "3", or "3#2" for a layer that runs twice. */
export function layerName(attention) {
  const again = attention.name.match(/#\d+$/);
  return `${attention.layer ?? attention.name}${again ? again[0] : ""}`;
}

/** "decoder 3 · cross · head 5" */
export function headTitle(explorer, { name, head }) {
  const attention = explorer.attentionOf(name);
  const part = ["encoder", "decoder"].includes(attention.part) ? say(attention.part) : attention.part || name;
  const kind = ["self", "cross"].includes(attention.kind) ? say(attention.kind) : attention.kind;
  return [`${part} ${layerName(attention)}`, kind, `${say("head")} ${head}`].filter(Boolean).join(" · ");
}

/** "head 5", or "head 3·5" where it is compared with one of another layer. */
export function headName(explorer, { name, head }) {
  const { other } = explorer.state;
  const apart = other && other.name !== explorer.state.name;
  return `${say("head")} ${apart ? `${layerName(explorer.attentionOf(name))}·` : ""}${head}`;
}

/** A dot in the colour of a role. */
export function roleDot(explorer, role) {
  const dot = make("span", { class: "dot" });
  dot.style.backgroundColor = roleColour(role, explorer.look.dark);
  return dot;
}

/** Role, entropy and effect of a head, where they are known. */
export function headFacts(explorer, headId) {
  const { effect, entropy, role } = explorer.headOf(headId);
  const facts = [];
  if (role) facts.push([roleDot(explorer, role), term(`role.${role}`, sayRole(role))]);
  if (Number.isFinite(entropy)) {
    facts.push([term("entropy", `${say("entropy")} ${formatNumber(entropy, 2)} ${say("nats")}`)]);
  }
  if (Number.isFinite(effect)) {
    const size = Math.abs(effect);
    const signed = `${effect < 0 ? "−" : "+"}${size.toFixed(size < 0.1 ? 3 : 2)}`;
    facts.push([term("effect", say("effectOn", { effect: signed }))]);
  }
  return facts.map((parts) => make("span", { class: "fact" }, ...parts));
}

/** The caption of a set of heads: a head with its facts, or what its heads have in common. */
export function captionOf(explorer, heads) {
  const [first] = heads;
  if (heads.length === 1) {
    const title = make("strong", {}, term("head", headTitle(explorer, first)));
    return [title, makeOffMark(explorer), ...headFacts(explorer, first)];
  }
  const role = explorer.state.averaged === "role" ? explorer.headOf(first).role : null;
  const shared = headTitle(explorer, first)
    .split(" · ")
    .slice(role ? 1 : 0, -1);
  const title = make("strong", { text: [...shared, say("meanOf", { count: heads.length })].join(" · ") });
  return role ? [title, make("span", { class: "fact" }, roleDot(explorer, role), sayRole(role))] : [title];
}

/** The mark beside the title of a head that is switched off, or from which a word is hidden. */
function makeOffMark(explorer) {
  const mark = make("span", { class: "off-mark" });
  showOffMark(explorer, mark);
  return mark;
}

function showOffMark(explorer, mark) {
  const { status } = explorer.ablation;
  mark.textContent = status?.mark ?? "";
  mark.hidden = !status;
}

/** Shows in the captions whether the model is whole. */
export function paintOffMarks(explorer) {
  for (const mark of document.querySelectorAll(".off-mark")) showOffMark(explorer, mark);
}
