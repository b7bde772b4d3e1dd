import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatAddress, parseAddress } from '../address.ts';
import { compareEvents, describeCost, toActiveTimes, toRows, type ComparedRun, type RunComparison } from '../diff.ts';
import { describePlan, makeForkDraft, makeSettings, planFork, readFork, readResult } from '../forks.ts';
import type { EventOf } from '../outline.ts';
import { makeEvents, makeOutline } from './run.ts';

const COST = { modelCalls: 1, toolCalls: 2, usage: { inputTokens: 1000, outputTokens: 20, cachedTokens: 0, reasoningTokens: 0 }, seconds: 1.25 };
const RUN: ComparedRun = { taskId: 'a', state: 'completed', seq: 9, cost: COST, costSince: COST };
const COMPARISON: RunComparison = {
  shared: 4, at: [6, 7], a: RUN, b: RUN,
  pairs: [
    { change: 'same', a: 1, b: 1, count: 4, last: [4, 5] }, { change: 'changed', a: 6, b: 7, count: 1 }, { change: 'same', a: 7, b: 8, count: 1 },
    { change: 'only', b: 9, count: 1 },
  ],
};

test('equal events are folded, and each difference has a number', () => {
  const rows = toRows(COMPARISON, new Set());
  assert.deepEqual(rows.map(each => [each.folded, each.a, each.b, each.difference]), [[4, 1, 1, 0], [0, 6, 7, 1], [1, 7, 8, 0], [0, 0, 9, 2]]);
});

test('an open stretch has one row per event of either run', () => {
  const rows = toRows(COMPARISON, new Set([0, 2]));
  assert.deepEqual(rows.slice(0, 6).map(each => [each.folded, each.a, each.b]), [[4, 1, 1], [0, 1, 1], [0, 2, 2], [0, 3, 3], [0, 4, 4], [0, 0, 5]]);
  assert.deepEqual(rows.slice(7, 9).map(each => [each.folded, each.isOpen, each.a, each.b]), [[1, true, 7, 8], [0, false, 7, 8]]);
});

const makeEvent = (fields: Record<string, unknown>): EventOf<'tool-complete'> =>
  ({ kind: 'tool-complete', seq: 1, sub: 0, attempt: 1, timestamp: '', ...fields }) as unknown as EventOf<'tool-complete'>;

test('texts are compared by words, and JSON by path', () => {
  const a = makeEvent({ seq: 7, taskId: 'a', duration: 1, call: { id: 'x', name: 'look', arguments: '{"city": "Oslo", "days": [1, 2]}' }, content: 'It is fine today.' });
  const b = makeEvent({ seq: 8, taskId: 'b', duration: 2, call: { id: 'y', name: 'look', arguments: { city: 'Bergen', days: [1, 3, 4] } }, content: 'It is closed today.' });
  const found = compareEvents(a, b).map(({ path, parts }) => [path, parts.map(each => `${each.sign}${each.text}`)]);
  assert.deepEqual(found, [
    ['call.arguments.city', ['-Oslo', '+Bergen']], ['call.arguments.days[1]', ['-2', '+3']], ['call.arguments.days[2]', ['+4']],
    ['content', ['It is ', '-fine', '+closed', ' today.']],
  ]);
  assert.deepEqual(compareEvents(a, { ...a, seq: 9, duration: 5 }), []);
});

test('an event that only one run has is shown as a whole', () => {
  const only = compareEvents(null, makeEvent({ content: 'x', step: null }));
  assert.deepEqual(only.map(each => [each.path, each.parts]), [['kind', [{ text: 'tool-complete', sign: '+' }]], ['content', [{ text: 'x', sign: '+' }]]]);
  assert.equal(compareEvents(makeEvent({ content: 'x' }), null)[1].parts[0].sign, '-');
});

test('costs are one line', () => {
  assert.equal(describeCost(COST, String), '1 model call, 2 tool calls, 1020 tokens, 1.3 s');
  assert.match(describeCost({ ...COST, dollars: 0.12345 }, String), /, \$0\.12$/);
});

test('addresses of comparisons survive a round trip', () => {
  const text = '#/diff/a%2Fb/c?at=3';
  assert.equal(formatAddress(parseAddress(text)), text);
  const { page, taskId, other, at } = parseAddress(text);
  assert.deepEqual([page, taskId, other, at], ['diff', 'a/b', 'c', '3']);
  assert.equal(parseAddress('#/diff/a').page, 'runs');
});

const FORKED = makeOutline(makeEvents([
  [0, 'task', { agentName: 'a', messages: [] }],
  [1, 'llm-call', { step: '1', model: 'm' }],
  [2, 'content-complete', { step: '1' }],
  [3, 'tool-start', { step: '1', call: { id: 'x', name: 'look' } }],
  [4, 'tool-start', { step: '1', call: { id: 'y', name: 'pay' } }],
  [5, 'tool-complete', { step: '1', success: true, call: { id: 'x', name: 'look' } }],
  [6, 'tool-complete', { step: '1', success: true, call: { id: 'y', name: 'pay' } }],
  [7, 'llm-call', { step: '2', model: 'm' }],
  [8, 'content-complete', { step: '2' }],
  [9, 'status-update', { state: 'completed', final: true }],
]));

test('a plan names the step and the open calls of a fork', () => {
  const plans = [1, 2, 3, 5, 6, 8, 9].map(seq => planFork(FORKED, seq));
  assert.deepEqual(plans, [
    { step: '1', calls: [], isStart: false, unstarted: 0, isOver: false }, { step: '1', calls: [], isStart: false, unstarted: 0, isOver: false }, { step: '2', calls: [], isStart: false, unstarted: 0, isOver: false },
    { step: '2', calls: ['look', 'pay'], isStart: true, unstarted: 0, isOver: false }, { step: '2', calls: ['pay'], isStart: false, unstarted: 0, isOver: false },
    { step: '2', calls: [], isStart: false, unstarted: 0, isOver: false }, { step: '3', calls: [], isStart: false, unstarted: 0, isOver: true },
  ]);
  const options = { seq: 5, model: 'm', hasPrompt: false, hasResult: false, mayRepeat: true };
  const started = (calls: string) => `Copies 5 events. Calls that were started (${calls}) are repeated if their tools are idempotent, and interrupted otherwise. Asks m again from step 2.`;
  assert.equal(describePlan(plans[3], options), started('look, pay'));
  // The result replaces the call that the event starts.
  assert.equal(describePlan(plans[3], { ...options, hasResult: true }), started('look'));
  assert.match(describePlan(plans[4], { ...options, hasResult: true }), /started \(pay\)/);
  assert.equal(describePlan(plans[3], { ...options, hasPrompt: true }), 'Copies 5 events. Cancels 2 open calls. Asks m again from step 2.');
  assert.equal(describePlan({ ...plans[3], unstarted: 1 }, { ...options, hasPrompt: true }), 'Copies 5 events. Cancels 3 open calls. Asks m again from step 2.');
  assert.equal(describePlan({ ...plans[2], unstarted: 1 }, options), 'Copies 5 events. Executes 1 call. Asks m again from step 2.');
  assert.match(describePlan({ ...plans[2], unstarted: 1 }, { ...options, mayRepeat: false }), /Executes 1 call, unless it was started later by a tool that is not idempotent/);
  assert.equal(describePlan(plans[0], { ...options, seq: 1, hasPrompt: true }), 'Starts from the beginning. Asks m again from step 1.');
  assert.match(describePlan(plans[6], options), /nothing is asked/);
});

test('only changed fields of a fork are sent', () => {
  const settings = makeSettings(['maxTokens', 'temperature', 'unknown', 'stop']);
  assert.deepEqual(settings.fields.map(each => each.name), ['maxTokens', 'temperature', 'stop']);
  const call = makeEvent({ step: '2', index: 1, success: true, result: { level: 'none' } });
  const shown = readResult(call, null)!;
  const draft = makeForkDraft(settings, shown);
  assert.deepEqual(readFork(7, draft, settings, call, shown), { body: { at: 7 }, errors: new Map() });
  const { body } = readFork(7, { prompt: 'Again', model: 'x:m', settings: ['9', '', []], result: '{"level": "red"}' }, settings, call, shown);
  assert.deepEqual(body, { at: 7, input: 'Again', model: 'x:m', settings: { maxTokens: 9 }, results: { '2/1': { level: 'red' } } });
  const wrong = readFork(7, { ...draft, settings: ['x', '', []], result: 'red' }, settings, call, shown);
  assert.deepEqual([...wrong.errors.keys()], ['settings.maxTokens', 'result']);
  assert.equal(readResult(makeEvent({ kind: 'llm-call' }), null), null);
  assert.equal(readResult(makeEvent({ success: false, error: 'x' }), null), '');
  assert.equal(readResult(makeEvent({ parentTaskId: 'p' }), null), null);
});

test('times do not include the time between attempts', () => {
  const outline = makeOutline(makeEvents([
    [0, 'task', { agentName: 'a', messages: [] }],
    [100, 'llm-call', { step: '1', model: 'm' }],
    [9_000_000, 'status-update', { state: 'working', attempt: 2 }],
    [9_000_040, 'content-complete', { step: '1', attempt: 2 }],
  ]));
  assert.deepEqual(toActiveTimes(outline), [0, 100, 100, 140]);
});

test('the text that the model reads is not compared again if it is the result', () => {
  const [a, b] = ['yellow', 'none'].map(level => makeEvent({ success: true, result: { level }, content: JSON.stringify({ level }) }));
  assert.deepEqual(compareEvents(a, b).map(each => each.path), ['result.level']);
  assert.deepEqual(compareEvents(a, makeEvent({ ...b, content: 'none' })).map(each => each.path), ['result.level', 'content']);
});
