// Connects the examples to NATS_URL; NATS_CREDS, NATS_CA and NATS_INBOX where the server asks for them.
import { readFileSync } from "node:fs";
import { connect, credsAuthenticator, type NatsConnection } from "@nats-io/transport-node";

export async function server(): Promise<NatsConnection> {
  const { NATS_URL, NATS_CREDS, NATS_CA, NATS_INBOX } = process.env;
  const [, login] = /\/\/([^@/]+)@/.exec(NATS_URL ?? "") ?? []; // which nats.js doesn't take from a URL
  const [user, pass] = (login ?? "").split(":").map(decodeURIComponent);
  return connect({
    maxReconnectAttempts: -1, // a server that is away comes back
    servers: NATS_URL?.replace(`${login}@`, "") || "127.0.0.1:4222",
    ...(user && (pass === undefined ? { token: user } : { user, pass })),
    ...(NATS_CREDS && { authenticator: credsAuthenticator(readFileSync(NATS_CREDS)) }),
    ...(NATS_CA && { tls: { caFile: NATS_CA } }),
    ...(NATS_INBOX && { inboxPrefix: NATS_INBOX }),
  });
}
