// Answers to the questions of a run: forms made from JSON schemas, and the values that readers write into them.

export type Schema = Record<string, any>;

/** A question of a run, as sent by `GET /runs/{id}`. */
export type { PendingInput as Question } from './http_api.d.ts';

export type FieldKind = 'text' | 'number' | 'boolean' | 'choice' | 'list' | 'object' | 'json';

/** A field of a form. */
export interface Field {
  kind: FieldKind;
  /** Name of the property, or an empty string. */
  name: string;
  title: string;
  hint: string;
  isRequired: boolean;
  isNullable: boolean;
  /** Values of a choice. */
  options: unknown[];
  /** Field of each item of a list. */
  item: Field | null;
  /** Fields of the properties of an object. */
  fields: Field[];
  schema: Schema;
}

/** What the reader has written. Objects have one draft for each of their fields. */
export type Draft = string | boolean | Draft[];

export interface Reading {
  /** Value of the answer. Undefined if the property is left out. */
  value: unknown;
  /** Messages by the path of the field, such as `guests[0].age`. */
  errors: Map<string, string>;
}

const MAX_DEPTH = 6;

/** Make a form. Schemas that it cannot show, such as alternatives, become a field with JSON. */
export function makeField(schema: unknown, root: Schema = (schema ?? {}) as Schema, name = '', isRequired = true, depth = 0): Field {
  const { inner, isNullable } = simplify(schema, root);
  const field: Field = {
    kind: 'json', name, title: textOr(inner.title, name), hint: textOr(inner.description, ''), isRequired, isNullable, options: [], item: null, fields: [], schema: inner,
  };
  if (depth > MAX_DEPTH) return field;
  if ('const' in inner) return { ...field, kind: 'choice', options: [inner.const] };
  if (Array.isArray(inner.enum)) return { ...field, kind: 'choice', options: inner.enum };
  switch (inner.type) {
    case 'string': return { ...field, kind: 'text' };
    case 'integer':
    case 'number': return { ...field, kind: 'number' };
    case 'boolean': return { ...field, kind: 'boolean' };
    case 'array':
      return isObject(inner.items) && !inner.prefixItems ? { ...field, kind: 'list', item: makeField(inner.items, root, '', true, depth + 1) } : field;
    case 'object': {
      if (!isObject(inner.properties) || isObject(inner.additionalProperties)) return field;
      const required: unknown[] = Array.isArray(inner.required) ? inner.required : [];
      const fields = Object.entries(inner.properties).map(([each, part]) => makeField(part, root, each, required.includes(each), depth + 1));
      return { ...field, kind: 'object', fields };
    }
    default: return field;
  }
}

/** Resolve references, and replace a type that also allows null. */
function simplify(schema: unknown, root: Schema): { inner: Schema; isNullable: boolean } {
  let inner: Schema = isObject(schema) ? schema : {};
  let isNullable = false;
  for (let k = 0; k < 10; k++) {
    const { $ref, anyOf, oneOf, allOf, ...rest } = inner;
    const options = Array.isArray(anyOf) ? anyOf : Array.isArray(oneOf) ? oneOf : null;
    if (typeof $ref === 'string') {
      const target = resolve($ref, root);
      if (!target) return { inner: {}, isNullable };
      inner = { ...target, ...rest };
    } else if (options) {
      const others = options.filter(each => each?.type !== 'null');
      if (others.length !== 1 || allOf) return { inner, isNullable };
      isNullable ||= others.length < options.length;
      inner = { ...others[0], ...rest };
    } else if (Array.isArray(allOf) && allOf.length === 1) inner = { ...allOf[0], ...rest };
    else if (Array.isArray(inner.type)) {
      const types = inner.type.filter((each: unknown) => each !== 'null');
      if (types.length !== 1) return { inner, isNullable };
      isNullable ||= types.length < inner.type.length;
      inner = { ...inner, type: types[0] };
    } else break;
  }
  return { inner, isNullable };
}

function resolve(reference: string, root: Schema): Schema | null {
  let target: any = root;
  for (const step of reference.replace(/^#\/?/, '').split('/').filter(Boolean)) {
    const name = decodeURIComponent(step).replaceAll('~1', '/').replaceAll('~0', '~');
    if (!isObject(target) && !Array.isArray(target)) return null;
    target = Object.hasOwn(target, name) ? (target as any)[name] : undefined;
  }
  return isObject(target) ? target : null;
}

/** Return what a form shows at first: the default values of the schema, or nothing. */
export function makeDraft(field: Field, value: unknown = field.schema.default): Draft {
  switch (field.kind) {
    case 'object': return field.fields.map(each => makeDraft(each, isObject(value) && Object.hasOwn(value, each.name) ? value[each.name] : undefined));
    case 'list': return Array.isArray(value) ? value.map(each => makeDraft(field.item!, each)) : [];
    case 'text': return typeof value === 'string' ? value : '';
    case 'number': return typeof value === 'number' ? String(value) : '';
    case 'boolean': return typeof value === 'boolean' ? String(value) : '';
    case 'choice': {
      const index = field.options.findIndex(each => value !== undefined && JSON.stringify(each) === JSON.stringify(value));
      return index >= 0 ? String(index) : '';
    }
    case 'json': return value === undefined ? '' : JSON.stringify(value, null, 2);
  }
}

/** Read the value of a form. The server checks it against the schema. */
export function readDraft(field: Field, draft: Draft, path = ''): Reading {
  const errors = new Map<string, string>();
  const fail = (text: string): Reading => ({ value: undefined, errors: errors.set(path, text) });
  const isLeftOut = draft === '' || (Array.isArray(draft) && field.kind === 'object' && !field.isRequired && isUntouched(field, draft));
  if (isLeftOut && field.isNullable) return { value: null, errors };
  if (isLeftOut && !field.isRequired) return { value: undefined, errors };
  switch (field.kind) {
    case 'text': return { value: draft, errors };
    case 'number': {
      const text = String(draft).trim();
      const value = Number(text);
      if (text === '') return fail('enter a number');
      if (!Number.isFinite(value)) return fail('must be a number');
      if (Number.isInteger(value) && !Number.isSafeInteger(value)) return fail('has too many digits for this page');
      return { value, errors };
    }
    case 'boolean': return draft === '' ? fail('choose yes or no') : { value: draft === 'true', errors };
    case 'choice': return draft === '' ? fail('choose a value') : { value: field.options[Number(draft)], errors };
    case 'json': return readJson(String(draft), path);
    case 'list':
    case 'object': {
      const parts = (draft as Draft[]).map((each, k) => {
        const part = field.kind === 'list' ? readDraft(field.item!, each, `${path}[${k}]`) : readDraft(field.fields[k], each, join(path, field.fields[k].name));
        for (const [name, text] of part.errors) errors.set(name, text);
        return part.value;
      });
      if (field.kind === 'list') return { value: parts, errors };
      return { value: Object.fromEntries(parts.map((each, k) => [field.fields[k].name, each] as const).filter(([, each]) => each !== undefined)), errors };
    }
  }
}

/** Read JSON that the reader has written. */
export function readJson(text: string, path = ''): Reading {
  try {
    return { value: JSON.parse(text), errors: new Map() };
  } catch (error) {
    const message = text.trim() === '' ? 'enter a JSON value' : `is not JSON: ${(error as Error).message}`;
    return { value: undefined, errors: new Map([[path, message]]) };
  }
}

function isUntouched(field: Field, draft: Draft): boolean {
  return JSON.stringify(draft) === JSON.stringify(makeDraft(field, undefined));
}

/** Return the path of the field that a message of the server names, such as `guests[0].age must be at least 0, got -1`. */
export function locate(field: Field, draft: Draft, message: string): string {
  const text = message.replace(/^the length of /, '');
  const paths = listPaths(field, draft, '').sort((x, y) => y.length - x.length);
  const missing = /^(.*?) ?must have '([^']+)'/.exec(text);
  if (missing) {
    const path = join(missing[1] === 'the value' ? '' : missing[1], missing[2]);
    if (paths.includes(path)) return path;
  }
  return paths.find(path => path && text.startsWith(`${path} `)) ?? '';
}

function listPaths(field: Field, draft: Draft, path: string): string[] {
  if (!Array.isArray(draft)) return [path];
  const parts = draft.flatMap((each, k) => (field.kind === 'list' ? listPaths(field.item!, each, `${path}[${k}]`) : listPaths(field.fields[k], each, join(path, field.fields[k].name))));
  return [path, ...parts];
}

/** Path of a property. */
export const join = (path: string, name: string): string => (path ? `${path}.${name}` : name);

/** Replace a part of a draft. */
export function replaceAt<T>(list: T[], index: number, value: T): T[] {
  return list.map((each, k) => (k === index ? value : each));
}

/** Label of an option. */
export const toLabel = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value) ?? '');

/** Host of a sign-in page, or null if it is not a web address. */
export function hostOf(url: string): string | null {
  try {
    const parsed = new URL(url);
    return parsed.protocol === 'https:' || parsed.protocol === 'http:' ? parsed.host : null;
  } catch {
    return null;
  }
}

interface Refusal {
  status: number;
  code: string;
  message: string;
}

/** Explain why the server refused an action. */
export function explain(error: Refusal): string {
  if (error.code === 'not_waiting') return 'Somebody else answered this question, or the run no longer waits for it.';
  if (error.code === 'run_over') return 'The run is over.';
  if (error.code === 'context_busy') return 'Another run of the conversation is active. Try again after its end.';
  if (error.status === 409) return 'The run has changed in the meantime.';
  if (error.status === 403) return `You may not do this: ${error.message}.`;
  if (error.status === 0) return 'The server cannot be reached. Nothing was sent.';
  return `The server refused this: ${error.message}.`;
}

function isObject(value: unknown): value is Record<string, any> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function textOr(value: unknown, other: string): string {
  return typeof value === 'string' ? value : other;
}
