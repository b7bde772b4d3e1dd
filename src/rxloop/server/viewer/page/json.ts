// Parts of the JSON tree without a document: long strings, embedded JSON, base64 and paths.

/** Number of characters from which strings are folded. */
export const FOLD = 600;
/** Number of elements that the tree shows of an array at first, and adds for each window. */
export const WINDOW = 100;
const MIN_BASE64 = 2_000;
const MAX_EMBEDDED = 1_000_000;

export interface Bytes {
  /** Media type of a data URL, or an empty string. */
  mediaType: string;
  size: number;
  /** Base64 text. */
  data: string;
}

/** Return the base64 data of a string, or null if it is short or something else. */
export function findBytes(text: string): Bytes | null {
  if (text.length < MIN_BASE64) return null;
  const url = /^data:([\w.+-]+\/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,/.exec(text.slice(0, 200));
  const data = url ? text.slice(url[0].length) : text;
  if (data.length < MIN_BASE64 || !/^[A-Za-z0-9+/_-]+={0,2}$/.test(data)) return null;
  // Base64 of 2 kB contains digits and both cases. Words and hexadecimal numbers do not.
  if (!url && !(/[0-9]/.test(data) && /[A-Z]/.test(data) && /[g-z]/.test(data))) return null;
  const padding = data.endsWith('==') ? 2 : data.endsWith('=') ? 1 : 0;
  return { mediaType: url?.[1] ?? '', size: Math.floor((data.length * 3) / 4) - padding, data };
}

/** Return the object or array that a string encodes, or undefined. */
export function parseEmbedded(text: string): object | undefined {
  const first = text.trimStart()[0];
  if ((first !== '{' && first !== '[') || text.length > MAX_EMBEDDED) return undefined;
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Return the path of a value in the syntax of JavaScript and jq, such as `.parts[2].text`. */
export function formatPath(path: readonly (string | number)[]): string {
  const text = path.map(each => (typeof each === 'number' ? `[${each}]` : /^[A-Za-z_]\w*$/.test(each) ? `.${each}` : `[${JSON.stringify(each)}]`)).join('');
  return text.startsWith('.') ? text : `.${text}`;
}

/** Return the text of a value for the clipboard. */
export function toText(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2) ?? '';
}
