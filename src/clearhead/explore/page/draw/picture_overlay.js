// A picture or spectrogram with the attention of its patches over it.

const VEIL = 0.66; // how far what nobody looks at fades
const EDGE = 0.25; // shade from which on a patch has an edge
const TINT = 0.82; // how strongly the loudest frame of a sound is coloured

/**
 * Draws a picture into a box at the origin. Patches that are looked at keep their colours, the rest is grey and pale;
 * a sound, which has no colours, is tinted instead.
 */
export function paintOverlay(context, { image, axis, width, height, scale, look, shown }) {
  const sound = axis.kind === "audio";
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = sound || width < image.naturalWidth;
  context.imageSmoothingQuality = "high";
  context.filter = sound ? soundFilter(look) : shown.shade ? "grayscale(1)" : "none";
  context.drawImage(image, 0, 0, width, height);
  context.filter = "none";
  const [rows, columns] = axis.grid;
  const [high, wide] = [height / rows, width / columns];
  const boxOf = (position) => {
    const patch = position - axis.firstPatch;
    return [(patch % columns) * wide, Math.floor(patch / columns) * high];
  };
  if (shown.shade) {
    context.fillStyle = sound ? look.paper : look.veil;
    context.globalAlpha = sound ? 0.3 : VEIL;
    context.fillRect(0, 0, width, height);
    for (let position = axis.firstPatch; position < axis.length; position++) {
      const shade = shown.shade(position);
      if (shade > 0.01)
        paintPatch(context, {
          image,
          sound,
          shade,
          scale,
          box: [...boxOf(position), wide, high],
          size: [width, height],
        });
    }
    context.globalAlpha = 1;
  }
  const frame = (position, colour, thick) => {
    if (position === null || position < axis.firstPatch || position >= axis.length) return;
    const [x, y] = boxOf(position);
    context.lineWidth = thick;
    context.strokeStyle = colour;
    context.strokeRect(x + thick / 2, y + thick / 2, wide - thick, high - thick);
    if (sound || Math.min(wide, high) < 6 * thick) return;
    context.lineWidth = 1; // a pale line inside, for patches that have the colour of the frame
    context.strokeStyle = look.paper;
    context.strokeRect(x + thick + 0.5, y + thick + 0.5, wide - 2 * thick - 1, high - 2 * thick - 1);
  };
  for (const position of shown.pinned) frame(position, look.accent, 2.5);
  frame(shown.current, look.accent, 2);
  frame(shown.cursor, look.ink, 2);
}

/** Loud is dark ink on light paper, and light on dark. */
export function soundFilter(look) {
  return look.dark ? "none" : "invert(1)";
}

/** One patch: its part of the picture in full colours, with an edge; of a sound, a tint. */
function paintPatch(context, { image, sound, shade, scale, box, size }) {
  const [x, y, wide, high] = box;
  if (sound) {
    context.globalAlpha = TINT * Math.sqrt(shade);
    context.fillStyle = scale.css(0.35 + 0.6 * shade);
    context.fillRect(x, y, wide + 0.3, high + 0.3);
    return;
  }
  const [width, height] = size;
  const [across, down] = [image.naturalWidth / width, image.naturalHeight / height];
  context.globalAlpha = Math.min(1, shade ** 0.6);
  context.drawImage(image, x * across, y * down, wide * across, high * down, x, y, wide, high);
  if (shade <= EDGE) return;
  const thick = Math.min(3, wide / 10);
  context.globalAlpha = (shade - EDGE) / (1 - EDGE);
  context.lineWidth = thick;
  context.strokeStyle = scale.css(0.3 + 0.65 * shade);
  context.strokeRect(x + thick / 2, y + thick / 2, wide - thick, high - thick);
}
