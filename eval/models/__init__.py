"""What the arena and the probe share: models that are asked through a store of calls, with a budget and on account."""
