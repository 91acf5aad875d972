// What is too small, too pale, without a name, or a heading out of order: a list of problems. For test_page_access.py.
() => {
  const problems = [];
  const shown = (one) => one.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !one.closest(".unseen, .skip");
  const name = (one) => `${one.tagName}#${one.id}.${one.className?.baseVal ?? one.className} ${one.textContent.slice(0, 30)}`;
  const inside = (one) => {  // and not scrolled away
    const box = one.getBoundingClientRect();
    for (let up = one.parentElement; up && up !== document.body; up = up.parentElement) {
      const frame = up.getBoundingClientRect();
      const [across, down] = [box.x + box.width / 2, box.y + box.height / 2];
      const { overflowX, overflowY } = getComputedStyle(up);
      if (overflowY !== "visible" && (down < frame.top || down > frame.bottom)) return false;
      if (overflowX !== "visible" && (across < frame.left || across > frame.right)) return false;
    }
    return true;
  };
  const scope = document.querySelector("dialog[open]") ?? document.body;
  let level = 0;
  for (const heading of scope.querySelectorAll("h1, h2, h3, h4")) {
    if (!shown(heading)) continue;
    const next = Number(heading.tagName[1]);
    if (level && next > level + 1) problems.push(`heading ${name(heading)} after h${level}`);
    level = next;
  }
  const targets = [...scope.querySelectorAll("button, a[href], input, select, [tabindex='0']")].filter((one) => shown(one) && inside(one));
  const boxes = targets.map((one) => one.getBoundingClientRect());
  const middle = (box) => [box.x + box.width / 2, box.y + box.height / 2];
  targets.forEach((one, i) => {
    const named = one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.[0]?.textContent.trim();
    if (!named) problems.push(`no name: ${name(one)}`);
    if (Math.min(boxes[i].width, boxes[i].height) >= 23.9) return;
    const [x, y] = middle(boxes[i]);
    const close = boxes.some((box, k) => k !== i && Math.hypot(middle(box)[0] - x, middle(box)[1] - y) < 23.9);
    if (close) problems.push(`target of ${boxes[i].width} × ${boxes[i].height}: ${name(one)}`);
  });
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const rgba = (css) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = css;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const texts = document.createTreeWalker(scope, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const one = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !shown(one) || ["SCRIPT", "STYLE", "OPTION"].includes(one.tagName)) continue;
    const chain = [];
    for (let up = one; up; up = up.parentElement) chain.push(up);
    let ground = [255, 255, 255];
    let alpha = 1;
    for (const up of chain.reverse()) {
      const style = getComputedStyle(up);
      ground = over(rgba(style.backgroundColor), ground);
      alpha *= Number(style.opacity);
    }
    const style = getComputedStyle(one);
    const ink = rgba(one.closest("svg") ? style.fill : style.color);
    const seen = over([...ink.slice(0, 3), ink[3] * alpha], ground);
    const [low, high] = [light(seen), light(ground)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) problems.push(`contrast ${ratio.toFixed(2)}: ${name(one)}`);
  }
  return [...new Set(problems)];
}
