import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { makeBlockReader, makeFileFetch } from '../file.ts';
import { formatBytes, parseFileName } from '../share.ts';

const blocks: Record<string, string> = {
  meta: JSON.stringify({ format: 1, taskId: 'a/b', run: { taskId: 'a/b', title: 'Hi' }, me: { may: { act: false } }, last: 4, total: 4, blocks: [1, 3] }),
  outline: JSON.stringify([{ taskId: 'a/b', first: 1, last: 2, dt: [0, 1] }, { taskId: 'a/b', first: 3, last: 4, dt: [2, 3] }]),
  problems: JSON.stringify([{ code: 'waits', seq: 2, text: 'ü?' }]),
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
  assert.equal((await fetch(`../runs/${id}/state`)).status, 404);
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

test('files of a newer format are refused', async () => {
  const newer = makeFileFetch(makeBlockReader(() => gzipSync('{"format":2}').toString('base64')));
  await assert.rejects(newer('../me'), /format 2/);
});

test('names and sizes of files are displayed', () => {
  assert.equal(parseFileName('attachment; filename="run-1.otlp.json"'), 'run-1.otlp.json');
  assert.equal(parseFileName(null), 'run');
  assert.deepEqual([512, 1_500, 64_000, 2_300_000].map(formatBytes), ['512 bytes', '1.5 kB', '64 kB', '2.3 MB']);
});
