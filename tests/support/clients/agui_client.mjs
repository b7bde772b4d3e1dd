// Official AG-UI client, controlled by JSON lines. One process serves many agents and runs.
// Each command contains an agent name and an operation. Agents are created on first use and store their messages.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(process.env.CLIENTS + "/");
const { HttpAgent, runHttpRequest, transformHttpEventStream } = require("@ag-ui/client");

class ConnectingAgent extends HttpAgent {
  connectAgent(parameters, subscriber) {
    this.pendingInterrupts = []; // those that are open come with the answer
    return super.connectAgent(parameters, subscriber);
  }

  connect(input) {
    return transformHttpEventStream(runHttpRequest(() => this.fetch(this.url + "connect", this.requestInit(input))));
  }
}

// Close the connection after a number of frames.
async function cut(response, frames) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  const body = new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) return controller.close();
      text += decoder.decode(value, { stream: true });
      const parts = text.split("\n\n");
      text = parts.pop();
      const passed = parts.slice(0, frames).map((part) => part + "\n\n");
      frames -= passed.length;
      controller.enqueue(new TextEncoder().encode(passed.join("")));
      if (frames === 0) {
        controller.close();
        await reader.cancel();
      }
    },
  });
  return new Response(body, { status: response.status, headers: response.headers });
}

const agents = new Map();
let warnings = [];
console.warn = (...words) => warnings.push(words.join(" "));
console.error = (...words) => warnings.push(words.join(" "));

async function carryOut(command) {
  const { agent: name, url, headers, threadId, say, set, parameters, connect, abortAfter, cutAfter, clears } = command;
  if (!agents.has(name)) agents.set(name, new ConnectingAgent({ url, headers, threadId }));
  const agent = agents.get(name);
  if (set) agent.setMessages(set);
  for (const message of say ?? []) agent.addMessage(message);
  agent.fetch = async (address, init) => {
    const response = await fetch(address, init);
    return cutAfter ? cut(response, cutAfter) : response;
  };
  const events = [];
  warnings = [];
  const subscriber = {
    onEvent({ event }) {
      events.push(event);
      if (events.length === abortAfter) agent.abortRun();
    },
  };
  // From docs/agui.md.
  if (clears)
    agent.subscribe({
      onRunErrorEvent({ event, agent }) {
        if (event.metadata?.rxloop) agent.pendingInterrupts = [];
      },
    });
  let error = null;
  let outcome = {};
  try {
    outcome = connect ? await agent.connectAgent(parameters, subscriber) : await agent.runAgent(parameters, subscriber);
  } catch (thrown) {
    error = String(thrown);
  }
  const { messages, state, pendingInterrupts } = agent;
  if (command.last) agents.delete(name);
  return { ...outcome, events, messages, state, pendingInterrupts, error, warnings };
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(await carryOut(JSON.parse(line))) + "\n");
}
