"""What clients leave with the gateway: files, answers that later requests go on with, and answers that wait for a decision."""
