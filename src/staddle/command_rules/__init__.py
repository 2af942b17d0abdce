"""Rules about programs that an agent should run: advice to the agent, based on the command line."""
