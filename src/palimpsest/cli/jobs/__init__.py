"""What the commands do. These modules import the engine, so they are loaded by the command that needs them."""
