// Official npm client. Starts, answers and reads a task, and cancels another one.
// `node client.mjs <folder with node_modules> <url> <binding>` prints the results as JSON.
import { createRequire } from 'node:module';

const [, , folder, url, binding] = process.argv;
const require = createRequire(`${folder}/x.js`);
const { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } = require('@a2a-js/sdk/client');
const { Message, Role, TaskState } = require('@a2a-js/sdk');

const fetchImpl = (address, options = {}) =>
  fetch(address, { ...options, headers: { ...Object.fromEntries(new Headers(options.headers)), authorization: 'Bearer ann-key' } });
const transports = binding === 'JSONRPC' ? [new JsonRpcTransportFactory({ fetchImpl })] : [new RestTransportFactory({ fetchImpl })];
const factory = new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, { transports, preferredTransports: [binding] }));
const client = await factory.createFromUrl(url);
const states = [];
let task;
let answer = '';

let count = 0;
function saying(text, fields = {}) {
  const part = { content: { $case: 'text', value: text }, filename: '', mediaType: '', metadata: undefined };
  const empty = { contextId: '', taskId: '', metadata: undefined, extensions: [], referenceTaskIds: [] };
  const message = { ...empty, messageId: `js-${++count}`, role: Role.ROLE_USER, parts: [part], ...fields };
  return { tenant: '', message, configuration: undefined, metadata: undefined };
}

async function read(stream) {
  for await (const { payload } of stream) {
    const { $case: kind, value } = payload;
    if (kind === 'task') task = value;
    if (kind === 'artifactUpdate') {
      const text = value.artifact.parts[0].content.value;
      answer = value.append ? answer + text : text;
    } else {
      const state = TaskState[value.status.state] ?? String(value.status.state);
      if (states.at(-1) !== state) states.push(state);
    }
  }
}

await read(client.sendMessageStream(saying('Pay 5')));
await read(client.sendMessageStream(saying('yes', { taskId: task.id })));
const kept = await client.getTask({ tenant: '', id: task.id, historyLength: undefined });
const waiting = await client.sendMessage(saying('Pay 6'));
const over = await client.cancelTask({ tenant: '', id: (waiting.task ?? waiting).id, metadata: undefined });
let refused = '';
try {
  await client.cancelTask({ tenant: '', id: over.id, metadata: undefined });
} catch (error) {
  refused = error.constructor.name;
}
console.log(JSON.stringify({ states, answer, kept: kept.artifacts[0].parts[0].content.value, over: TaskState[over.status.state] ?? over.status.state, refused }));
