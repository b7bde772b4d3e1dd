// Shortened documents: the ends of long texts, pictures, lists and objects are not loaded.

/** What is missing in a value. */
export interface Omission {
  characters: number;
  values: number;
  /** Missing values of this list or object itself. */
  own: number;
}

/** Key of the omitted values in the metadata of an event. */
export const OMITTED = 'rxloop.omitted';

const MIN_VALUES = 10;
const MIN_FIELDS = 100;
const WHOLE_LISTS = new Set(['messages', 'calls', 'pending', 'toolCalls', 'goals', 'parts', 'tools', 'leftOut']);

/** Shorten the long values of a document, like the server. The second result counts what is missing, by JSON Pointers. */
export function shorten<T extends object>(document: T, limit: number): [short: T, omitted: Record<string, number>] {
  const omitted: Record<string, number> = {};
  const shortenText = (text: string, pointer: string, isData: boolean): string => {
    const start = /^data:[^,]{0,200};base64,/i.exec(text)?.[0].length ?? 0;
    const isBinary = start > 0 || (isData && /^[\w+/-]+={0,2}$/.test(text));
    const kept = isBinary ? text.slice(0, start + limit - (limit % 4)) : cut(text, limit);
    if (kept.length === text.length) return text;
    omitted[pointer] = text.length - kept.length;
    return isBinary ? kept : `${kept}…`;
  };
  const shortenValue = (value: unknown, pointer: string, depth: number, isData: boolean): [unknown, number] => {
    if (typeof value === 'string') {
      const text = value.length > limit ? shortenText(value, pointer, isData) : value;
      return [text, text.length];
    }
    if (value === null || typeof value !== 'object') return [value, String(value).length];
    const isList = Array.isArray(value);
    const least = !isList ? MIN_FIELDS : depth === 1 && WHOLE_LISTS.has(pointer.slice(1)) ? Infinity : MIN_VALUES;
    const entries = Object.entries(value);
    const kept: [string, unknown][] = [];
    let size = 0;
    for (const [name, each] of entries) {
      if (size > limit && kept.length >= least) {
        omitted[pointer] = entries.length - kept.length;
        break;
      }
      const [short, length] = shortenValue(each, `${pointer}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`, depth + 1, name === 'data');
      kept.push([name, short]);
      size += name.length + length;
    }
    return [isList ? kept.map(([, each]) => each) : Object.fromEntries(kept), size];
  };
  return [shortenValue(document, '', 0, false)[0] as T, omitted];
}

/** Cut a string without splitting a character. */
export function cut(text: string, length: number): string {
  const isSplit = /[\ud800-\udbff]/.test(text[length - 1] ?? '');
  return text.slice(0, isSplit ? length - 1 : length);
}

const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null;

const omissions = new WeakMap<object, Omission>();

/** Return what is missing in a part of a document, or undefined if the part is complete. */
export const omissionOf = (value: unknown): Omission | undefined => omissions.get(value as object);

/** Remember what is missing in each part of a document. */
export function noteOmissions<T extends object>(document: T, omitted?: Record<string, number> | null): T {
  for (const [pointer, count] of Object.entries(omitted ?? {})) {
    let value: unknown = document;
    const parts: object[] = [];
    for (const name of pointer.split('/').slice(1)) {
      if (isObject(value)) parts.push(value);
      value = isObject(value) ? (value as Record<string, unknown>)[name.replaceAll('~1', '/').replaceAll('~0', '~')] : undefined;
    }
    const isText = typeof value === 'string';
    // The metadata of an event of an imported run can contain anything.
    if (typeof count !== 'number' || !(isText || isObject(value))) continue;
    if (isObject(value)) parts.push(value);
    for (const part of parts) {
      const { characters, values, own } = omissions.get(part) ?? { characters: 0, values: 0, own: 0 };
      omissions.set(part, isText ? { characters: characters + count, values, own } : { characters, values: values + count, own: part === value ? count : own });
    }
  }
  return document;
}
