import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatAddress, parseAddress } from '../address.ts';
import type { RunInfo } from '../api.ts';
import { readFrames } from '../frames.ts';
import { makeKeymap } from '../keys.ts';
import { splitMarks } from '../text.ts';
import { addPage, addRun, matching, parseTerms, setTerm, toggleGroups, toHeights, toItems, toMoment } from '../runlist.ts';

const makeRun = (taskId: string, more: Partial<RunInfo> = {}): RunInfo => ({
  taskId, contextId: 'c', agent: 'support', state: 'completed', attempt: 1, seq: 9, deltas: 'none', cursor: '', events: '', created: `2026-01-01T00:00:0${taskId}Z`, updated: '', ...more,
});
const ids = (runs: RunInfo[]) => runs.map(run => run.taskId);

test('frames are read across chunks, without heartbeats', async () => {
  const chunks = ['retry: 2000\n\nevent: pa', 'ge\ndata: {"a":\n', 'data: 1}\n\n: beat\n\nevent: run\r\ndata: ü\r\n\r\nevent: cut\ndata: 1'];
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(new TextEncoder().encode(chunk));
      controller.close();
    },
  });
  const frames = [];
  for await (const frame of readFrames(body)) frames.push(frame);
  assert.deepEqual(frames, [{ name: 'page', data: '{"a":\n1}' }, { name: 'run', data: 'ü' }]);
});

test('a changed run is replaced in place, and a new run waits', () => {
  let lists = { runs: [makeRun('5'), makeRun('3')], waiting: [] as RunInfo[] };
  lists = addRun(lists, makeRun('3', { state: 'failed' }));
  lists = addRun(lists, makeRun('7', { state: 'working' }));
  lists = addRun(lists, makeRun('7'));
  lists = addRun(lists, makeRun('1'));
  assert.deepEqual(lists.runs.map(run => [run.taskId, run.state]), [['5', 'completed'], ['3', 'failed']]);
  assert.deepEqual(lists.waiting.map(run => [run.taskId, run.state]), [['7', 'completed']]);
  assert.deepEqual(ids(addPage(lists, [makeRun('9'), makeRun('8'), makeRun('7'), makeRun('5')]).waiting), ['9', '8', '7']);
  assert.deepEqual(ids(addRun({ runs: [], waiting: [] }, makeRun('1')).runs), ['1']);
});

const NONE = { state: '', agent: '', model: '', owner: '', since: '', until: '', text: '', isGrouped: false };

test('the filter selects by state, agent, model and text', () => {
  const runs = [makeRun('4', { title: 'Refund it' }), makeRun('3', { state: 'input-required' }), makeRun('2', { agent: 'papers', model: 'zai:glm' })];
  assert.deepEqual(parseTerms('state:failed by:conversation agent:x model:zai:glm two words'), { ...NONE, state: 'failed', agent: 'x', model: 'zai:glm', text: 'two words', isGrouped: true });
  assert.deepEqual(ids(matching(runs, 'state:waits', [])), ['3']);
  assert.deepEqual(ids(matching(runs, 'agent:PAPER', [])), ['2']);
  assert.deepEqual(ids(matching(runs, 'model:glm', [])), ['2']);
  assert.deepEqual(ids(matching(runs, 'refund', [])), ['4']);
});

test('the filter selects by owner and creation time', () => {
  const now = new Date().toISOString();
  const runs = [makeRun('4', { owner: 'bob', created: now }), makeRun('3', { owner: 'ann' }), makeRun('2', { created: '2025-12-31T00:00:00Z' })];
  assert.deepEqual(ids(matching(runs, 'owner:ANN', [])), ['3']);
  assert.deepEqual(ids(matching(runs, 'since:24h', [])), ['4']);
  assert.deepEqual(ids(matching(runs, 'since:2026-01-01 until:2026-01-02', [])), ['3']);
  assert.deepEqual(ids(matching(runs, 'since:nonsense', [])), ['4', '3', '2']);
});

test('a term is replaced by another value, and quoted if it contains a space', () => {
  assert.equal(setTerm('refund agent:x state:failed', 'agent', 'my agent'), 'agent:"my agent" refund state:failed');
  assert.equal(setTerm('agent:"my agent" refund', 'agent', ''), 'refund');
  assert.deepEqual(parseTerms('agent:"my agent" refund'), { ...NONE, agent: 'my agent', text: 'refund' });
});

test('a limit is an age or a time', () => {
  assert.deepEqual(['30m', '2h', '7d', '1970-01-01T00:00:01Z', 'x'].map(each => toMoment(each, 1e9)), [1e9 - 18e5, 1e9 - 72e5, 1e9 - 6048e5, 1000, null]);
});

test('runs that the server has found are added, in their recent version', () => {
  const runs = [makeRun('4', { title: 'Refund it' }), makeRun('3', { calls: 2 })];
  const hits = matching(runs, 'refund', [makeRun('3', { calls: 1 }), makeRun('1')]);
  assert.deepEqual(hits.map(run => [run.taskId, run.calls]), [['4', undefined], ['3', 2], ['1', undefined]]);
});

test('runs are grouped by conversation and owner', () => {
  const runs = [makeRun('4', { contextId: 'a' }), makeRun('3', { contextId: 'b' }), makeRun('2', { contextId: 'a' }), makeRun('1', { contextId: 'a', owner: 'bob' })];
  const items = toItems(runs, true).map(item => (item.kind === 'run' ? item.run.taskId : `${item.run.taskId}:${item.count}`));
  assert.deepEqual(items, ['2:2', '4', '2', '3:1', '3', '1:1', '1']);
  assert.equal(toItems(runs, false).length, 4);
  assert.deepEqual([toggleGroups('state:failed'), toggleGroups('by:conversation x')], ['by:conversation state:failed', 'x']);
});

test('small values of a sparkline are visible', () => {
  assert.deepEqual(toHeights([0, 1, 100]), [0, 0.12, 1]);
});

test('pages about all runs have addresses and keys', () => {
  for (const address of ['#/problems']) assert.equal(formatAddress(parseAddress(address)), address);
  const press = { isField: false, hasModifier: false, isControl: false, lettersOff: false };
  assert.equal(makeKeymap()({ ...press, key: '.', page: 'runs' }), 'addRuns');
  assert.equal(makeKeymap()({ ...press, key: '.', page: 'run' }), 'live');
  assert.equal(makeKeymap()({ ...press, key: '.', page: 'problems' }), null);
});

test('marks of an excerpt count code points', () => {
  assert.deepEqual(splitMarks('😀 ab ab', [[2, 4], [5, 7]]), [
    { text: '😀 ', isMarked: false }, { text: 'ab', isMarked: true }, { text: ' ', isMarked: false }, { text: 'ab', isMarked: true },
  ]);
});
