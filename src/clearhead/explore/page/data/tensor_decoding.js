// Decodes the numbers inside the file: raw deflate as text, integers in byte planes or two to a byte.

/** The bytes of a text: base64, or seven bits a letter. */
function bytesOf(text, coding) {
  if (coding === "seven") return fromSevens(text);
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** Bits in the low seven of every letter, the first bit highest. */
function fromSevens(text) {
  const bytes = new Uint8Array(Math.floor((text.length * 7) / 8));
  let bits = 0;
  let held = 0;
  for (let i = 0, index = 0; index < bytes.length; i++) {
    bits = ((bits << 7) | (text.charCodeAt(i) & 127)) & 0xffff;
    held += 7;
    if (held < 8) continue;
    held -= 8;
    bytes[index++] = bits >> held;
  }
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}

/** Joins byte planes (all low bytes, then the next ones …) into integers. */
function joinPlanes(bytes, planes) {
  if (planes === 1) return bytes;
  const count = bytes.length / planes;
  const numbers = planes === 2 ? new Uint16Array(count) : new Uint32Array(count);
  for (let plane = 0; plane < planes; plane++) {
    const start = plane * count;
    const shift = 8 * plane;
    for (let i = 0; i < count; i++) numbers[i] |= bytes[start + i] << shift;
  }
  return numbers;
}

/** Two numbers a byte, the first in the low bits; numbers from 15 on follow, minus 15, in two byte planes. */
function joinNibbles(bytes, count, rest) {
  const pairs = Math.ceil(count / 2);
  const more = joinPlanes(bytes.subarray(pairs, pairs + 2 * rest), 2);
  const numbers = new Uint16Array(count);
  for (let i = 0, next = 0; i < count; i++) {
    const small = i & 1 ? bytes[i >> 1] >> 4 : bytes[i >> 1] & 15;
    numbers[i] = small === 15 ? 15 + more[next++] : small;
  }
  return numbers;
}

/** Resolves once the element with this id is complete: the page starts before the file has been read to its end. */
export function complete(id) {
  return new Promise((resolve, reject) => {
    const look = () => {
      const element = document.getElementById(id);
      const done = document.readyState !== "loading";
      if (element && (done || element.nextElementSibling)) resolve(element);
      else if (done) reject(new Error(`the file has no block ${id}; write it again with clearhead look`));
      else setTimeout(look, 15);
    };
    look();
  });
}

/** The data blocks of the file, decoded on request and cached. */
export class Blocks {
  constructor(room = 160 * 2 ** 20) {
    this.room = room;
    this.held = 0;
    this.cached = new Map();
  }

  /** The raw numbers of an entry of scene.data. */
  numbers(entry) {
    const cached = this.cached.get(entry.id);
    if (cached) {
      this.cached.delete(entry.id); // the newest stay longest
      this.cached.set(entry.id, cached);
      return cached.promise;
    }
    const block = { promise: this.decode(entry), bytes: 0 };
    this.cached.set(entry.id, block);
    block.promise.then(
      (numbers) => {
        block.bytes = numbers.byteLength;
        this.held += block.bytes;
        this.makeRoom(entry.id);
      },
      () => this.cached.delete(entry.id),
    );
    return block.promise;
  }

  async decode(entry) {
    const element = await complete(entry.id);
    const buffer = await inflate(bytesOf(element.textContent, entry.coding));
    if (entry.type === "float32") return new Float32Array(buffer);
    const bytes = new Uint8Array(buffer);
    if (entry.pack === "nibbles")
      return joinNibbles(
        bytes,
        entry.shape.reduce((product, other) => product * other),
        entry.rest,
      );
    return joinPlanes(bytes, entry.planes ?? 1);
  }

  makeRoom(newest) {
    for (const [id, block] of this.cached) {
      if (this.held <= this.room) return;
      if (id === newest || !block.bytes) continue;
      this.held -= block.bytes;
      this.cached.delete(id);
    }
  }
}

/** A function from raw numbers of an entry to values, for the head at this place. */
export function meaning(entry, headIndex) {
  const levels = entry.levels ?? 1;
  const scale = entry.scale ? entry.scale[headIndex] : 1;
  const odd = [NaN, Infinity, -Infinity];
  return (raw) => (entry.odd && raw > levels ? odd[raw - levels - 1] : (raw / levels) * scale);
}

/** Levels as floats; -0 is hidden, and the three codes after the last level are NaN, infinity and minus infinity. */
export function floatsOf(numbers, entry, hidden) {
  const codes = [NaN, Infinity, -Infinity];
  return Float32Array.from(numbers, (raw, i) =>
    hidden?.[i] ? -0 : entry.odd && raw > entry.levels ? codes[raw - entry.levels - 1] : raw,
  );
}
