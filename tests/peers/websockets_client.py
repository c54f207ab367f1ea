"""Python's `websockets` as a client of /echo and /topics.

usage: python3 websockets_client.py ws://PUBLIC http://ADMIN
"""

import asyncio
import json
import sys
import urllib.request

import websockets

PUBLIC, ADMIN = sys.argv[1:3]


async def publish(**message):
    request = urllib.request.Request(
        f"{ADMIN}/api/publish", data=json.dumps(message).encode(), method="POST"
    )
    answer = await asyncio.to_thread(urllib.request.urlopen, request)
    assert 200 <= answer.status < 300, answer.status


async def echo_text():
    async with websockets.connect(f"{PUBLIC}/echo") as socket:
        for text in ["héllo, wörld ✓", ""]:
            await socket.send(text)
            assert await socket.recv() == text


async def echo_binary():
    async with websockets.connect(f"{PUBLIC}/echo") as socket:
        for length in [0, 125, 126, 65535, 65536]:
            payload = bytes(index % 251 for index in range(length))
            await socket.send(payload)
            assert await socket.recv() == payload


async def echo_fragments():
    async with websockets.connect(f"{PUBLIC}/echo") as socket:
        await socket.send(["one ", "two ", "three"])
        assert await socket.recv() == "one two three"


async def ping():
    async with websockets.connect(f"{PUBLIC}/echo") as socket:
        await (await socket.ping(b"are you there"))


async def close_code():
    async with websockets.connect(f"{PUBLIC}/echo") as socket:
        await socket.close(code=1001, reason="going")
        assert socket.close_code == 1001, socket.close_code


async def topic_from_admin():
    async with websockets.connect(f"{PUBLIC}/topics/python") as socket:
        await publish(topic="python", data="from the admin ✓")
        assert await socket.recv() == "from the admin ✓"
        await publish(topic="python", data_base64="AP8=")
        assert await socket.recv() == b"\x00\xff"


async def topic_from_client():
    url = f"{PUBLIC}/topics/python"
    async with websockets.connect(url) as one, websockets.connect(url) as two:
        await one.send("from a client")
        assert await two.recv() == "from a client"


async def main():
    tests = [
        echo_text,
        echo_binary,
        echo_fragments,
        ping,
        close_code,
        topic_from_admin,
        topic_from_client,
    ]
    for test in tests:
        await test()
        print(f"ok {test.__name__}", flush=True)


asyncio.run(main())
