"""The Python client: the admin API typed from its own description, synchronous and asynchronous.

    from gatehouse.client import Admin

    with Admin("https://gateway.example:8081", key) as admin:
        for tenant in admin.tenants.iterate():
            print(tenant["name"])

`Tickets` runs requests at the machine that has the engine (docs/tickets.md). docs/python-client.md tells the rest. Applications that only
send requests need nothing of this: any OpenAI client will do.
"""

from gatehouse.client.admin import Admin, AsyncAdmin
from gatehouse.client.errors import AdminError, ConnectionFailed, GatehouseClientError
from gatehouse.client.tickets import AsyncTickets, Ticket, TicketRefused, Tickets

__all__ = [
    "Admin",
    "AdminError",
    "AsyncAdmin",
    "AsyncTickets",
    "ConnectionFailed",
    "GatehouseClientError",
    "Ticket",
    "TicketRefused",
    "Tickets",
]
