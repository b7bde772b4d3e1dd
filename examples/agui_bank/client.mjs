// Official AG-UI client for agui_bank.py that approves the payment. Usage: node client.mjs http://localhost:8000/
import { createRequire } from "node:module";

const require = createRequire((process.env.NODE_MODULES ?? process.cwd()) + "/");
const { HttpAgent } = require("@ag-ui/client");

const agent = new HttpAgent({ url: process.argv[2] ?? "http://localhost:8000/" });
const printer = {
  onTextMessageContentEvent: ({ event }) => process.stdout.write(event.delta),
  onToolCallResultEvent: ({ event }) => console.log(`[${event.content}]`),
  onRunErrorEvent: ({ event }) => console.log(`Run failed: ${event.message}`),
};

agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "Pay Ann 20." });
await agent.runAgent({}, printer);
const resume = agent.pendingInterrupts.map((interrupt) => {
  console.log(interrupt.message);
  return { interruptId: interrupt.id, status: "resolved", payload: true };
});
await agent.runAgent({ resume }, printer);
