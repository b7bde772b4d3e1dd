import assert from 'node:assert/strict';
import { test } from 'node:test';
import { barAt, barWidth, heightOf, labelEvery, scaleOf, ticksOf } from '../bars.ts';
import { findBytes, formatPath, parseEmbedded } from '../json.ts';
import { cut } from '../omissions.ts';
import { formatSize } from '../time.ts';
import {
  cacheShare, cellPath, cellsOf, describeCells, findCall, groupRows, interleave, isOmitted, scaleParts, sumParts, sumRows, trackOf, type RequestRow, type Sent,
  type SentRequest,
} from '../requests.ts';
import { makeEvents, makeOutline } from './run.ts';

const makeRow = (more: Partial<RequestRow> = {}): RequestRow => ({
  seq: 3, step: '1', model: 'm', tokens: { estimated: 100 }, parts: { system: 20, history: 80 }, history: 4, sent: [[0, 3]], exact: true, ...more,
});

const makePart = (from: Sent['from'], index?: number, tokens = 1): Sent => ({ role: 'user', from, index, tokens, change: 'new' });

test('bars have the input tokens that the provider has reported', () => {
  for (const counted of [0, 1, 7, 90, 12_345]) {
    const parts = scaleParts(makeRow({ tokens: { estimated: 100, counted }, parts: { system: 20, tools: 3, history: 77 } }));
    assert.equal(parts.reduce((sum, each) => sum + each, 0), counted);
  }
  assert.deepEqual(scaleParts(makeRow()), [20, 0, 0, 0, 80, 0, 0, 0]);
  assert.deepEqual(scaleParts(makeRow({ parts: undefined })), [0, 0, 0, 0, 100, 0, 0, 0]);
});

test('cached tokens are a part of the input and not counted twice', () => {
  const rows = [
    makeRow({ tokens: { estimated: 1, counted: 100, cached: 0 }, saved: -0.5 }),
    makeRow({ tokens: { estimated: 1, counted: 300, cached: 200 }, saved: 2 }),
    makeRow({ tokens: { estimated: 40 } }),
  ];
  assert.deepEqual(sumRows(rows), { input: 440, cached: 200, uncounted: 1, saved: 1.5 });
  assert.equal(cacheShare(200, 440), 45);
  assert.equal(cacheShare(0, 0), 0);
  assert.equal(sumRows([makeRow()]).saved, null);
});

test('messages that were left out are placed between those that were sent', () => {
  const parts = [makePart('system'), makePart('task', 0), makePart('summary'), makePart('history', 4), makePart('note')];
  const omitted = [5, 1, 3, 2].map(index => ({ index, role: 'tool', tokens: 1, why: 'overflow' }));
  const rows = interleave(parts, omitted).map(each => `${isOmitted(each) ? '-' : ''}${each.index ?? (each as Sent).from}`);
  assert.deepEqual(rows, ['system', '0', 'summary', '-1', '-2', '-3', '4', '-5', 'note']);
});

test('the same messages and those that were left out are folded', () => {
  const same = Array.from({ length: 20 }, (_, k): Sent => ({ ...makePart('history', k), change: 'same' }));
  const omitted = [20, 21, 22].map(index => ({ index, role: 'tool', tokens: 1, why: 'overflow' }));
  const groups = groupRows([makePart('system'), ...same, ...omitted, makePart('history', 23)]);
  assert.deepEqual(groups.map(each => [each.kind, each.rows.length]), [['shown', 1], ['same', 20], ['left out', 3], ['shown', 1]]);
  assert.deepEqual(groupRows(same.slice(0, 4)).map(each => each.kind), ['shown']);
});

test('cells show in which requests a message was sent', () => {
  const rows = [
    makeRow({ history: 1, sent: [[0, 0]] }),
    makeRow({ history: 3, sent: [[0, 2]] }),
    makeRow({ history: 5, sent: [[0, 0], [3, 4]], edited: [[2, 2, 'shortened']] }),
    makeRow({ history: 7, sent: [[0, 0], [5, 6]] }),
  ];
  assert.deepEqual(cellsOf(rows, 2), ['later', 'sent', 'shortened', 'left out']);
  assert.deepEqual(cellsOf(rows, 6), ['later', 'later', 'later', 'sent']);
  assert.equal(describeCells(cellsOf(rows, 0)), 'requests: sent in 1 to 4');
  assert.equal(describeCells(cellsOf(rows, 2)), 'requests: sent in 2, shortened in 3, left out of 4');
  assert.equal(describeCells(cellsOf(rows, 9)), 'in no request yet');
});

test('narrow cells of a kind share a rectangle', () => {
  const cells = Array.from({ length: 2000 }, (_, k) => (k < 1500 ? 'sent' : 'left out') as 'sent' | 'left out');
  assert.equal(cellPath(cells, 'sent', 0.1, 12, 0).split('M').length - 1, 1);
  assert.equal(cellPath(cells.slice(0, 3), 'sent', 10, 12, 2), 'M0 0h8v12h-8zM10 0h8v12h-8zM20 0h8v12h-8z');
});

test('2,000 requests are scaled and matched within a frame', () => {
  const rows = Array.from({ length: 2000 }, (_, k) => makeRow({ seq: k, history: 2 * k, sent: [[0, 1], [k, 2 * k]], tokens: { estimated: k, counted: k } }));
  const begin = performance.now();
  rows.forEach(scaleParts);
  cellsOf(rows, 1000);
  sumRows(rows);
  assert.ok(performance.now() - begin < 200);
  assert.equal(barWidth(2000, 1200), 1);
  assert.equal(barWidth(3, 1200), 28);
  assert.deepEqual([barAt(3, 28, 30), barAt(3, 28, 90), barAt(3, 28, -1)], [1, -1, -1]);
});

test('the window only stretches the chart if requests come near it', () => {
  assert.ok(scaleOf([makeRow({ window: 200 })]) >= 200);
  assert.ok(scaleOf([makeRow({ window: 200_000 })]) < 200);
});

test('requests are grouped by nested run and branch', () => {
  assert.equal(trackOf(makeRow()), '');
  assert.equal(trackOf(makeRow({ branch: 'b1' })), 'b1');
  assert.equal(trackOf(makeRow({ agentPath: ['helper'], run: 'r1' })), 'helper r1');
});

test('tokens of tools and parts are summed by origin', () => {
  const request = { parts: [makePart('system', undefined, 5), makePart('history', 0, 7), makePart('history', 1, 8)], tools: [{ name: 'look', tokens: 11, change: 'new' }] };
  const sums = sumParts(request as unknown as SentRequest);
  assert.deepEqual([sums.system, sums.tools, sums.history, sums.note], [5, 11, 15, 0]);
});

test('events of a model call lead to its request', () => {
  const outline = makeOutline(makeEvents([
    [0, 'task', { agentName: 'a', messages: [] }],
    [1, 'context-compressed', { step: '1', tokensBefore: 9, tokensAfter: 3 }],
    [2, 'llm-call', { step: '1', model: 'm' }],
    [3, 'usage', { step: '1', inputTokens: 1 }],
    [4, 'content-complete', { step: '1' }],
    [5, 'checkpoint', { iteration: 1 }],
  ]));
  assert.deepEqual([0, 1, 2, 3, 4, 5].map(i => findCall(outline, i)), [0, 3, 3, 3, 3, 0]);
});

test('base64 is found, and words are not', () => {
  const png = `data:image/png;base64,${'iVBORw0KGgo9'.repeat(300)}`;
  assert.deepEqual([findBytes(png)?.mediaType, findBytes(png)?.size], ['image/png', 2700]);
  assert.equal(findBytes('aGVsbG8gd29ybGQ5Q0'.repeat(200))?.mediaType, '');
  assert.equal(findBytes('a'.repeat(5000)), null);
  assert.equal(findBytes('0123456789abcdef'.repeat(300)), null);
  assert.equal(findBytes('aGVsbG8='), null);
  assert.equal(findBytes('many words '.repeat(400)), null);
});

test('JSON in strings is parsed, and other text is not', () => {
  assert.deepEqual(parseEmbedded(' {"level": "yellow"}'), { level: 'yellow' });
  for (const text of ['[oops', '"text"', '12', '', '{"a": }', 'null']) assert.equal(parseEmbedded(text), undefined);
});

test('paths and sizes are readable', () => {
  assert.equal(formatPath(['parts', 2, 'text']), '.parts[2].text');
  assert.equal(formatPath(['a b', 0]), '.["a b"][0]');
  assert.deepEqual([12, 1500, 2_500_000].map(formatSize), ['12 bytes', '1.5 kB', '2.5 MB']);
  assert.equal(cut('ab😀', 3), 'ab');
});

test('labels of the chart are round numbers, and have enough room', () => {
  assert.deepEqual(ticksOf(2_835), [0, 1000, 2000]);
  assert.deepEqual(ticksOf(9.9), [0, 5]);
  assert.deepEqual(ticksOf(1), [0, 1]);
  assert.deepEqual([0, 1000].map(each => heightOf(each, 1000, 204)), [204, 4]);
  assert.deepEqual([28, 10, 1].map(labelEvery), [2, 5, 50]);
});
