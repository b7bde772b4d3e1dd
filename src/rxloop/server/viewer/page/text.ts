// Text of models and tools, made visible: control characters, bidirectional overrides and zero-width characters as codes.

export interface Segment {
  text: string;
  isCode: boolean;
}

const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/u;
const SPLIT = new RegExp(`(${INVISIBLE.source})`, 'u');

/** Split a text into plain segments and marked codes. Lone surrogates become U+FFFD. */
export function toSegments(text: string): Segment[] {
  const whole = toWellFormed(text).replaceAll('\r\n', '\n');
  if (!INVISIBLE.test(whole)) return [{ text: whole, isCode: false }];
  return whole
    .split(SPLIT)
    .filter(Boolean)
    .map(each => (each.length === 1 && INVISIBLE.test(each) ? { text: toCode(each), isCode: true } : { text: each, isCode: false }));
}

/** Return one line with codes in place, for labels and titles. */
export function toLine(text: string): string {
  return toSegments(text).map(each => each.text).join('').replace(/\s+/g, ' ');
}

function toCode(character: string): string {
  const code = character.codePointAt(0)!;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return '␡';
  return `U+${code.toString(16).toUpperCase().padStart(4, '0')}`;
}

function toWellFormed(text: string): string {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, '\ufffd');
}

/** Split an excerpt at its marks, which count code points. */
export function splitMarks(text: string, marks: [number, number][]): { text: string; isMarked: boolean }[] {
  const points = [...text];
  const parts: { text: string; isMarked: boolean }[] = [];
  let at = 0;
  const add = (to: number, isMarked: boolean) => {
    if (to > at) parts.push({ text: points.slice(at, to).join(''), isMarked });
    at = Math.max(at, to);
  };
  for (const [from, to] of marks) {
    add(from, false);
    add(to, true);
  }
  add(points.length, false);
  return parts;
}
