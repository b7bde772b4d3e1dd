import assert from 'node:assert/strict';
import { test } from 'node:test';
import { describeCode, explainFailure } from '../failures.ts';
import { HistoryCount } from '../history.ts';
import { Outline, type OutlinePage } from '../outline.ts';
import { EVENTS, makeEvents, makeOutline } from './run.ts';

test('messages are counted when all calls of a message have a result', () => {
  const { messages, calls } = makeOutline();
  assert.deepEqual(messages, [1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 6, 6]);
  assert.deepEqual(calls, [0, 0, 0, 0, 2, 2, 2, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
});

test('the stream continues the numbers of a page, also within a batch', () => {
  const whole = makeOutline();
  for (let size = 1; size < EVENTS.length; size++) {
    const outline = new Outline();
    const column = <T>(values: T[]) => values.slice(0, size);
    const { kind, step, branch, path, run, name } = whole;
    const dict = { kind, step, branch, path, run, name };
    const indexes = EVENTS.slice(0, size).map((_, i) => i);
    const page = {
      taskId: 'run', first: 1, last: size, final: false, start: EVENTS[0].timestamp, attempts: [[1, 1]], dict,
      kind: indexes, step: indexes, branch: indexes, path: indexes, run: indexes, name: indexes, dt: column(whole.time.map((ms, i) => ms - (whole.time[i - 1] ?? 0))), opens: column(whole.opens),
      flags: column(whole.flags), a: column(whole.a), b: column(whole.b), label: column(whole.label),
      messages: column(whole.messages), calls: column(whole.calls),
    };
    outline.addPage(page as unknown as OutlinePage);
    for (const event of EVENTS) outline.addEvent(event);
    assert.deepEqual([outline.messages, outline.calls], [whole.messages, whole.calls], `page of ${size} events`);
  }
});

test('messages that arrive during a call are added after its results', () => {
  const events = makeEvents([
    [0, 'task', { messages: [{}, {}] }],
    [1, 'llm-call', { step: '1' }],
    [2, 'message-added', { content: 'Shorter.' }],
    [3, 'content-complete', { step: '1', content: 'One', finishReason: 'interrupted' }],
    [4, 'llm-call', { step: '2' }],
    [5, 'content-complete', { step: '2', content: 'Two', finishReason: 'stop' }],
  ]);
  const count = new HistoryCount();
  assert.deepEqual(events.map(each => count.add(each).messages), [2, 2, 2, 4, 4, 5]);
});

test('the reason of a failed call is shown unless its text contains it', () => {
  assert.equal(explainFailure('timeout', 'get_alerts', 'get_alerts timed out after 2 s'), 'timed out after 2 s');
  assert.equal(explainFailure('refused', 'pay', 'Not today.'), 'refused: Not today.');
  assert.equal(explainFailure('error', 'pay', 'disk full'), 'disk full');
  assert.equal(explainFailure('', 'pay', 'disk full'), 'disk full');
  assert.equal(describeCode('rate_limited'), 'rate limited');
});

test('an answer in the stream ends a question of the log', () => {
  const events = makeEvents([
    [0, 'task'],
    [1, 'input-required', { step: '1', input: { inputId: 'q1', prompt: 'Refund?' } }],
    [2, 'input-received', { inputId: 'q1', value: true }],
  ]);
  const page = {
    taskId: 'run', first: 1, last: 2, final: false, start: events[0].timestamp, attempts: [[1, 1]],
    dict: { kind: ['task', 'input-required'], step: ['', '1'] }, kind: [0, 1], step: [0, 1], dt: [0, 1], flags: [0, 32], label: ['', 'Refund?'],
  };
  const outline = new Outline();
  outline.addPage(page as unknown as OutlinePage);
  outline.addEvent(events[2]);
  assert.deepEqual(outline.opens, [0, 0, 2]);
});
