"""What tests share: fakes, agents, servers on loopback, processes to be killed."""
