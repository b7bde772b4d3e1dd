import assert from 'node:assert/strict';
import { test } from 'node:test';
import { applyFilter, findWords } from '../filter.ts';
import { Fold } from '../fold.ts';
import { buildLanes, cluster, LEAST_DISTANCE } from '../lanes.ts';
import { RunModel } from '../model.ts';
import type { OutlinePage } from '../outline.ts';
import { buildRows, visibleRows } from '../rows.ts';
import { EVENTS, makeEvents, makeOutline } from './run.ts';

const names = (rows: { title: string; level: number }[]) => rows.map(row => `${row.level} ${row.title}`);

test('rows are a tree of steps, tools and nested agents in order', () => {
  const { rows } = buildRows(makeOutline());
  assert.deepEqual(names(rows), ['1 weather', '2 step 1', '3 get_forecast', '3 get_forecast', '2 step 2', '3 alerts', '4 desk', '5 step 1']);
});

test('concurrent calls of one tool end their own rows', () => {
  const [, , first, second] = buildRows(makeOutline()).rows;
  assert.deepEqual([first.to, first.failed, first.note], [1500, false, '11 °C']);
  assert.deepEqual([second.to, second.failed], [2000, true]);
});

test('a retry is a second piece after the wait', () => {
  const step = buildRows(makeOutline()).rows[4];
  assert.deepEqual(step.pieces, [{ from: 2010, to: 2110, failed: true }, { from: 2910, to: 3500, failed: false }]);
  assert.equal(step.sub, 'glm, 2 tries');
});

test('the first token is counted from the call, and unknown if it was not recorded', () => {
  const { rows } = buildRows(makeOutline());
  assert.equal(rows[1].first, 410);
  const retried = makeOutline(makeEvents([
    [100, 'llm-call', { step: '1', model: 'm' }], [200, 'llm-failed', { step: '1', retryIn: 0.5 }], [2000, 'content-complete', { step: '1', firstToken: 0.9 }],
  ]));
  assert.equal(buildRows(retried).rows[1].first, 900);
  assert.equal(rows[4].first, -1);
});

test('each event has a row', () => {
  const outline = makeOutline();
  const { of } = buildRows(outline);
  assert.equal(of.length, outline.size);
  assert.ok(of.every(row => row !== undefined));
});

test('figures are sums over all events up to a place, including nested agents', () => {
  const outline = makeOutline();
  const fold = new Fold();
  fold.update(outline);
  assert.deepEqual(fold.at(6), { messages: 1, openCalls: 2, thoughts: 0, tokens: 120, calls: 1, dollars: 0 });
  assert.deepEqual(fold.at(20), { messages: 6, openCalls: 0, thoughts: 0, tokens: 405, calls: 3, dollars: 0 });
});

test('a second report of the same call replaces the first one', () => {
  const usage = (inputTokens: number) => ({ step: '1', inputTokens, outputTokens: 0 });
  const fold = new Fold();
  fold.update(makeOutline(makeEvents([[0, 'llm-call', { step: '1', model: 'm' }], [1, 'usage', usage(5)], [2, 'usage', usage(8)]])));
  assert.equal(fold.at(2).tokens, 8);
});

test('costs of a live run are taken from the log', () => {
  const model = new RunModel('run');
  for (const event of EVENTS) model.addEvent(event);
  model.build(4000);
  assert.deepEqual([...model.outline.unresolved], [4, 12, 17]);
  model.outline.resolve({ ...toPage(20), dollars: { 4: 0.01, 17: 0.0023 } });
  model.build(4000);
  assert.deepEqual([3, 20].map(i => model.fold.at(i).dollars), [0.01, 0.0123]);
  assert.deepEqual(model.rows.filter(row => row.kind === 'step').map(row => row.note), ['100 → 20 tokens · $0.0100', '200 → 30 tokens', '50 → 5 tokens · $0.0023']);
  assert.equal(model.outline.unresolved.size, 0);
});

test('the filter keeps matching rows and their ancestors', () => {
  const { rows } = buildRows(makeOutline());
  const found = applyFilter(rows, 'kind:tool ok:no', 4000)!;
  assert.deepEqual(names(found.hits), ['3 get_forecast']);
  assert.deepEqual(names(visibleRows(rows, new Set(), found.shown)), ['1 weather', '2 step 1', '3 get_forecast']);
});

test('filter terms: wildcard, duration, tokens, agent and text', () => {
  const { rows } = buildRows(makeOutline());
  const count = (text: string) => applyFilter(rows, text, 4000)!.hits.length;
  assert.deepEqual(['name:get_*', '>1.4s', 'tokens>200', 'agent:desk', '11', 'step:2'].map(count), [2, 2, 1, 2, 1, 3]);
  assert.equal(applyFilter(rows, '  ', 4000), null);
});

test('rows with a found event match the words of a filter, but not its terms', () => {
  const { rows } = buildRows(makeOutline());
  const found = new Set(rows.filter(row => row.title === 'get_forecast'));
  assert.deepEqual([findWords(' kind:tool wind  ok:no gusts >2s'), findWords('ok:no')], ['wind gusts', '']);
  assert.deepEqual(names(applyFilter(rows, 'wind gusts', 4000)!.hits), []);
  assert.deepEqual(names(applyFilter(rows, 'wind gusts', 4000, found)!.hits), ['3 get_forecast', '3 get_forecast']);
  assert.deepEqual(names(applyFilter(rows, 'wind ok:no', 4000, found)!.hits), ['3 get_forecast']);
});

test('folded rows hide their descendants only', () => {
  const { rows } = buildRows(makeOutline());
  assert.deepEqual(names(visibleRows(rows, new Set([3]), null)).slice(0, 3), ['1 weather', '2 step 1', '2 step 2']);
});

test('overlapping calls are on two tracks, and a nested agent shares the lane of its tool', () => {
  const outline = makeOutline();
  const lanes = buildLanes(outline, buildRows(outline).rows);
  assert.deepEqual(lanes.map(lane => lane.title), ['Model', 'Text', 'get_forecast', 'desk', 'Run']);
  assert.equal(lanes[2].trackCount, 2);
});

test('marbles that are too close are merged into one with the most severe family', () => {
  const outline = makeOutline();
  const model = buildLanes(outline, buildRows(outline).rows)[0];
  const far = cluster(outline, model, ms => ms, 5000);
  assert.deepEqual(far.map(marble => marble.letter), ['l', 'c', 'l', 'e', 'c']);
  const near = cluster(outline, model, ms => ms / 20, 250);
  assert.deepEqual(near.map(marble => [marble.indexes.length, marble.family]), [[1, 'model'], [1, 'model'], [2, 'failed'], [1, 'model']].slice(0, near.length));
  for (let k = 1; k < near.length; k++) assert.ok(near[k].x - near[k - 1].x >= LEAST_DISTANCE);
});

test('numbers that a reader does not receive are hidden events', () => {
  const outline = makeOutline(EVENTS.filter(event => event.kind !== 'llm-failed'));
  assert.equal(outline.size, EVENTS.length);
  assert.equal(outline.kind[10], 'hidden');
});

test('an outline and the events of the stream give the same columns', () => {
  const live = makeOutline();
  const page = toPage(10);
  const model = new RunModel('run');
  model.addPage(page);
  for (const event of EVENTS) model.addEvent(event);
  const { outline } = model;
  for (const column of ['seq', 'time', 'kind', 'name', 'step', 'opens', 'flags', 'a', 'b'] as const) assert.deepEqual(outline[column], live[column], column);
});

test('labels of calls contain the lengths of lists and objects', () => {
  const call = { id: 'c', name: 'go', arguments: { to: ['a', 'b'], how: { by: 'bus' }, day: 3 } };
  assert.deepEqual(makeOutline(makeEvents([[0, 'tool-start', { call }]])).label, ['to=[2], how=[1], day=3']);
});

test('streamed answers and ends have the same label as in an outline of the log', () => {
  const { label, name } = makeOutline();
  assert.deepEqual([name[1], name[4]], ['working', '']);
  assert.deepEqual([label[1], label[4], label[12], label[20]], ['', 'get_forecast, get_forecast', 'I ask.', 'Go.']);
  const ends = makeOutline(makeEvents([
    [0, 'content-complete', { content: '', finishReason: 'length' }],
    [1, 'status-update', { state: 'failed', final: true, reason: 'tokens', content: 'Half' }],
    [2, 'status-update', { state: 'failed', final: true, error: { code: 'log', message: 'disk full' } }],
  ]));
  assert.deepEqual(ends.label, ['length', 'tokens', 'disk full']);
});

test('events that were already received are ignored', () => {
  const model = new RunModel('run');
  for (const event of [...EVENTS.slice(0, 5), ...EVENTS.slice(2)]) model.addEvent(event);
  assert.equal(model.outline.size, EVENTS.length);
  assert.equal(model.cursor(), 'run/1.21.0');
});

test('deltas set the first token of a call that is not complete', () => {
  const model = new RunModel('run');
  for (const event of EVENTS.slice(0, 3)) model.addEvent(event);
  model.addEvent({ ...EVENTS[2], kind: 'content-delta', sub: 1, delta: 'It', timestamp: '2026-01-01T00:00:00.500Z' });
  model.build(600);
  assert.equal(model.rows[1].first, 500);
  assert.equal(model.cursor(), 'run/1.3.1');
});

/** The outline of the first events, as the API sends it. */
function toPage(count: number): OutlinePage {
  const outline = makeOutline(EVENTS.slice(0, count));
  const columns = ['kind', 'name', 'step', 'branch', 'path', 'run'] as const;
  const dict = Object.fromEntries(columns.map(name => [name, ['', ...new Set(outline[name])]]));
  const indexes = Object.fromEntries(columns.map(name => [name, outline[name].map(value => Math.max(dict[name].lastIndexOf(value), 0))]));
  const dt = outline.time.map((ms, i) => ms - (outline.time[i - 1] ?? 0));
  const { opens, flags, a, b, label } = outline;
  return {
    taskId: 'run', first: 1, last: count, final: false, start: '2026-01-01T00:00:00.000Z', attempts: [[1, 1]],
    dict, ...indexes, dt, opens, flags, a, b, label,
  } as unknown as OutlinePage;
}
