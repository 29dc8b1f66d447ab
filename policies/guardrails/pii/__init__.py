"""Personal data: recognisers of one family a file, the table of them, and the guardrail that acts on what they find."""
