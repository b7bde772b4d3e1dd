import assert from 'node:assert/strict';
import { test } from 'node:test';
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
