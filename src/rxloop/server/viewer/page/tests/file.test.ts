import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { makeBlockReader, makeFileFetch } from '../file.ts';
import { noteOmissions, omissionOf, shorten } from '../omissions.ts';
import { findNext, findTexts } from '../search.ts';
import { findHidden, parseFileName } from '../share.ts';
import { formatSize } from '../time.ts';
import { EVENTS, makeOutline } from './run.ts';

const blocks: Record<string, string> = {
  meta: JSON.stringify({ format: 1, taskId: 'a/b', run: { taskId: 'a/b', title: 'Hi' }, me: { may: { act: false } }, last: 4, total: 4, blocks: [1, 3] }),
  outline: JSON.stringify([{ taskId: 'a/b', first: 1, last: 2, dt: [0, 1] }, { taskId: 'a/b', first: 3, last: 4, dt: [2, 3] }]),
  problems: JSON.stringify([{ code: 'waits', seq: 2, text: 'ü?' }]),
  states: JSON.stringify({ messages: [0, 1, 2], states: [[1, { state: 'working', messageCount: 1, calls: [{ id: 'c' }] }], [3, { state: 'completed', messageCount: 3, calls: null }]] }),
  requests: JSON.stringify([{ seq: 2 }]),
  sent: '[2]',
  'sent-0': JSON.stringify([{ seq: 2, parts: [{ role: 'user', index: 0, message: 0 }, { role: 'tool' }], tools: [3], leftOut: [4] }]),
  'texts-0': ['{"role":"user","content":"Hi"}', '{"role":"assistant"}', '{"role":"tool"}', '{"name":"look"}', '{"index":5,"why":"overflow"}'].join('\n'),
  'events-1': '{"seq":1}\n{"seq":2}',
  'events-3': '{"seq":3}\n{"seq":4}',
};
let decoded: string[] = [];
const find = (name: string) => {
  decoded.push(name);
  return name in blocks ? gzipSync(blocks[name]).toString('base64') : null;
};
const fetch = makeFileFetch(makeBlockReader(find));
const get = async (path: string, accept = '') => (await fetch(`../${path}`, { headers: { accept } })).json();
const id = encodeURIComponent('a/b');

test('a file answers for its run and its problems', async () => {
  assert.equal((await get('me')).may.act, false);
  assert.equal((await get(`runs/${id}`)).title, 'Hi');
  assert.equal((await get(`runs/${id}/problems`)).problems[0].text, 'ü?');
  assert.equal((await get('problems?limit=5')).runs[0].problems.length, 1);
  assert.equal((await fetch('../runs/other')).status, 404);
  assert.equal((await fetch(`../runs/${id}/graph`)).status, 404);
});

test('a file answers with the state after an event', async () => {
  const state = await get(`runs/${id}/state?seq=2&messagesFrom=0`);
  assert.deepEqual([state.seq, state.state, state.messageCount, state.calls], [2, 'working', 1, [{ id: 'c' }]]);
  assert.deepEqual(state.messages, [{ role: 'user', content: 'Hi' }]);
  const last = await get(`runs/${id}/state?seq=4&messagesFrom=1`);
  assert.deepEqual([last.state, last.calls, last.messages.map((each: { role: string }) => each.role)], ['completed', null, ['assistant', 'tool']]);
});

test('a file answers with requests, and puts their texts in place', async () => {
  assert.deepEqual((await get(`runs/${id}/requests?after=0`)).requests, [{ seq: 2 }]);
  const request = await get(`runs/${id}/requests/2`);
  assert.deepEqual(request.parts, [{ role: 'user', index: 0, message: { role: 'user', content: 'Hi' } }, { role: 'tool' }]);
  assert.deepEqual([request.tools, request.leftOut], [[{ name: 'look' }], [{ index: 5, why: 'overflow' }]]);
  assert.equal((await fetch(`../runs/${id}/requests/3`)).status, 404);
});

test('texts of events are found, with the positions of their matches', () => {
  const event = { kind: 'custom', taskId: 'needle', data: { list: ['x', 'a 😀 Needle, (needle)'] }, file: { mediaType: 'x', data: 'needle' } };
  assert.deepEqual(findTexts(event, 'NEEDLE'), [{ field: 'data.list.1', text: 'a 😀 Needle, (needle)', marks: [[4, 10], [13, 19]] }]);
  assert.equal(findTexts(event, '(needle)').length, 1);
  const long = findTexts({ text: `${'a'.repeat(500)}needle${'b'.repeat(500)}` }, 'needle')[0];
  assert.deepEqual([long.text.length, long.marks], [200, [[60, 66]]]);
});

test('a file contains the pages of the outline', async () => {
  assert.deepEqual((await get(`runs/${id}/outline?after=0`)).dt, [0, 1]);
  assert.deepEqual((await get(`runs/${id}/outline?after=2`)).dt, [2, 3]);
  assert.deepEqual((await get(`runs/${id}/outline?after=4`)).dt, []);
});

test('only the blocks of a range are decompressed', async () => {
  decoded = [];
  const text = await (await fetch(`../runs/${id}/events?from=2&to=2`)).text();
  assert.equal(text, '{"seq":2}');
  assert.ok(!decoded.includes('events-3'));
  assert.equal(await (await fetch(`../runs/${id}/events?from=2&to=3`)).text(), '{"seq":2}\n{"seq":3}');
  assert.equal((await fetch(`../runs/${id}/events?after=x`)).status, 204);
});

test('the list of runs contains the run of the file', async () => {
  assert.equal((await get('runs?q=hi')).runs.length, 1);
  assert.equal((await get('runs?q=other')).runs.length, 0);
  const reader = (await fetch('../runs', { headers: { accept: 'text/event-stream' } })).body!.getReader();
  assert.match(new TextDecoder().decode((await reader.read()).value), /^event: page\ndata: \{"runs":\[/);
});

test('a run in a file is searched after an event', async () => {
  const events = '{"seq":1,"kind":"a","text":"Wind"}\n{"seq":2,"kind":"b","text":"no wind"}';
  const search = makeFileFetch(makeBlockReader(name => (name === 'events-1' ? gzipSync(events).toString('base64') : find(name))));
  const get = async (path: string) => (await search(`../${path}`)).json();
  const [first, second] = [await get(`runs/${id}/search?q=WIND&limit=1`), await get(`runs/${id}/search?q=WIND&after=1&limit=9`)];
  const seqs = (page: { hits: { seq: number }[] }) => page.hits.map(each => each.seq);
  assert.deepEqual([seqs(first), first.searched, first.next], [[1], 1, 1]);
  assert.deepEqual([seqs(second), second.searched, second.next], [[2], 4, undefined]);
  assert.equal((await get('search?q=wind&limit=1')).next, 'a/b/1');
});

test('long values of a file are shortened', async () => {
  const event = { seq: 1, text: 'x'.repeat(90), list: [{ mediaType: 'image/png', data: 'A'.repeat(90) }, '😀'.repeat(20)] };
  const read = makeFileFetch(makeBlockReader(name => (name === 'events-1' ? gzipSync(JSON.stringify(event)).toString('base64') : find(name))));
  const get = async (query: string) => (await read(`../runs/${id}/events?from=1&to=1${query}`)).json();
  assert.deepEqual(await get(''), event);
  const short = await get('&maxText=31');
  assert.deepEqual(short, {
    ...event, text: `${'x'.repeat(31)}…`, list: [{ mediaType: 'image/png', data: 'A'.repeat(28) }, `${'😀'.repeat(15)}…`],
    metadata: { 'rxloop.omitted': { '/text': 59, '/list/0/data': 62, '/list/1': 10 } },
  });
  noteOmissions(short, short.metadata['rxloop.omitted']);
  assert.deepEqual([short, short.list, short.list[0]].map(omissionOf), [131, 72, 62].map(characters => ({ characters, values: 0, own: 0 })));
  assert.equal(omissionOf(short.metadata), undefined);
});

test('lists, objects and media are shortened like by the server', () => {
  const document = {
    'a/b': 'x'.repeat(409), numbers: Array(5000).fill(1), rows: Array(5000).fill({ id: 7, ok: true }), few: Array(50).fill(0),
    named: Object.fromEntries(Array.from({ length: 5000 }, (_, k) => [`name ${k}`, k])), image: { mediaType: 'image/png', data: 'A'.repeat(900) },
    url: `data:image/png;base64,${'A'.repeat(900)}`, messages: Array(30).fill('y'.repeat(100)),
  };
  const [short, omitted] = shorten(document, 401);
  assert.deepEqual(omitted, { '/a~1b': 8, '/numbers': 4872, '/rows': 4962, '/named': 4900, '/image/data': 500, '/url': 500 });
  noteOmissions(short, omitted);
  assert.deepEqual(omissionOf(short.numbers), { characters: 0, values: 4872, own: 4872 });
  assert.equal(omissionOf(short)!.own, 0);
  assert.equal(omissionOf(short.few), undefined);
});

test('matches are visited in order, from the selected event on', () => {
  const hits = [2, 5, 5, 9].map(seq => ({ seq }));
  assert.deepEqual([findNext(hits, -1, 0, 1), findNext(hits, 1, 5, 1), findNext(hits, 3, 9, 1), findNext(hits, 0, 6, 1)], [0, 2, -1, 3]);
  assert.deepEqual([findNext(hits, -1, 0, -1), findNext(hits, 2, 5, -1), findNext(hits, 0, 2, -1), findNext(hits, 3, 4, -1)], [3, 1, -1, 0]);
});

test('files of a newer format are refused', async () => {
  const newer = makeFileFetch(makeBlockReader(() => gzipSync('{"format":2}').toString('base64')));
  await assert.rejects(newer('../me'), /format 2/);
});

test('names and sizes of files are displayed', () => {
  assert.equal(parseFileName('attachment; filename="run-1.otlp.json"'), 'run-1.otlp.json');
  assert.equal(parseFileName(null), 'run');
  assert.deepEqual([512, 1_500, 64_000, 2_300_000].map(formatSize), ['512 bytes', '1.5 kB', '64 kB', '2.3 MB']);
});

test('hidden events and texts are counted by kind and name', () => {
  const [all, shown] = [makeOutline(), makeOutline(EVENTS.filter(each => ![6, 8, 11].includes(each.seq)))];
  all.flags[4] |= 8;
  shown.label[20] = 'The model failed.';
  assert.deepEqual(findHidden(all, shown, 0), {
    events: 21, count: 3, calls: 1, requests: 3,
    whole: [['tool-start get_forecast', 1], ['tool-complete get_forecast', 1], ['llm-failed rate_limited', 1]], part: [['content-complete', 1], ['status-update', 1]],
  });
  const early = findHidden(all, shown, 7);
  assert.deepEqual([early.events, early.count, early.requests, early.part], [7, 1, 1, [['content-complete', 1]]]);
  assert.equal(findHidden(all, all, 0).count, 0);
});

test('invalid omissions in the metadata of an event are ignored', () => {
  const event = { text: 'a', metadata: {} };
  for (const omitted of [null, 5, 'text', [1], { '/missing/field': 1 }, { '/text/0/1': 1 }, { '/text': 'many' }, { '/metadata/__proto__/x': 1 }]) {
    noteOmissions(event, omitted as unknown as Record<string, number>);
  }
  assert.equal(omissionOf(event)?.characters ?? 0, 0);
});
