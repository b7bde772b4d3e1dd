import assert from 'node:assert/strict';
import { test } from 'node:test';
import { describeAnswer, describeTry, explainEnd, listTurns, reasoningTime, splitAtCitations, type Turn } from '../conversation.ts';
import { fileName, partsOf, readMedia } from '../media.ts';
import { formatSize } from '../time.ts';
import { RunModel } from '../model.ts';
import type { Event } from '../outline.ts';
import { EVENTS, makeEvents } from './run.ts';

function makeRun(events: Event[]): RunModel {
  const run = new RunModel('run');
  for (const event of events) run.addEvent(event);
  run.build(0);
  return run;
}

const kinds = (run: RunModel, turns: Turn[]): unknown[] => turns.map(each => (each.kids.length ? [run.outline.kind[each.index], kinds(run, each.kids)] : run.outline.kind[each.index]));

test('messages of a nested agent belong to the event that started it', () => {
  const run = makeRun(EVENTS);
  assert.deepEqual(kinds(run, listTurns(run, run.outline.last)), [
    'task', 'content-complete', 'tool-start', 'tool-start', 'llm-failed', 'content-complete', 'tool-start', ['subtask', ['content-complete']],
  ]);
  assert.deepEqual(kinds(run, listTurns(run, 14)).slice(-2), ['content-complete', 'tool-start']);
});

test('a failed try has its duration, and a repeated request its start', () => {
  const run = makeRun(EVENTS);
  assert.equal(describeTry(run, 10), 'try 1 failed after 0.10 s: later');
  const repeated = makeRun(makeEvents([[0, 'task', { messages: [] }], [1500, 'llm-call', { step: '1', model: 'm' }], [9000, 'llm-call', { step: '1', model: 'm' }]]));
  assert.equal(describeTry(repeated, 2), 'first try, started after 1.50 s, not completed');
});

test('the text of a request that is repeated is kept as discarded text', () => {
  const [call, again] = makeEvents([[0, 'llm-call', { step: '1', model: 'm' }], [900, 'llm-call', { step: '1', model: 'm' }]]);
  const delta = { ...call, kind: 'content-delta', sub: 1, delta: 'Perhaps' } as Event;
  const run = makeRun([call, delta, again]);
  assert.deepEqual([...run.discarded], [[2, 'Perhaps']]);
  assert.equal(run.live.size, 0);
});

test('the text of a complete message is not discarded', () => {
  const [call, complete, again] = makeEvents([[0, 'llm-call', { step: '1' }], [5, 'content-complete', { step: '1', content: 'Yes.' }], [9, 'llm-call', { step: '1' }]]);
  const run = makeRun([call, { ...call, kind: 'content-delta', sub: 1, delta: 'Yes.' } as Event, complete, again]);
  assert.equal(run.discarded.size, 0);
});

test('reasoning takes the time from the first token to its thought', () => {
  const run = makeRun(makeEvents([
    [0, 'llm-call', { step: '1', model: 'm' }], [1700, 'thought-stream', { step: '1', thoughtId: 'r', content: 'Hm.', source: 'reasoning' }],
    [2500, 'content-complete', { step: '1', content: 'Yes.', firstToken: 0.5 }],
  ]));
  assert.equal(reasoningTime(run, 2), 1200);
  assert.equal(reasoningTime(makeRun(EVENTS), 4), -1);
});

test('positions of citations count characters', () => {
  const parts = splitAtCitations('🗓 two days. More.', [{ end: 11 }, { end: 11 }, {}, { end: 99 }]);
  assert.deepEqual(parts, [{ text: '🗓 two days.', numbers: [1, 2] }, { text: ' More.', numbers: [4] }]);
  assert.deepEqual(splitAtCitations('Text', [{}]), [{ text: 'Text', numbers: [] }]);
});

test('ends and answers are words', () => {
  assert.equal(explainEnd('length', 1200), 'cut off at the limit of 1,200 tokens');
  assert.equal(explainEnd('interrupted', null), 'interrupted by a new message');
  assert.equal(explainEnd('stop', null), '');
  assert.equal(describeAnswer('confirmation', false), 'refused');
  assert.equal(describeAnswer('credential', null), 'signed in');
  assert.equal(describeAnswer('data', { a: 1 }), null);
});

test('only data with the bytes of a picture is a picture', () => {
  const png = 'iVBORw0KGgoAAAANSUhEUg==';
  const kind = (part: object) => { const { kind, mediaType } = readMedia(part); return [kind, mediaType]; };
  assert.deepEqual(kind({ type: 'image', data: png, mediaType: 'image/svg+xml' }), ['picture', 'image/png']);
  assert.deepEqual(kind({ type: 'image', data: 'R0lGODlhAQABAAAAACw=' }), ['picture', 'image/gif']);
  assert.deepEqual(kind({ type: 'image', data: btoa('RIFF\x00\x00\x00\x00WEBPVP8 ') }), ['picture', 'image/webp']);
  assert.deepEqual(kind({ type: 'image', data: btoa('\xff\xd8\xff\xe0') }), ['picture', 'image/jpeg']);
  assert.deepEqual(kind({ type: 'image', data: btoa('<svg onload=1>'), mediaType: 'image/png' }), ['file', 'image/png']);
  assert.deepEqual(kind({ type: 'image', url: `data:image/svg+xml;base64,${btoa('<svg/>')}` }), ['file', 'image/svg+xml']);
  assert.deepEqual(kind({ type: 'image', url: `data:image/png;base64,${png}` }), ['picture', 'image/png']);
  assert.deepEqual(kind({ type: 'image', url: 'https://example.org/a.png' }), ['address', '']);
  assert.deepEqual(kind({ type: 'image', data: '\u2028???' }), ['file', '']);
});

test('files have sizes, and names that do not come from the model', () => {
  const media = readMedia({ type: 'file', data: btoa('%PDF-1.4'), mediaType: 'application/pdf', filename: '../../evil.exe' });
  assert.deepEqual([media.size, fileName(media, 7), formatSize(media.size), formatSize(1_234_567)], [8, 'event-7.pdf', '8 bytes', '1.2 MB']);
  assert.deepEqual(partsOf('Hi'), [{ type: 'text', text: 'Hi' }]);
  assert.deepEqual([partsOf(''), partsOf(null)], [[], []]);
});
