import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatAddress, parseAddress } from '../address.ts';
import { ApiError, follow } from '../api.ts';
import { makeKeymap } from '../keys.ts';
import type { Event } from '../outline.ts';
import { toLine, toSegments } from '../text.ts';
import { Axis, findBreaks, findTicks, formatDuration, formatTick, keepInside, makeScale, zoom } from '../time.ts';
import { makeEvents, makeOutline } from './run.ts';

const PAUSE = makeEvents([
  [0, 'task', { agentName: 'a', messages: [] }],
  [1000, 'input-required', { input: { inputId: 'q', prompt: 'Refund?' } }],
  [1100, 'status-update', { state: 'input-required', final: true }],
  [15_121_100, 'status-update', { state: 'working', attempt: 2 }],
  [15_122_100, 'status-update', { state: 'completed', final: true, attempt: 2 }],
]);

test('a long pause for a person is a break, and a long model call is not', () => {
  const [only, ...more] = findBreaks(makeOutline(PAUSE));
  assert.deepEqual([only.from, only.to, only.reason, more.length], [1100, 15_121_100, 'waited for you', 0]);
  const busy = makeEvents([[0, 'llm-call', { step: '1', model: 'm' }], [90_000, 'content-complete', { step: '1' }]]);
  assert.deepEqual(findBreaks(makeOutline(busy)), []);
});

test('the axis cuts breaks out, and can be inverted', () => {
  const outline = makeOutline(PAUSE);
  const axis = new Axis(findBreaks(outline), outline.duration);
  assert.ok(axis.toPosition(outline.duration) < 2400);
  for (const ms of [0, 500, 1100, 8_000_000, 15_121_100, 15_122_000]) assert.ok(Math.abs(axis.toTime(axis.toPosition(ms)) - ms) < 1e-3);
  assert.equal(new Axis(findBreaks(outline), outline.duration, true).toPosition(outline.duration), outline.duration);
});

test('ticks are at least 64 pixels apart and outside of breaks', () => {
  const axis = new Axis([], 12_000);
  const ticks = findTicks(axis, { from: 0, to: 12_000 }, 900);
  const scale = makeScale(axis, { from: 0, to: 12_000 }, 900);
  assert.deepEqual(ticks.slice(0, 3), [0, 1000, 2000]);
  for (let k = 1; k < ticks.length; k++) assert.ok(scale(ticks[k]) - scale(ticks[k - 1]) >= 64);
});

test('a window stays within the axis', () => {
  assert.deepEqual(keepInside({ from: -10, to: 20 }, 100), { from: 0, to: 30 });
  assert.deepEqual(keepInside({ from: 90, to: 120 }, 100), { from: 70, to: 100 });
  assert.deepEqual(zoom({ from: 0, to: 100 }, 50, 0.5, 100), { from: 25, to: 75 });
  assert.deepEqual(zoom({ from: 0, to: 100 }, 50, 9, 100), { from: 0, to: 100 });
});

test('durations are readable', () => {
  const texts = [0, 7, 760, 12_100, 59_970, 200_000, 15_120_000, 400_000_000].map(formatDuration);
  assert.deepEqual(texts, ['0 s', '7 ms', '0.76 s', '12.1 s', '1 min', '3 min 20 s', '4 h 12 min', '5 days']);
});

test('labels of the axis have the decimals that they need', () => {
  const texts = ([[0, 1000], [5, 5], [20, 20], [2000, 1000], [2500, 500], [75_000, 5000], [15_102_500, 500], [120_000, 60_000]] as const).map(([ms, step]) => formatTick(ms, step));
  assert.deepEqual(texts, ['0', '5 ms', '20 ms', '2 s', '2.5 s', '1:15', '4:11:42.5', '2 min']);
});

test('addresses survive a round trip', () => {
  const text = '#/r/0190/events?at=1.29.0&from=6.1&to=8.9&q=ok:no+kind:tool&in=json';
  assert.equal(formatAddress(parseAddress(text)), text);
  assert.equal(formatAddress({ page: 'runs', q: 'a b' }), '#/?q=a+b');
  assert.deepEqual(parseAddress('#/r/a%2Fb').taskId, 'a/b');
  assert.equal(formatAddress(parseAddress('#/r/a/problems')), '#/r/a/problems');
  assert.equal(formatAddress(parseAddress('#/r/a/unknown')), '#/r/a');
});

test('a bare cursor is the address of its event', () => {
  assert.equal(formatAddress(parseAddress('#0190/2.29.0')), '#/r/0190?at=2.29.0');
});

test('invalid parts of an address are ignored', () => {
  assert.equal(formatAddress(parseAddress('#/r/0190?at=<b>&from=x&to=3')), '#/r/0190');
  assert.equal(parseAddress('#/r/%E0%A4%A').taskId, '%E0%A4%A');
  assert.equal(parseAddress('').page, 'runs');
});

const press = (key: string, more = {}) => ({ key, isField: false, isControl: false, hasModifier: false, page: 'run' as const, lettersOff: false, ...more });

test('keys find their commands', () => {
  const find = makeKeymap();
  assert.deepEqual(['j', 'ArrowLeft', ' ', 'n', 'y'].map(key => find(press(key))), ['next', 'previous', 'play', 'nextProblem', null]);
  assert.deepEqual(['g', 'r'].map(key => find(press(key))), [null, 'runs']);
});

test('keys do not fire in fields, with modifiers, on the wrong page, or when letters are off', () => {
  const find = makeKeymap();
  assert.equal(find(press('j', { isField: true })), null);
  assert.equal(find(press('Escape', { isField: true })), 'leave');
  assert.equal(find(press('c', { hasModifier: true })), null);
  assert.equal(find(press('l', { page: 'runs' })), null);
  assert.equal(find(press('j', { page: 'runs' })), 'nextRun');
  assert.equal(find(press('j', { lettersOff: true })), null);
  assert.equal(find(press('ArrowRight', { lettersOff: true })), 'next');
  assert.equal(find(press('Enter', { isControl: true })), null);
});

test('invisible characters are marked codes', () => {
  assert.equal(toLine('a\u001b[31mb\u202ec\u200bd\ud800e'), 'a␛[31mbU+202EcU+200Bd\ufffde');
  assert.deepEqual(toSegments('plain\ntext'), [{ text: 'plain\ntext', isCode: false }]);
  assert.equal(toLine('ok 👍🏽'), 'ok 👍🏽');
});

function event(seq: number): Event {
  return { version: 1, kind: 'custom', name: 'x', contextId: 'c', taskId: 'run', seq, sub: 0, attempt: 1, timestamp: '2026-01-01T00:00:00Z' };
}

test('a broken stream continues after the last cursor', async () => {
  const streams = [[1, 2, 'broken'], ['broken'], [3]];
  const cursors: string[] = [];
  const seen: number[] = [];
  const connections: boolean[] = [];
  const waits: number[] = [];
  const api = {
    async *stream(_: string, after: string): AsyncGenerator<Event, boolean> {
      cursors.push(after);
      for (const each of streams.shift() ?? []) {
        if (each === 'broken') throw new TypeError('network');
        yield event(each as number);
      }
      return streams.length > 0;
    },
  };
  const end = await new Promise<string>(done => {
    void follow(api, 'run', {
      cursor: () => (seen.length ? `run/1.${seen.at(-1)}.0` : ''),
      onEvent: each => seen.push(each.seq),
      onConnection: isConnected => connections.push(isConnected),
      onEnd: () => done('end'),
      onFailure: () => done('failure'),
    }, new AbortController().signal, async ms => void waits.push(ms));
  });
  assert.equal(end, 'end');
  assert.deepEqual(seen, [1, 2, 3]);
  assert.deepEqual(cursors, ['', 'run/1.2.0', 'run/1.2.0']);
  assert.deepEqual(connections, [true, false, false, true]);
  assert.deepEqual(waits, [500, 1000]);
});

test('a refused stream is not opened again', async () => {
  let count = 0;
  const api = { async *stream(): AsyncGenerator<Event, boolean> { count++; throw new ApiError(410, 'gone', 'removed'); } };
  const failure = await new Promise<ApiError>(done => {
    const nothing = () => undefined;
    void follow(api, 'run', { cursor: () => '', onEvent: nothing, onConnection: nothing, onEnd: nothing, onFailure: done }, new AbortController().signal);
  });
  assert.deepEqual([failure.status, count], [410, 1]);
});
