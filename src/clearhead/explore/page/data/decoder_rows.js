// The names of a decoder's rows: at each place it has read one token and writes the next; rows show one of them.

/** The axes of both, by "written" and "read"; null where there is no choice. */
function namesOf({ axes }, attention) {
  const { reads } = axes[attention.queries];
  const written = Object.values(axes).find((axis) => axis.reads === reads && axis.name !== reads);
  return written && axes[reads] ? { written: written.name, read: reads } : null;
}

/** Names rows as chosen; by default by tokens written in cross-attention, else by tokens read. */
export function nameRows(explorer) {
  for (const attention of explorer.scene.attentions) {
    attention.usual ??= attention.queries;
    attention.queries = namesOf(explorer, attention)?.[explorer.state.rows] ?? attention.usual;
  }
}

/** The current naming of rows, "written" or "read"; null if there is no choice. */
export function currentRows(explorer) {
  const { attention } = explorer;
  return Object.entries(namesOf(explorer, attention) ?? {}).find(([, axis]) => axis === attention.queries)?.[0] ?? null;
}
