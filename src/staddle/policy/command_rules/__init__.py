"""Rules about which programs an agent should run: advice to the agent, read from the command line."""
