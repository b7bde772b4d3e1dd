// Official npm clients for several servers. Each command contains a client, an operation and a server, and returns the
// resulting view of the client. `node replica_clients.mjs <folder with node_modules>`; see replica_clients.py.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.argv[2]}/x.js`);
const { HttpAgent, runHttpRequest, transformHttpEventStream } = require("@ag-ui/client");
const { Chat } = require("@ai-sdk/react");
const ai = require("ai");
const OpenAI = require("openai").default;
const { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } = require("@a2a-js/sdk/client");
const a2a = require("@a2a-js/sdk");

const text = (value) => ["text", value];
const thought = (value) => ["reasoning", value];
const called = (name, input, output) => ["call", name, input, output];

class Agui {
  static warnings = [];

  constructor(context) {
    this.agent = new (class extends HttpAgent {
      connectAgent(parameters, subscriber) {
        this.pendingInterrupts = []; // those that are open come with the answer
        return super.connectAgent(parameters, subscriber);
      }
      connect(input) {
        return transformHttpEventStream(runHttpRequest(() => fetch(this.url + "connect", this.requestInit(input))));
      }
    })({ url: "http://nowhere", threadId: context });
    this.state = null;
    this.pieces = 0;
  }

  async go(url, run) {
    this.agent.url = `${url}/agui/`;
    this.state = null;
    const onTextMessageContentEvent = () => void this.pieces++;
    const onRunFinishedEvent = ({ event }) => void (this.state = event.outcome?.type ?? "success");
    const onRunErrorEvent = ({ event }) => void (this.state = event.code);
    await run({ onTextMessageContentEvent, onRunFinishedEvent, onRunErrorEvent });
  }

  say(url, said) {
    this.agent.addMessage({ id: crypto.randomUUID(), role: "user", content: said });
    return this.go(url, (subscriber) => this.agent.runAgent({}, subscriber));
  }

  back(url) {
    return this.go(url, (subscriber) => this.agent.connectAgent({}, subscriber));
  }

  answer(url, approved) {
    const resume = this.agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: approved }));
    return this.go(url, (subscriber) => this.agent.runAgent({ resume }, subscriber));
  }

  view() {
    const results = new Map(this.agent.messages.filter((each) => each.role === "tool").map((each) => [each.toolCallId, each.content]));
    const items = [];
    for (const each of this.agent.messages) {
      if (each.role === "reasoning") items.push(thought(each.content));
      if (each.role !== "assistant") continue;
      if (each.content) items.push(text(each.content));
      for (const call of each.toolCalls ?? []) {
        items.push(called(call.function.name, JSON.parse(call.function.arguments), results.get(call.id) ?? null));
      }
    }
    return { state: this.state, items, pieces: this.pieces, errors: Agui.warnings };
  }
}

// List the valid parts of a message. In each step, `data-rxloop-void` discards the text before it. Calls keep their
// position and are updated.
function listItems(message) {
  const steps = [[]];
  for (const part of message?.parts ?? []) {
    if (part.type === "step-start") steps.push([]);
    else if (part.type === "data-rxloop-void") steps.push(steps.pop().filter(([kind]) => kind === "call"));
    else if (part.type === "text") steps.at(-1).push(text(part.text));
    else if (part.type === "reasoning") steps.at(-1).push(thought(part.text));
    else if (part.type === "dynamic-tool") steps.at(-1).push(called(part.toolName, part.input, part.output ?? null));
  }
  const isCall = ([kind]) => kind === "call";
  return steps.flatMap((step) => [...step.filter((each) => !isCall(each)), ...step.filter(isCall)]);
}

// Page with automatic requests and state.
class AiChat {
  constructor(context) {
    this.errors = [];
    this.pieces = 0;
    this.chat = new Chat({
      id: context,
      transport: new ai.DefaultChatTransport({
        api: "http://server/ui",
        fetch: async (address, options) => {
          const response = await fetch(String(address).replace("http://server", this.url), options);
          this.status = response.status;
          return response;
        },
      }),
      onError: (error) => this.errors.push(String(error)),
      sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithApprovalResponses,
    });
    this.chat["~registerMessagesCallback"](() => this.pieces++);
  }

  async go(url, act) {
    this.url = url;
    this.errors = [];
    await act();
    for (let quiet = 0; quiet < 4; quiet = ["ready", "error"].includes(this.chat.status) ? quiet + 1 : 0) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    if (this.errors.length) throw new Error(this.errors.join("; "));
  }

  say(url, said) {
    return this.go(url, () => this.chat.sendMessage({ text: said }));
  }

  // Without an active run, the page loads the stored messages. The run may have ended meanwhile, or may not have received
  // the answer that the page shows.
  back(url) {
    return this.go(url, async () => {
      await this.chat.resumeStream();
      if (this.status === 204) {
        this.chat.messages = await (await fetch(`${url}/ui/${this.chat.id}`)).json();
      }
    });
  }

  answer(url, approved) {
    return this.go(url, async () => {
      for (const part of this.chat.lastMessage.parts.filter((each) => each.state === "approval-requested")) {
        await this.chat.addToolApprovalResponse({ id: part.approval.id, approved });
      }
    });
  }

  cancel(url) {
    return fetch(`${url}/ui/${this.chat.id}/stop`, { method: "POST" });
  }

  view() {
    const last = this.chat.lastMessage;
    return { state: last?.metadata?.rxloop.state, items: listItems(last), pieces: this.pieces, errors: this.errors };
  }
}

// Client without a page, using the transport and `readUIMessageStream`.
class AiReader {
  constructor(context) {
    this.context = context;
    this.pieces = 0;
  }

  async go(url, open, message) {
    const stream = await open(new ai.DefaultChatTransport({ api: `${url}/ui` }));
    if (stream === null) {
      this.message = (await (await fetch(`${url}/ui/${this.context}`)).json()).at(-1);
      return;
    }
    for await (const each of ai.readUIMessageStream({ message, stream, terminateOnError: true })) {
      this.message = each;
      this.pieces++;
    }
  }

  say(url, said) {
    const messages = [{ id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text: said }] }];
    return this.go(url, (transport) => transport.sendMessages({ chatId: this.context, messages, trigger: "submit-message" }));
  }

  back(url) {
    return this.go(url, (transport) => transport.reconnectToStream({ chatId: this.context }));
  }

  answer(url, approved) {
    const message = structuredClone(this.message);
    for (const part of message.parts.filter((each) => each.state === "approval-requested")) {
      Object.assign(part, { state: "approval-responded", approval: { ...part.approval, approved } });
    }
    const asked = { chatId: this.context, messages: [message], trigger: "submit-message" };
    return this.go(url, (transport) => transport.sendMessages(asked), message);
  }

  view() {
    return { state: this.message?.metadata?.rxloop.state, items: listItems(this.message), pieces: this.pieces, errors: [] };
  }
}

class Responses {
  constructor(context, { background }) {
    this.context = context;
    this.background = background;
    this.output = [];
    this.last = -1;
    this.pieces = 0;
  }

  client(url) {
    return new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  }

  async read(stream) {
    stream.on("event", (event) => {
      if (event.response) this.response = event.response;
      this.pieces += event.type === "response.output_text.delta";
      if (event.sequence_number !== this.last + 1) throw new Error(`${event.sequence_number} follows ${this.last}`);
      this.last = event.sequence_number;
    });
    // Rejects for incomplete responses, which the caller checks.
    await stream.done().catch((error) => {
      if (!["cancelled", "failed", "incomplete"].includes(this.response?.status)) throw error;
    });
  }

  say(url, input, more = {}) {
    if (this.response?.id) this.output.push(...this.response.output);
    this.last = -1;
    const conversation = more.previous_response_id ? undefined : this.context;
    return this.read(this.client(url).responses.stream({ model: "clerk", input, conversation, background: this.background, ...more }));
  }

  async back(url) {
    if (!this.response?.id) throw new Error("never heard of a response");
    if (this.background) {
      return this.read(this.client(url).responses.stream({ response_id: this.response.id, starting_after: this.last }));
    }
    do {
      this.response = await this.client(url).responses.retrieve(this.response.id);
      await new Promise((resolve) => setTimeout(resolve, 100));
    } while (["queued", "in_progress"].includes(this.response.status));
  }

  answer(url, approve) {
    const asked = this.response.output.filter((each) => each.type === "mcp_approval_request");
    const input = asked.map(({ id }) => ({ type: "mcp_approval_response", approval_request_id: id, approve }));
    return this.say(url, input, { previous_response_id: this.response.id });
  }

  cancel(url) {
    return this.client(url).responses.cancel(this.response.id);
  }

  view() {
    const output = [...this.output, ...(this.response?.output ?? [])];
    const items = output.flatMap((each) => {
      if (each.type === "reasoning") return [thought(each.summary.map((part) => part.text).join(""))];
      if (each.type === "message") return [text(each.content.map((part) => part.text).join(""))];
      return each.type === "mcp_call" ? [called(each.name, JSON.parse(each.arguments), each.output ?? null)] : [];
    });
    return { state: this.response?.status, items, pieces: this.pieces, errors: [] };
  }
}

class A2a {
  constructor(context, { binding }) {
    this.context = context;
    this.binding = binding;
    this.answers = new Map();
    this.pieces = 0;
  }

  client(url) {
    const transports = [this.binding === "JSONRPC" ? new JsonRpcTransportFactory() : new RestTransportFactory()];
    const options = { transports, preferredTransports: [this.binding] };
    return new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, options)).createFromUrl(`${url}/a2a/`, ".well-known/agent-card.json");
  }

  async read(stream, back = false) {
    for await (const { payload } of stream) {
      const { $case: kind, value } = payload;
      if (kind === "task") {
        this.task = value.id;
        for (const each of value.artifacts) this.answers.set(each.artifactId, each.parts[0].content.value);
      }
      if (kind === "artifactUpdate") {
        this.pieces++;
        const before = value.append ? this.answers.get(value.artifact.artifactId) : "";
        this.answers.set(value.artifact.artifactId, before + value.artifact.parts[0].content.value);
      } else {
        this.state = a2a.TaskState[value.status.state];
        // A subscriber of a waiting task receives no updates until the task continues.
        if (back && this.state === "TASK_STATE_INPUT_REQUIRED") return;
      }
    }
  }

  async say(url, said) {
    const part = { content: { $case: "text", value: said }, filename: "", mediaType: "", metadata: undefined };
    const more = { metadata: undefined, extensions: [], referenceTaskIds: [] };
    const ids = { messageId: crypto.randomUUID(), contextId: this.context, taskId: this.task ?? "" };
    const message = { ...ids, ...more, role: a2a.Role.ROLE_USER, parts: [part] };
    const client = await this.client(url);
    await this.read(client.sendMessageStream({ tenant: "", message, configuration: undefined, metadata: undefined }));
  }

  // Subscribing to a finished task is an error.
  async back(url) {
    if (!this.task) throw new Error("never heard of a task");
    const client = await this.client(url);
    try {
      await this.read(client.resubscribeTask({ tenant: "", id: this.task }), true);
    } catch (error) {
      if (!error.constructor.name.includes("UnsupportedOperation")) throw error;
      const task = await client.getTask({ tenant: "", id: this.task, historyLength: undefined });
      await this.read([{ payload: { $case: "task", value: task } }]);
    }
  }

  answer(url, approved) {
    return this.say(url, approved ? "yes" : "no");
  }

  async cancel(url) {
    await (await this.client(url)).cancelTask({ tenant: "", id: this.task, metadata: undefined });
  }

  view() {
    return { state: this.state, items: [...this.answers.values()].filter(Boolean).map(text), pieces: this.pieces, errors: [] };
  }
}

const kinds = { Agui, AiChat, AiReader, Responses, A2a };
const clients = new Map();
// For a broken connection, the AG-UI client logs the error and throws it twice.
const broken = (words) => /terminated|fetch failed/.test(words);
console.warn = console.error = (...words) => broken(words.join(" ")) || Agui.warnings.push(words.join(" "));
process.on("unhandledRejection", (error) => {
  if (!broken(error.message)) throw error;
});

async function execute({ client, verb, url, kind, ...rest }) {
  if (verb === "open") {
    clients.set(client, new kinds[kind](rest.context, rest));
    return null;
  }
  const opened = clients.get(client);
  if (verb !== "view") await opened[verb](url, rest.said);
  return opened.view();
}

for await (const line of createInterface({ input: process.stdin })) {
  const { number, ...command } = JSON.parse(line);
  execute(command).then(
    (result) => console.log(JSON.stringify({ number, result })),
    (error) => console.log(JSON.stringify({ number, error: `${error?.constructor?.name}: ${error?.stack ?? error}` })),
  );
}
