"""The kernel of Gatehouse: everything a request passes through. See docs/architecture.md."""
