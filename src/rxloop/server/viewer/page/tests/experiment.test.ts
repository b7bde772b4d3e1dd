import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatAddress, parseAddress } from '../address.ts';
import { addExperiments, describeRun, difference, findRange, findWorse, formatScore, listScorers, meanOf, sortCases, type CaseInfo, type CaseRun, type Score } from '../experiment.ts';
import { makeCase } from '../share.ts';

const run = (value: Score, state: CaseRun['state'] = 'completed', repeat = 1): CaseRun => ({ taskId: `${value}${repeat}`, repeat, state, scores: value === null ? {} : { exact: value } });
const makeRow = (id: string, a: Score[], b: Score[]): CaseInfo => ({ id, title: '', cells: { a: a.map(each => run(each)), b: b.map(each => run(each)) } });

test('cells show verdicts, numbers, labels and states', () => {
  const texts = [true, false, 0.51234, 12_345, 'rude', null].map(value => describeRun(run(value), 'exact').text);
  assert.deepEqual(texts, ['✓', '✕', '0.512', '12,345', 'rude', '–']);
  assert.equal(describeRun(run(null, 'failed'), 'exact').text, 'failed');
  assert.deepEqual([0, 1, 123.4, -0.25].map(formatScore), ['0', '1', '123', '-0.250']);
});

test('worse cells depend on the direction of the score', () => {
  const row = makeRow('1', [true, false], [true, true]);
  assert.equal(meanOf(row.cells.a, 'exact'), 0.5);
  assert.deepEqual([...findWorse(row, 'exact', 'higher')], ['a']);
  assert.deepEqual([...findWorse(row, 'exact', 'lower')], ['b']);
  assert.deepEqual([...findWorse(makeRow('2', [true], [null]), 'exact', 'higher')], []);
});

test('cases are sorted by their difference', () => {
  const rows = [makeRow('same', [1], [1]), makeRow('large', [1], [5]), makeRow('small', [1], [2])];
  assert.deepEqual(sortCases(rows, 'exact', true).map(each => each.id), ['large', 'small', 'same']);
  assert.deepEqual(sortCases(rows, 'exact', false), rows);
  assert.equal(difference(makeRow('none', [null], [null]), 'exact'), 0);
});

test('a scale contains zero and all intervals', () => {
  const score = (low: number, high: number) => ({ scorer: 'x', better: 'higher' as const, mean: low, low, high });
  assert.deepEqual(findRange([score(0.2, 0.4), score(0.1, 0.9)]), { from: 0, to: 0.9 });
  assert.deepEqual(findRange([score(-2, -1)]), { from: -2, to: -1 });
  assert.deepEqual(findRange([score(0, 0)]), { from: 0, to: 1 });
});

test('scorers are named once, also without means', () => {
  const variants = [{ name: 'a', scores: [{ scorer: 'tokens', better: 'lower' as const, mean: 1, low: 1, high: 1 }], usage: { inputTokens: 1, outputTokens: 1, cachedTokens: 0, reasoningTokens: 0 } }];
  assert.deepEqual(listScorers({ name: 'x', hasReport: true, variants, cases: [makeRow('1', ['rude'], [])] }), ['tokens', 'exact']);
});

test('an experiment can continue on the next page', () => {
  const page = (variants: string[], runs: number) => [{ name: 'x', variants, cases: runs, runs, failed: 1, updated: '2' }];
  assert.deepEqual(addExperiments(page(['b'], 3), page(['a'], 4)), [{ name: 'x', variants: ['a', 'b'], cases: 4, runs: 7, failed: 2, updated: '2' }]);
});

test('experiments have addresses', () => {
  for (const address of ['#/x', '#/x/a%2Fb%20c']) assert.equal(formatAddress(parseAddress(address)), address);
  assert.equal(parseAddress('#/x/a%2Fb').taskId, 'a/b');
});

test('the expected answer of a case can be changed or omitted', () => {
  assert.equal(makeCase('{"id":"1","input":"Hi","expected":"x"}', 'y'), '{"id":"1","input":"Hi","expected":"y"}');
  assert.equal(makeCase('{"id":"1","input":"Hi","expected":"x"}', ''), '{"id":"1","input":"Hi"}');
});
