import assert from 'node:assert/strict';
import { test } from 'node:test';
import { explain, hostOf, locate, makeDraft, makeField, readDraft, readJson, type Draft } from '../act.ts';

const BOOKING = {
  type: 'object',
  title: 'Booking',
  required: ['name', 'guests'],
  properties: {
    name: { type: 'string', title: 'Name' },
    nights: { type: 'integer', default: 2 },
    room: { enum: ['single', 'double', 3] },
    vegan: { anyOf: [{ type: 'boolean' }, { type: 'null' }] },
    guests: { type: 'array', items: { $ref: '#/$defs/Guest' } },
    extra: { anyOf: [{ type: 'string' }, { type: 'number' }] },
    prices: { type: 'object', additionalProperties: { type: 'number' } },
  },
  $defs: { Guest: { type: 'object', required: ['age'], properties: { age: { type: ['number', 'null'] }, '~/x': { type: 'string' } } } },
};

test('a schema becomes fields, and what cannot be shown becomes JSON', () => {
  const field = makeField(BOOKING);
  const kinds = field.fields.map(each => [each.name, each.kind, each.isRequired, each.isNullable]);
  assert.deepEqual(kinds, [
    ['name', 'text', true, false], ['nights', 'number', false, false], ['room', 'choice', false, false], ['vegan', 'boolean', false, true],
    ['guests', 'list', true, false], ['extra', 'json', false, false], ['prices', 'json', false, false],
  ]);
  assert.deepEqual(field.fields[4].item!.fields.map(each => [each.kind, each.isNullable]), [['number', true], ['text', false]]);
  assert.equal(makeField({ $ref: '#/$defs/Missing' }).kind, 'json');
  assert.equal(makeField(true).kind, 'json');
  assert.equal(makeField({ type: 'array', items: { type: 'string' }, prefixItems: [] }).kind, 'json');
});

test('a recursive schema ends', () => {
  const tree = { $ref: '#/$defs/T', $defs: { T: { type: 'object', properties: { kids: { type: 'array', items: { $ref: '#/$defs/T' } } } }, Loop: { $ref: '#/$defs/Loop' } } };
  const field = makeField(tree);
  assert.equal(field.fields[0].kind, 'list');
  assert.ok(JSON.stringify(field).length < 20_000);
  assert.equal(makeField({ ...tree, $ref: '#/$defs/Loop' }).kind, 'json');
});

test('the value of a form has the types of its schema', () => {
  const field = makeField(BOOKING);
  const draft = makeDraft(field) as Draft[];
  assert.deepEqual(draft, ['', '2', '', '', [], '', '']);
  const written: Draft = ['Ann', '3', '2', 'false', [['7', ''], ['', 'y']], '"late"', '{"bed": 9}'];
  assert.deepEqual(readDraft(field, written), {
    value: { name: 'Ann', nights: 3, room: 3, vegan: false, guests: [{ age: 7 }, { age: null, '~/x': 'y' }], extra: 'late', prices: { bed: 9 } },
    errors: new Map(),
  });
  assert.deepEqual(readDraft(field, draft).value, { name: '', nights: 2, vegan: null, guests: [] });
  const polluted = makeField(JSON.parse('{"type": "object", "properties": {"__proto__": {"type": "string"}}}'));
  assert.deepEqual(Object.keys(readDraft(polluted, ['x']).value as object), ['__proto__']);
});

test('an optional object that nobody has touched is left out', () => {
  const field = makeField({ type: 'object', properties: { address: { type: 'object', required: ['city'], properties: { city: { type: 'string', default: 'Oslo' } } } } });
  assert.deepEqual(readDraft(field, makeDraft(field)).value, {});
  assert.deepEqual(readDraft(field, [['Bergen']]).value, { address: { city: 'Bergen' } });
});

test('texts that are no numbers or no JSON are reported at their field', () => {
  const { errors } = readDraft(makeField(BOOKING), ['Ann', 'two', '', '', [['x', '']], '{', '']);
  assert.deepEqual([...errors.keys()], ['nights', 'guests[0].age', 'extra']);
  assert.equal(errors.get('nights'), 'must be a number');
  assert.equal(readDraft(makeField({ type: 'integer' }), '12345678901234567890').errors.get(''), 'has too many digits for this page');
  for (const [schema, text] of [[{ type: 'boolean' }, 'choose yes or no'], [{ type: 'number' }, 'enter a number'], [{ enum: [1] }, 'choose a value'], [{}, 'enter a JSON value']] as const) {
    const field = makeField(schema);
    assert.equal(readDraft(field, makeDraft(field)).errors.get(''), text);
  }
  assert.match(readJson('{').errors.get('')!, /^is not JSON/);
});

test('messages of the server belong to the longest path that they name', () => {
  const field = makeField(BOOKING);
  const draft: Draft = ['Ann', '3', '', '', [['7', ''], ['200', '']], '', ''];
  const paths = [
    'guests[1].age must be at most 120, got 200', 'the length of guests must be at least 3, got 2', 'nights must be a JSON integer, got 1.5',
    "the value must have 'name'", "guests[0] must have '~/x'", 'the value must not have \'z\'', 'nobody knows',
  ].map(each => locate(field, draft, each));
  assert.deepEqual(paths, ['guests[1].age', 'guests', 'nights', 'name', 'guests[0].~/x', '', '']);
  assert.equal(locate(makeField({ type: 'number' }), '5', 'the value must be at least 9, got 5'), '');
});

test('refusals are explained in words', () => {
  const texts = [[409, 'not_waiting'], [409, 'run_over'], [409, 'conflict'], [403, 'forbidden'], [0, 'network'], [429, 'busy']] as const;
  assert.deepEqual(texts.map(([status, code]) => explain({ status, code, message: 'reason' })), [
    'Somebody else answered this question, or the run no longer waits for it.', 'The run is over.', 'The run has changed in the meantime.',
    'You may not do this: reason.', 'The server cannot be reached. Nothing was sent.', 'The server refused this: reason.',
  ]);
});

test('only web addresses have a host', () => {
  assert.deepEqual(['https://bank.example:8/x', 'javascript:alert(1)', 'nonsense'].map(hostOf), ['bank.example:8', null, null]);
});
