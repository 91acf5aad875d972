// The colours and fonts of the page, for what is drawn on canvases; style.css has the only list of them.

/** What the style sheet says now. */
export function lookOf() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const family = colour("sans") || "sans-serif";
  return {
    ink: colour("ink"), soft: colour("soft"), line: colour("line"), accent: colour("accent"), second: colour("second"),
    paper: colour("paper"), hidden: colour("hidden"), beam: colour("beam"), word: colour("word"), family,
    font: `13px ${family}`, strongFont: `600 13px ${family}`, smallFont: `11px ${family}`, tinyFont: `10px ${family}`,
  };
}
