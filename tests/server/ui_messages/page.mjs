// Pages based on the official AI SDK packages, controlled by JSON lines. Each command returns one line.
// `node page.mjs <folder with node_modules>`.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const require = createRequire(`${process.argv[2]}/x.js`);
const { Chat } = require('@ai-sdk/react');
const ai = require('ai');

const chats = new Map();

// Record all fetch requests.
function counting(chat, given) {
  return async (url, options = {}) => {
    chat.requests.push({ method: options.method, url: String(url), body: options.body && JSON.parse(options.body) });
    return fetch(url, options);
  };
}

function open({ name, api, id, token, messages, auto, answers, after }) {
  const opened = { requests: [], errors: [], data: [], calls: [], finished: [] };
  const transport = new ai.DefaultChatTransport({
    api,
    headers: { authorization: `Bearer ${token}` },
    fetch: counting(opened),
    // As in docs/ui_stream.md.
    prepareReconnectToStreamRequest: after ? ({ api, id }) => ({
      api: `${api}/${id}/stream?after=${opened.chat.messages.at(-1)?.metadata?.rxloop.cursor ?? ''}`,
    }) : undefined,
  });
  const rules = {
    tools: ai.lastAssistantMessageIsCompleteWithToolCalls,
    approvals: ai.lastAssistantMessageIsCompleteWithApprovalResponses,
  };
  const chat = (opened.chat = new Chat({
    id,
    messages,
    transport,
    onError: error => opened.errors.push(error.message),
    onData: part => opened.data.push(part),
    onFinish: ({ finishReason, isError, isDisconnect }) => opened.finished.push({ finishReason, isError, isDisconnect }),
    onToolCall: ({ toolCall }) => {
      opened.calls.push(toolCall);
      if (answers && toolCall.toolName in answers) {
        void chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, ...answers[toolCall.toolName] });
      }
    },
    sendAutomaticallyWhen: auto && (options => auto.some(rule => rules[rule](options))),
  }));
  chats.set(name, opened);
  return {};
}

// Wait until a chat is idle, including automatic requests.
async function settled({ chat, errors }) {
  for (let quiet = 0; quiet < 4; ) {
    await new Promise(resolve => setTimeout(resolve, 5));
    quiet = chat.status === 'ready' || chat.status === 'error' ? quiet + 1 : 0;
  }
}

function seen({ chat, requests, errors, data, calls, finished }) {
  return { status: chat.status, messages: chat.messages, requests, errors, data, calls, finished };
}

// Parse the frames of a response with the transport and `readUIMessageStream`, collecting errors.
async function read({ frames, message }) {
  const errors = [];
  const body = new Blob(frames).stream();
  const transport = new ai.DefaultChatTransport({ fetch: async () => new Response(body) });
  const stream = await transport.sendMessages({ chatId: 'c', messages: [], trigger: 'submit-message' });
  const onError = error => errors.push({ name: error.name, message: error.message });
  for await (const each of ai.readUIMessageStream({ stream, message, onError })) message = each;
  return { message, errors };
}

const commands = {
  open,
  read,
  // Parse consecutive responses, each continuing the previous message.
  async goes_on({ pieces }) {
    let message;
    const errors = [];
    for (const frames of pieces) {
      const each = await read({ frames, message });
      message = each.message;
      errors.push(...each.errors);
    }
    return { message, errors };
  },
  seen: async ({ name }) => seen(chats.get(name)),
  settled: async ({ name }) => (await settled(chats.get(name)), seen(chats.get(name))),
  async send({ name, message, options, wait = true }) {
    const opened = chats.get(name);
    const sent = opened.chat.sendMessage(message ?? undefined, options);
    if (!wait) return {};
    await sent;
    await settled(opened);
    return seen(opened);
  },
  async regenerate({ name }) {
    await chats.get(name).chat.regenerate();
    await settled(chats.get(name));
    return seen(chats.get(name));
  },
  async approve({ name, answers }) {
    const opened = chats.get(name);
    for (const [id, approved] of answers) await opened.chat.addToolApprovalResponse({ id, approved });
    await settled(opened);
    return seen(opened);
  },
  async output({ name, toolCallId, tool, ...rest }) {
    const opened = chats.get(name);
    await opened.chat.addToolOutput({ tool, toolCallId, ...rest });
    await settled(opened);
    return seen(opened);
  },
  async send_output({ name, toolCallId, tool, ...rest }) {
    await chats.get(name).chat.addToolOutput({ tool, toolCallId, ...rest });
    return {};
  },
  async resume({ name }) {
    await chats.get(name).chat.resumeStream();
    await settled(chats.get(name));
    return seen(chats.get(name));
  },
  async streaming({ name }) {
    while (chats.get(name).chat.status !== 'streaming') await new Promise(resolve => setTimeout(resolve, 1));
    return {};
  },
  async start_resume({ name }) {
    void chats.get(name).chat.resumeStream();
    return {};
  },
  // Wait until the agent's message has a number of characters or parts.
  async until({ name, characters = 0, parts = 0 }) {
    const { chat } = chats.get(name);
    for (;;) {
      const last = chat.messages.at(-1);
      const text = last.parts.filter(part => part.type === 'text').map(part => part.text).join('');
      if (last.role === 'assistant' && text.length >= characters && last.parts.length >= parts) return {};
      if (chat.status === 'ready' || chat.status === 'error') return {};
      await new Promise(resolve => setTimeout(resolve, 1));
    }
  },
  async stop({ name }) {
    await chats.get(name).chat.stop();
    return seen(chats.get(name));
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { number, command, ...rest } = JSON.parse(line);
  Promise.resolve()
    .then(() => commands[command](rest))
    .then(
      result => console.log(JSON.stringify({ number, result })),
      error => console.log(JSON.stringify({ number, error: String(error?.stack ?? error) })),
    );
}
