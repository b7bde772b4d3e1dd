import assert from 'node:assert/strict';
import { test } from 'node:test';
import { compareGoals, findGoals } from '../goals.ts';
import { makeEvents, makeOutline } from './run.ts';
import { compareFigures, compareItems, countChanges, listFigures, States, type StateInfo } from '../state.ts';

/** A history with one more message after every second event. */
function makeState(seq: number, from: number): StateInfo {
  const count = Math.ceil(seq / 2);
  const messages = Array.from({ length: count }, (_, k) => ({ role: 'user' as const, content: `message ${k}`, reasoning: null, toolCalls: [], toolCallId: null, providerState: null }));
  return { taskId: 'run', seq, attempt: 1, state: 'working', iteration: seq, messages: messages.slice(from), messageCount: count, content: '', usage: { inputTokens: seq, outputTokens: 0, cachedTokens: 0, reasoningTokens: 0 } };
}

test('no message is requested twice, in any order', async () => {
  const sent: string[] = [];
  const states = new States(async (seq, from) => {
    const answer = makeState(seq, from);
    sent.push(...answer.messages.map(each => String(each.content)));
    return answer;
  });
  const loads = [4, 9, 2, 9, 1, 30, 29].map(seq => states.load(seq));
  for (const [k, state] of (await Promise.all(loads)).entries()) {
    const { messageCount, ...expected } = makeState([4, 9, 2, 9, 1, 30, 29][k], 0);
    assert.deepEqual({ ...state, messageCount: undefined }, { ...expected, messageCount: undefined });
  }
  assert.equal(sent.length, 15);
  assert.equal(new Set(sent).size, 15);
});

test('a failed request does not block later ones', async () => {
  let failures = 1;
  const states = new States(async (seq, from) => {
    if (failures-- > 0) throw new Error('offline');
    return makeState(seq, from);
  });
  await assert.rejects(states.load(3));
  assert.equal((await states.load(3)).messages.length, 2);
});

test('added and removed items have signs', () => {
  const lines = compareItems([1, 2, 3], [2, 3, 4], each => each);
  assert.deepEqual(lines.map(each => `${each.sign}${each.item}`), ['2', '3', '+4', '-1']);
  assert.equal(countChanges(lines), '+1 −1');
  assert.equal(countChanges([]), '');
});

test('a changed figure has its old and its new value', () => {
  const [before, after] = [makeState(2, 0), { ...makeState(3, 0), usage: { inputTokens: 3, outputTokens: 5, cachedTokens: 0, reasoningTokens: 0 }, reason: 'paused' }];
  const lines = compareFigures(listFigures(before, String), listFigures(after, String));
  assert.deepEqual(lines.map(each => `${each.sign}${each.item.join(' ')}`), [
    '-state working', '+state working, paused', '-model calls 2', '+model calls 3', '-input tokens 2', '+input tokens 3', '+output tokens 5',
  ]);
});

test('goals are a tree in which changes and dependencies are named', () => {
  const before = [{ id: 'a', title: 'Design' }, { id: 'b', title: 'Build' }, { id: 'c', title: 'Old', status: 'done' as const }];
  const now = [
    { id: 'b', title: 'Build it', status: 'active' as const, dependsOn: ['a'] }, { id: 'a', title: 'Design' }, { id: 'd', title: 'Tests', parent: 'b' },
  ];
  const lines = compareGoals(before, now);
  assert.deepEqual(lines.map(({ sign, item }) => [sign, item.level, item.goal.id]), [['~', 0, 'b'], ['+', 1, 'd'], ['', 0, 'a'], ['-', 0, 'c']]);
  assert.deepEqual(lines[0].item.changes, ['was pending', 'was Build', 'was after no goal']);
  assert.deepEqual(lines[0].item.after.map(each => each.id), ['a']);
  assert.equal(countChanges(lines), '+1 −1 ~1');
});

test('goals of an event are those of the last update before it, without updates of nested agents', () => {
  const update = { goals: [] };
  const nested = { ...update, taskId: 'nested', parentTaskId: 'run', agentPath: ['desk'] };
  const outline = makeOutline(makeEvents([[0, 'task'], [1, 'goals-updated', update], [2, 'goals-updated', nested], [3, 'goals-updated', update]]));
  assert.deepEqual([1, 2, 3, 4, 9].map(last => findGoals(outline, last)), [0, 2, 2, 4, 4]);
});
