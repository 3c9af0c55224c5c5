"""A small service that knows nothing of 2PHP.

Orders in memory. Stands behind the gateway in the demo and in compose.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from aiohttp import web


def make_app() -> web.Application:
    """`POST /orders`, `GET /orders`, `GET|PUT|DELETE /orders/{id}`."""
    orders: dict[str, Any] = {}
    numbers = itertools.count(1)

    async def create(request: web.Request) -> web.Response:
        order = {"id": str(next(numbers)), **await request.json()}
        orders[order["id"]] = order
        return web.json_response(order, status=201, headers={"Location": f"/orders/{order['id']}"})

    async def index(request: web.Request) -> web.Response:
        return web.json_response(list(orders.values()))

    async def one(request: web.Request) -> web.Response:
        number = request.match_info["id"]
        if request.method == "PUT":
            orders[number] = {"id": number, **await request.json()}
        elif number not in orders:
            return web.json_response({"error": "no such order"}, status=404)
        elif request.method == "DELETE":
            return web.json_response(orders.pop(number))
        return web.json_response(orders[number])

    app = web.Application()
    app.router.add_post("/orders", create)
    app.router.add_get("/orders", index)
    for method in ("GET", "PUT", "DELETE"):
        app.router.add_route(method, "/orders/{id}", one)
    return app


def main() -> None:
    """`python -m gateway.cli.sample_upstream --port 3000`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=3000)
    arguments = parser.parse_args()
    web.run_app(make_app(), host=arguments.host, port=arguments.port, print=None)


if __name__ == "__main__":
    main()
