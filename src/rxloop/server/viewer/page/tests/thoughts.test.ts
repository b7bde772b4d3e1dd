import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { OutlinePage } from '../outline.ts';
import { describePlace, edgeColumn, makeMap, MAX_COLUMNS, ThoughtGraph } from '../thoughts.ts';
import { makeEvents, makeOutline } from './run.ts';

type Fields = Record<string, unknown>;

function makeGraph(thoughts: Fields[]): ThoughtGraph {
  const events = makeEvents(thoughts.map((fields, k) => [k, 'thought-stream', { thoughtId: `t${k + 1}`, thoughtType: 'reasoning', content: `${k + 1}`, ...fields }]));
  const graph = new ThoughtGraph();
  graph.update(makeOutline(events));
  return graph;
}

const columns = (graph: ThoughtGraph) => graph.rows.map(each => each.column);
const follows = (...ids: string[]): Fields[] => ids.map(id => (id ? { relatedTo: id } : {}));

test('a chain of thoughts stays in its column, and another thought of its parent starts a new one', () => {
  assert.deepEqual(columns(makeGraph(follows('', 't1', 't1', 't2', 't3'))), [0, 0, 1, 0, 1]);
});

test('thoughts without a parent are in the first column', () => {
  assert.deepEqual(columns(makeGraph(follows('', '', ''))), [0, 0, 0]);
});

test('a column is used again after its last thought, if the edge does not pass another thought', () => {
  assert.deepEqual(columns(makeGraph(follows('', 't1', 't1', 't2', 't2', 't4', 't4'))), [0, 0, 1, 0, 2, 0, 1]);
});

test('branches of a run have their own columns until they are merged', () => {
  const graph = makeGraph([{}, { branch: 'a', relatedTo: 't1' }, { branch: 'b', relatedTo: 't1' }, { branch: 'a', relatedTo: 't2' }, { relatedTo: 't1', session: { mergesId: 't4' } }]);
  assert.deepEqual(columns(graph), [0, 1, 2, 1, 0]);
  assert.equal(graph.rows[4].merged, 3);
  assert.equal(edgeColumn(graph.rows, { kind: 'merged', from: 3, to: 4 }), 1);
});

test('the first column is used again after a branch', () => {
  assert.deepEqual(columns(makeGraph([{}, { branch: 'a', relatedTo: 't1' }, { branch: 'a', relatedTo: 't2' }, { relatedTo: 't3' }])), [0, 1, 1, 0]);
});

test('many thoughts of one parent share the last column', () => {
  const graph = makeGraph([{}, ...Array.from({ length: 5000 }, () => ({ relatedTo: 't1' }))]);
  assert.equal(Math.max(...columns(graph)), MAX_COLUMNS - 1);
  assert.ok(graph.edges(2000, 2030).length < 60);
});

test('later thoughts do not move earlier ones', () => {
  const thoughts = [...follows('', 't1', 't1', 't2', 't3', 't1', 't6'), { relatedTo: 't2', session: { revisesId: 't2', mergesId: 't5' } }, ...follows('t3', 't8', '', 't9')];
  const whole = columns(makeGraph(thoughts));
  for (let count = 1; count <= thoughts.length; count++) assert.deepEqual(columns(makeGraph(thoughts.slice(0, count))), whole.slice(0, count));
});

test('places name the related thoughts', () => {
  const { rows } = makeGraph([{}, { relatedTo: 't1' }, { relatedTo: 't1', session: { revisesId: 't2' } }]);
  assert.deepEqual(rows.map(describePlace), [[], ['follows 1', 'replaced by 3'], ['follows 1', 'replaces 2']]);
  assert.deepEqual([...makeGraph(follows('', 't1', 't1', 't3')).ancestors(3)].sort(), [0, 2, 3]);
});

test('a thought is shown after the log has resolved its references', () => {
  const outline = makeOutline(makeEvents([[0, 'thought-stream', { thoughtId: 'a', content: '1' }], [1, 'thought-stream', { thoughtId: 'b', content: '2', relatedTo: 'before' }]]));
  const graph = new ThoughtGraph();
  graph.update(outline);
  assert.deepEqual([[...outline.unresolved], graph.rows.length], [[2], 1]);
  outline.resolve({ first: 2, last: 2, a: [1], b: [0], opens: [0] } as unknown as OutlinePage);
  graph.update(outline);
  assert.deepEqual([[...outline.unresolved], graph.rows.map(each => each.parent)], [[], [-1, 0]]);
});

test('an unknown cost does not delay the thoughts after it', () => {
  const outline = makeOutline(makeEvents([[0, 'usage', { step: '1' }], [1, 'thought-stream', { thoughtId: 'a', content: '1' }]]));
  const graph = new ThoughtGraph();
  graph.update(outline);
  assert.deepEqual([[...outline.unresolved], graph.rows.length], [[1], 1]);
});

test('the map contains each thought once, from left to right', () => {
  const { rows } = makeGraph([{}, { relatedTo: 't1' }, { relatedTo: 't1' }, { relatedTo: 't2', session: { thoughtNumber: 2, totalThoughts: 2, isRevision: true, revisesThought: 1 } }]);
  const map = makeMap(rows);
  assert.equal(map.edges, 'M0 0L1 0M0 0L2 1M1 0L3 0');
  assert.equal(map.nodes + map.old, rows.map((each, k) => `M${k} ${each.column}v0`).join(''));
  rows[1].replacedBy = 3;
  assert.deepEqual([makeMap(rows).old, makeMap(rows).nodes], ['M1 0v0', 'M0 0v0M2 1v0M3 0v0']);
});
