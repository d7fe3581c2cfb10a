"""Connects the examples to NATS_URL; NATS_CREDS, NATS_CA and NATS_INBOX where the server asks for them."""

import asyncio
import os
import ssl

import nats


async def connect():
    options = {}
    if creds := os.environ.get("NATS_CREDS"):
        options["user_credentials"] = creds
    if ca := os.environ.get("NATS_CA"):
        options["tls"] = ssl.create_default_context(cafile=ca)
    if inbox := os.environ.get("NATS_INBOX"):
        options["inbox_prefix"] = inbox
    return await nats.connect(os.environ.get("NATS_URL") or "nats://127.0.0.1:4222", **options)


def run(main):
    """Runs a program until it ends or is interrupted."""
    try:
        asyncio.run(main)
    except KeyboardInterrupt:
        pass
