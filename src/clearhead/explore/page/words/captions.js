// Titles and captions of heads.

import { roleColour } from "../draw/colours.js";
import { make } from "../draw/elements.js";
import { term } from "../panes/definitions.js";
import { layerName } from "../panes/head_atlas.js";
import { say, sayRole } from "./languages.js";
import { formatNumber } from "../data/tokens.js";

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

/** Role, entropy and effect, as far as they are known. */
export function headFacts(explorer, chosen) {
  const head = explorer.headOf(chosen);
  const facts = [];
  if (head.role) {
    const dot = make("span", { class: "dot" });
    dot.style.backgroundColor = roleColour(head.role, explorer.dark);
    facts.push(make("span", { class: "fact" }, dot, term(`role.${head.role}`, sayRole(head.role))));
  }
  const words = {};
  if (Number.isFinite(head.entropy)) words.entropy = `${say("entropy")} ${formatNumber(head.entropy, 2)} ${say("nats")}`;
  if (Number.isFinite(head.effect)) words.effect = say("effectOn", { effect: `${head.effect < 0 ? "−" : "+"}${Math.abs(head.effect).toFixed(Math.abs(head.effect) < 0.1 ? 3 : 2)}` });
  return [...facts, ...Object.entries(words).map(([key, text]) => make("span", { class: "fact" }, term(key, text)))];
}
