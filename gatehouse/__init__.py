"""What other programs use of Gatehouse: its Python client (gatehouse.client)."""
